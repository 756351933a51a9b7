"""What the page of npuctl web costs on a large cluster: until the wall is drawn, for a change of many pods, and memory.

The API server is the sandbox's, in this process; npuctl web and Chromium are processes of their own.
"""

import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from playwright.async_api import Page, async_playwright

from ascend.annotations import SERVER_INDEX, SUPER_POD_ID
from ascend.deviceinfo import LABELS
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig
from tests.bench.outcome import Outcome, Run, table
from tests.bench.verbs import cluster
from tests.npuctl.manifests import pod, report
from tests.npuctl.web.conftest import opened, served

_FULL: Final = (10_000, 300, 1_000)
_QUICK: Final = (200, 20, 40)
"""Nodes of 8 chips, pods that wait, and pods that come at once."""

_SUPER_POD: Final = 96
_CANVAS: Final = ".wall canvas"

_FOLLOW: Final = """
import asyncio, sys, structlog
structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.watch.informers import Informers
from ascend.kube.client import KubeClient

async def follow():
    async with await KubeClient.connect(sys.argv[1]) as client, asyncio.TaskGroup() as tasks:
        informers = Informers(client, Cluster(Ledger(ttl_s=60.0, monotonic=lambda: 0.0)))
        tasks.create_task(informers.run())
        await informers.wait_until_synced()
        print("synced", flush=True)

asyncio.run(follow())
"""


async def measure(run: Run) -> Outcome:
    """Open the page five times, and let many pods come five times."""
    nodes, waiting, coming = _QUICK if run.quick else _FULL
    outcome = Outcome()
    samples: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        async with ApiServer(tokens=TOKENS) as server, async_playwright() as playwright:
            with run.doing(f"a cluster of {nodes} nodes"):
                free = await _fill(server, nodes, waiting, random.Random(run.seed))
            kubeconfig = str(write_kubeconfig(Path(folder), server, "secret"))
            samples["the allocator's state in a process, MiB"] = [await _state_mib(kubeconfig)]
            browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
            async with served("--kubeconfig", kubeconfig) as (url, process):
                for number in run.steps("pages", 5):
                    async with opened(browser, url) as page:
                        await page.wait_for_selector(f"{_CANVAS}[data-nodes='{nodes}']", timeout=300_000)
                        samples.setdefault("first drawn, ms", []).append(await _number(page, "drawn"))
                        samples.setdefault("of which tiles, ms", []).append(await _number(page, "loaded"))
                        if number == 0:
                            await page.wait_for_selector(".queue tbody tr", timeout=300_000)
                        told = await _come(page, server, free, number, coming)
                        for name, value in told.items():
                            samples.setdefault(name, []).append(value)
                samples["npuctl web, MiB"] = [_rss_mib(process.pid)]
            await browser.close()
    shown = table("what", "least", "median", "most")
    for name, values in samples.items():
        ordered = sorted(values)
        shown.add_row(name, *(f"{value:.0f}" for value in (ordered[0], ordered[len(ordered) // 2], ordered[-1])))
        outcome.raw[name] = values
    title = f"web: the page on {nodes} nodes with {8 * nodes} chips, {waiting} pods that wait, {coming} that come"
    outcome.show(
        title, shown, "tiles: from the snapshot asked for to it drawn; a change: drawn, and from the API server on"
    )
    return outcome


async def _fill(server: ApiServer, nodes: int, waiting: int, rng: random.Random) -> list[str]:
    """Create a cluster; returns the names of the nodes without a pod."""
    used: set[str] = set()
    names: list[str] = []
    for made in cluster(nodes, waiting, rng):
        if made["kind"] == "Node":
            at = len(names)
            names.append(made["metadata"]["name"])
            made["metadata"]["annotations"] |= {SUPER_POD_ID: str(at // _SUPER_POD), SERVER_INDEX: str(at % _SUPER_POD)}
        elif made["kind"] == "ConfigMap":
            made["metadata"]["labels"] = dict(LABELS)
            made["data"] = _at_present(made["data"])
        else:
            used.add(made["spec"].get("nodeName", ""))
            limits = made["spec"]["containers"][0]["resources"]["limits"]
            limits |= {resource: str(number) for resource, number in limits.items()}
        await server.create(made)
    return [name for name in names if name not in used]


def _at_present(data: dict[str, str]) -> dict[str, str]:
    fresh: dict[str, str] = report("any", at_s=int(time.time()))["data"]
    return {**data, **fresh}


async def _state_mib(kubeconfig: str) -> float:
    """The memory of a process that follows the cluster as the allocator does, and nothing else."""
    command = sys.executable, "-c", _FOLLOW, kubeconfig
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    memory = _rss_mib(process.pid)
    process.kill()
    await process.wait()
    return memory


async def _come(page: Page, server: ApiServer, free: list[str], number: int, coming: int) -> dict[str, float]:
    """Let pods come to a node of their own each, and wait until the wall shows them."""
    before = await _number(page, "tiles")
    made: list[Any] = [
        pod(f"comes-{number}-{at}", "1", node=free[at % len(free)], chips=(number,), uid=f"comes-{number}-{at}")
        for at in range(coming)
    ]
    for one in made:
        await server.create(one)
    created_s = time.perf_counter()
    wanted = min(coming, len(free))
    await page.wait_for_function(
        f"document.querySelector('{_CANVAS}').dataset.tiles - {before} >= {wanted}", timeout=300_000, polling=20
    )
    return {
        "a change, drawn, ms": await _number(page, "patched"),
        "a change, from the API server on, ms": 1000 * (time.perf_counter() - created_s),
    }


async def _number(page: Page, what: str) -> float:
    return float(await page.eval_on_selector(_CANVAS, f"canvas => Number(canvas.dataset.{what} || 0)"))


def _rss_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
