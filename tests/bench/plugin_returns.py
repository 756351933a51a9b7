"""How soon the kubelet watches the plugin again after each way of losing the connection.

Watched means: registered, the kubelet's stream open and the list of chips sent on it, by the plugin's own clock. The
node's allocatable follows at the kubelet's next tick, up to a second later, and so does not belong to it.
"""

import asyncio
import itertools
import shutil
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from tests.bench.forgetful_kubelet import forget_once
from tests.bench.outcome import Run
from tests.bench.plugin_rig import PluginRig
from tests.bench.sightings import PATIENCE_S
from tests.conformance.node import PluginNode

_POLL_S: Final = 0.002
_METRIC: Final = "ascend_dp_last_list_sent_timestamp_seconds"
_STEADY_S: Final = 11.0
"""A registration that lasted this long counts as steady, and the next one may follow at once."""

NOTES: Final = (
    "watched: registered, and the list of chips sent on the kubelet's stream; allocatable follows at its 1 s tick.",
    "never watched: a fake kubelet on the real one's socket registers the plugin, and watches it the second time.",
)


async def measure_returns(run: Run, rig: PluginRig, count: int, add: Callable[[str, float], None]) -> None:
    """Lose the connection in every way except the kubelet's restart, which has rows of its own.

    Args:
        run: reports the progress.
        rig: the node, without pods that have chips.
        count: samples of each way.
        add: takes a row's name and seconds.
    """
    node = rig.node
    numbers = itertools.count(1)
    ways: dict[str, Callable[[], Awaitable[float]]] = {
        "own socket removed → watched": lambda: _socket_wiped(node),
        "folder recreated → watched": lambda: _folder_made_anew(node),
        "kubelet starts later → watched": lambda: _kubelet_comes_later(node),
        "old plugin ends → new one watched": lambda: _upgraded(node, f"device-plugin-{next(numbers)}"),
    }
    for row, lose in ways.items():
        for _ in run.steps(row, count):
            lost_s = await lose()
            add(row, await watched_s(node, lost_s) - lost_s)
            await asyncio.to_thread(node.wait_until_allocatable)
            if count > 1:
                await asyncio.sleep(_STEADY_S)
    for _ in run.steps("never watched", count):
        add("never watched → watched", await forget_once(node.node.device_plugin_dir))
    await asyncio.to_thread(node.restart_kubelet)
    await asyncio.to_thread(node.wait_until_allocatable)


async def watched_s(node: PluginNode, after_s: float) -> float:
    """Return when the kubelet was first sent the list of chips after a time; both in Unix seconds."""
    async with asyncio.timeout(PATIENCE_S):
        while (sent_s := await asyncio.to_thread(node.plugin.metric, _METRIC)) < after_s:  # noqa: ASYNC110 - another process's page
            await asyncio.sleep(0.05)
    return sent_s


def identity(path: Path) -> tuple[int, int] | None:
    """Identifies a file that may be recreated; None if there is none."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_ctime_ns


async def another(path: Path, before: tuple[int, int] | None) -> None:
    """Wait until the file was recreated."""
    async with asyncio.timeout(PATIENCE_S):
        while identity(path) in {before, None}:  # noqa: ASYNC110 - another process's file
            await asyncio.sleep(_POLL_S)


async def _socket_wiped(node: PluginNode) -> float:
    (socket,) = node.plugin_sockets()
    lost_s = time.time()
    socket.unlink()
    return lost_s


async def _folder_made_anew(node: PluginNode) -> float:
    await asyncio.to_thread(node.node.kubelet.stop)
    folder = node.node.device_plugin_dir
    # At once, because the plugin may be creating another socket in the folder.
    await asyncio.to_thread(shutil.rmtree, folder.rename(folder.with_name("replaced")))
    return await _kubelet_started(node)


async def _kubelet_comes_later(node: PluginNode) -> float:
    await asyncio.to_thread(node.plugin.process.stop)
    await asyncio.to_thread(node.node.kubelet.stop)
    (node.node.device_plugin_dir / "kubelet.sock").unlink(missing_ok=True)
    await asyncio.to_thread(node.plugin.process.start)
    await asyncio.to_thread(node.wait_until, lambda: "kubelet.sock" in node.plugin.problems(), "it waits for it")
    return await _kubelet_started(node)


async def _kubelet_started(node: PluginNode) -> float:
    """Start the kubelet; return when its socket appeared."""
    socket = node.node.device_plugin_dir / "kubelet.sock"
    async with asyncio.TaskGroup() as tasks:
        before = identity(socket)
        tasks.create_task(asyncio.to_thread(node.node.start_kubelet))
        await another(socket, before)
        return time.time()  # the block ends once the kubelet is ready


async def _upgraded(node: PluginNode, name: str) -> float:
    old, new = node.plugin, node.new_plugin(name)
    await asyncio.to_thread(new.process.start)
    log = new.process.log
    await asyncio.to_thread(node.wait_until, lambda: "waiting for the lock" in log.read_text(), "the new one waits")
    node.plugin = new
    ended_s = time.time()
    await asyncio.to_thread(old.process.stop)
    return ended_s
