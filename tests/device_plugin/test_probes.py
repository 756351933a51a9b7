"""Startup, liveness and readiness: each failure changes the right probe and no other."""

import asyncio
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from ascend.annotations import REAL
from ascend.observe.probes import GRACE_S, loop_is_turning
from device_plugin.app import Plugin
from device_plugin.driver.simulated_file import SimulatedServer
from sandbox.cluster import save_server
from tests.device_plugin.api import running, until
from tests.device_plugin.whole import Whole, whole_node

Ask = Callable[[str], Awaitable[tuple[int, str]]]


def fetch(url: str, timeout_s: float = 5.0) -> tuple[int, str]:
    """Probe as the kubelet does, from another thread."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def ask(plugin: Plugin, path: str) -> tuple[int, str]:
    return await asyncio.to_thread(fetch, f"http://{plugin.http_address}{path}")


async def statuses(plugin: Plugin) -> tuple[int, ...]:
    return tuple([(await ask(plugin, path))[0] for path in ("/startupz", "/livez", "/readyz")])


async def answers(plugin: Plugin, path: str, status: int, words: str) -> None:
    """Wait for an answer."""
    async with asyncio.timeout(20.0):
        while True:
            found, text = await ask(plugin, path)
            if found == status and words in text:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def settled(folder: Path, **changes: Any) -> AsyncIterator[tuple[Whole, Plugin]]:
    async with whole_node(folder) as whole, whole.plugin(**changes) as plugin:
        await answers(plugin, "/startupz", 200, "")  # a kubelet does not send other probes before this one succeeds
        await answers(plugin, "/readyz", 200, "")
        yield whole, plugin


async def test_a_running_plugin_passes_all_probes(folder: Path) -> None:
    async with settled(folder) as (_, plugin):
        assert await statuses(plugin) == (200, 200, 200)


async def test_an_unverified_kubelet_is_told_while_pods_start_by_the_order_of_their_bindings(folder: Path) -> None:
    nothing = {"kubelet_pods_url": "https://127.0.0.1:1/pods", "kubelet_cert_dir": folder / "missing"}
    async with whole_node(folder) as whole, whole.plugin(**nothing) as plugin:
        await whole.bind("train", 0, 1)
        assert (await whole.claimed("train")).metadata.annotations[REAL] == "Ascend910-0,Ascend910-1"
        await answers(plugin, "/readyz", 503, "[-] kubelet's pods: no token is sent to https://127.0.0.1:1/pods")
        await answers(plugin, "/standbyz", 200, "")  # its first report may still be on the way


async def test_a_start_that_waits_for_a_missing_right_says_for_which(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.cluster.server.fail_next("GET", "/configmaps/", 403, times=1000)
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            await until(lambda: plugin.http_address)
            await answers(
                plugin, "/readyz", 503, "[-] start: the site's fault rules can't be read: injected failure 403"
            )
            await answers(plugin, "/livez", 200, "")


async def test_an_unregistered_plugin_is_live_but_not_started(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await whole.node.kubelet.stop()
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            await until(lambda: plugin.http_address)
            await answers(plugin, "/startupz", 503, "[-] kubelet: waiting for")
            assert (await ask(plugin, "/livez"))[0] == 200
            assert (await ask(plugin, "/readyz"))[0] == 503


async def test_a_broken_driver_makes_it_unready_but_stays_live(folder: Path) -> None:
    async with settled(folder) as (whole, plugin):
        server = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
        server.error = "dcmi_init: -8005"
        save_server(server, whole.node.state_file)
        await answers(plugin, "/readyz", 503, "[-] driver: dcmi_init: -8005")
        assert await statuses(plugin) == (200, 200, 503)


async def test_a_lost_registration_makes_it_unready_but_stays_live(folder: Path) -> None:
    async with settled(folder) as (whole, plugin):
        await whole.node.kubelet.stop()
        await answers(plugin, "/readyz", 503, "[-] kubelet:")
        assert await statuses(plugin) == (200, 200, 503)


async def test_a_blocked_event_loop_is_not_live(folder: Path) -> None:
    async with settled(folder) as (_, plugin):
        url = f"http://{plugin.http_address}/livez"
        outcome: list[object] = []

        def probe() -> None:
            try:
                outcome.append(fetch(url, timeout_s=0.2))
            except OSError as error:
                outcome.append(error)

        thread = threading.Thread(target=probe)
        thread.start()
        time.sleep(1.0)  # noqa: ASYNC251 - blocks the event loop on purpose
        await asyncio.to_thread(thread.join)
        assert isinstance(outcome[0], TimeoutError | urllib.error.URLError)


async def test_a_task_that_ended_unnoticed_is_not_live(folder: Path) -> None:
    async with settled(folder) as (_, plugin):
        (scanner,) = (
            task
            for task in asyncio.all_tasks()
            if getattr(task.get_coro(), "__qualname__", "") == "Scanner.run"  # the plugin has no other reference to it
        )
        scanner.cancel()
        await answers(plugin, "/livez", 503, "[-] scanner: its task has ended")


async def test_a_loop_that_no_longer_turns_is_not_live() -> None:
    now_s = asyncio.get_running_loop().time()
    assert loop_is_turning(lambda: now_s, lambda: 1.0)() is None
    assert loop_is_turning(lambda: now_s - GRACE_S - 2.0, lambda: 1.0)() is None
    problem = loop_is_turning(lambda: now_s - GRACE_S - 4.0, lambda: 1.0)()
    assert problem == "it has not turned for 34 s"


async def test_a_hanging_driver_does_not_stop_the_scanners_loop(folder: Path) -> None:
    async with settled(folder) as (whole, plugin):
        server = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
        server.delay_s = 30.0
        save_server(server, whole.node.state_file)
        await answers(plugin, "/readyz", 503, "[-] driver: the driver does not answer")
        assert (await ask(plugin, "/livez"))[0] == 200
