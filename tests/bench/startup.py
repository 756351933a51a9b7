"""How long the allocator takes to become ready, the resources it needs for that, and the cost of a decision."""

import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
from rich.table import Table

from ascend.deviceinfo import LABELS, NAMESPACE
from ascend.kube.client import PAGE_SIZE
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from sandbox.apiserver import ApiServer
from tests.allocator.harness import pod_manifest
from tests.bench.crowd import PODS_PER_NODE, settle
from tests.bench.free_sets import node_name
from tests.bench.outcome import Outcome, Run, p50, table
from tests.bench.usage import cpu_of_pid, peak_mib, rss_mib
from tests.cluster.api import free_ports
from tests.e2e.programs import BIN, allocator_command, is_ready, write_kubeconfig
from tests.e2e.sandboxed import SandboxProgram

_PATIENCE_S: Final = 120.0
_POLL_S: Final = 0.01
_QUIET_S: Final = 2.0
_OURS: Final = "allocator"
_TOKENS: Final = {"ours": _OURS, "mine": "bench"}


@dataclass(frozen=True, slots=True)
class _Size:
    nodes: tuple[int, ...]
    starts: int
    decisions: int


_FULL: Final = _Size((0, 1_000, 10_000), starts=5, decisions=200)
_QUICK: Final = _Size((0, 50), starts=1, decisions=10)


@dataclass(slots=True)
class _Samples:
    """One value for each start, except where they say otherwise.

    Attributes:
        ready_s: from the start of the process until /readyz.
        read_s: seconds of a client that only reads the same lists.
        cpu_s: CPU time of the process until then.
        rss_mib: its memory then.
        peak_mib: its peak memory until then.
        requests: its requests to the API server until then.
        read_mb: size of the lists, at the last start.
        decided: requests to the API server for the decisions.
    """

    ready_s: list[float] = field(default_factory=list)
    read_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    rss_mib: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)
    read_mb: float = 0.0
    decided: Counter[str] = field(default_factory=Counter)


async def measure(run: Run) -> Outcome:
    size = _QUICK if run.quick else _FULL
    outcome = Outcome()
    shown = table(
        *("nodes", "pods", "lists\nMB", "ready\np50 s", "\nmax s", "only read\np50 s", "CPU\np50 s"),
        *("RSS\nMiB", "peak\nMiB", "API\nrequests"),
    )
    decided = table("nodes", "decisions", "requests each", "which")
    for nodes in size.nodes:
        samples = await _measured(run, size, nodes)
        _add_rows(shown, decided, size, nodes, samples)
        outcome.raw |= {
            f"{nodes} nodes, ready, s": samples.ready_s,
            f"{nodes} nodes, only read, s": samples.read_s,
            f"{nodes} nodes, CPU, s": samples.cpu_s,
            f"{nodes} nodes, RSS, MiB": samples.rss_mib,
            f"{nodes} nodes, peak, MiB": samples.peak_mib,
            f"{nodes} nodes, API requests": samples.requests,
        }
        if nodes:
            outcome.raw[f"{nodes} nodes, {size.decisions} decisions, API requests"] = samples.decided
    outcome.show(
        f"startup: an allocator process on the sandbox's API server, {size.starts} starts each, until /readyz passes",
        shown,
        "Every node has a report and two pods that hold chips. The API server is Python's and in this process, so its",
        "part is large; only read: a client that reads the same lists, page by page, without decoding them.",
        "CPU, RSS and peak are the allocator's alone. requests: lists are read in pages of 500.",
    )
    outcome.show(
        "startup: requests to the API server for a decision (filter and bind, over HTTP)",
        decided,
        f"All requests of the allocator from the first call until {_QUIET_S:g} s after the last response.",
    )
    return outcome


async def _measured(run: Run, size: _Size, nodes: int) -> _Samples:
    samples = _Samples()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aa-")))
        server = await stack.enter_async_context(ApiServer(tokens=_TOKENS))
        http = await stack.enter_async_context(aiohttp.ClientSession())
        with run.doing(f"fill a cluster of {nodes:,} nodes"):
            await settle(server, nodes, run.seed)
        for number in run.steps(f"starts with {nodes:,} nodes", size.starts):
            read_s, read_bytes = await _read_lists(http, server)
            samples.read_s.append(read_s)
            samples.read_mb = read_bytes / 1e6
            server.requests.clear()
            async with _started(server, folder, samples) as url:
                if nodes and number == size.starts - 1:
                    samples.decided = await _decide(http, server, url, nodes, size.decisions)
    return samples


@asynccontextmanager
async def _started(server: ApiServer, folder: Path, samples: _Samples) -> AsyncIterator[str]:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    kubeconfig = write_kubeconfig(folder / "kubeconfig.json", server.url, "ours")
    command = allocator_command(BIN / "ascend-allocator", kubeconfig=kubeconfig, address=f"127.0.0.1:{port}")
    program = SandboxProgram("ascend-allocator", command, folder / "allocator.log")
    started_s = time.perf_counter()
    await program.start()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while not await is_ready(url):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(_POLL_S)
        samples.ready_s.append(time.perf_counter() - started_s)
        samples.cpu_s.append(cpu_of_pid(program.pid))
        samples.peak_mib.append(peak_mib(program.pid))
        samples.requests.append(_ours(server).total())
        await asyncio.sleep(1.0)
        samples.rss_mib.append(rss_mib(program.pid))
        yield url
    finally:
        await program.stop()


async def _decide(http: aiohttp.ClientSession, server: ApiServer, url: str, nodes: int, count: int) -> Counter[str]:
    """Place pods as kube-scheduler would."""
    names = [node_name(number) for number in range(nodes)]
    pods = [await server.create(pod_manifest(f"asks-{number}", 1)) for number in range(count)]
    await asyncio.sleep(_QUIET_S)
    server.requests.clear()
    for pod in pods:
        meta = pod["metadata"]
        question = {"Pod": pod, "Nodes": None, "NodeNames": names}
        (node,) = (await _ask(http, f"{url}/scheduler/filter", question))["NodeNames"]
        binding = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        answer = await _ask(http, f"{url}/scheduler/bind", binding)
        assert not answer["Error"], answer["Error"]
    await asyncio.sleep(_QUIET_S)
    return _ours(server)


async def _ask(http: aiohttp.ClientSession, url: str, question: dict[str, Any]) -> Any:
    async with http.post(url, json=question) as response:
        return await response.json()


class _ListMeta(msgspec.Struct, rename="camel"):
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct):
    metadata: _ListMeta


async def _read_lists(http: aiohttp.ClientSession, server: ApiServer) -> tuple[float, int]:
    """Return seconds and bytes of reading the same lists as the allocator, without decoding them."""
    selector = {"labelSelector": ",".join(f"{key}={value}" for key, value in LABELS.items())}
    lists = {NODES.path(): {}, PODS.path(): {}, CONFIG_MAPS.path(namespace=NAMESPACE): selector}
    headers = {"Authorization": "Bearer mine"}
    started_s, read_bytes = time.perf_counter(), 0
    for path, selected in lists.items():
        query = {**selected, "limit": str(PAGE_SIZE)}
        while True:
            async with http.get(f"{server.url}{path}", params=query, headers=headers) as response:
                assert response.status == 200
                body = await response.read()
            read_bytes += len(body)
            query["continue"] = msgspec.json.decode(body, type=_List).metadata.continue_
            if not query["continue"]:
                break
    return time.perf_counter() - started_s, read_bytes


def _ours(server: ApiServer) -> Counter[str]:
    return Counter({what: count for (user, what), count in server.requests.items() if user == _OURS})


def _add_rows(shown: Table, decided: Table, size: _Size, nodes: int, samples: _Samples) -> None:
    shown.add_row(
        *(f"{nodes:,}", f"{nodes * PODS_PER_NODE:,}", f"{samples.read_mb:.1f}"),
        *(f"{p50(samples.ready_s):.2f}", f"{max(samples.ready_s):.2f}", f"{p50(samples.read_s):.2f}"),
        *(f"{p50(each):.{digits}f}" for each, digits in ((samples.cpu_s, 2), (samples.rss_mib, 0))),
        *(f"{p50(samples.peak_mib):.0f}", f"{p50(samples.requests):.0f}"),
    )
    if samples.decided:
        each = samples.decided.total() / size.decisions
        which = ", ".join(f"{count:,} {what}" for what, count in samples.decided.most_common())
        decided.add_row(f"{nodes:,}", f"{size.decisions:,}", f"{each:.2f}", which)
