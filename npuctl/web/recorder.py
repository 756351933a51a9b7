"""Records the history: what the pages show, as it changes."""

import asyncio
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from allocator.state.location import Location
from ascend.chips import parse_chip_name
from ascend.turn import Turn
from npuctl.history.intervals import MOST_BEHIND, WAITING, IntervalKind, Key, KeyState, WaitDetail, WaitReason, cut
from npuctl.history.reader import HistoryReader
from npuctl.history.store import HistoryStore, NotRecorded
from npuctl.queue.command import requests, why
from npuctl.queue.entries import QueueEntry
from npuctl.topo.nodes import ChipView, NodeView
from npuctl.web.hub import Hub
from npuctl.web.live import KeptChips, Tile, tile_of

BATCH_S: Final = 2.0
"""Changes of this time are written together."""

_ANYWAY: Final = 10
"""After so many of these without a change it is written that there was none."""

LIMITED: Final = "limited"
"""The detail of a fault with which some pods still get the chip."""

_RETRY: Final = 15
"""After so many of these a history that can't be written is tried again."""


class HistoryRecorder:
    """Follows a hub as an open page does.

    Args:
        hub: what is recorded.
        store: where.

    Attributes:
        reader: answers from what is recorded.
        trouble: why nothing is recorded, a sentence; empty if all is.
    """

    def __init__(self, hub: Hub, store: HistoryStore) -> None:
        self._hub = hub
        self._store = store
        self.reader = HistoryReader(store.path)
        self._thread = ThreadPoolExecutor(1, "history")
        self._nodes: set[str] = set()
        self._waits = False
        self._first = asyncio.Event()
        self.trouble = ""
        hub.viewers.add(self)

    def on_tiles(self, _seq: int, tiles: list[Tile], gone: list[str]) -> None:
        """Nodes have changed, or are gone."""
        self._nodes.update(tile[0] for tile in tiles)
        self._nodes.update(gone)

    def on_waiting(self) -> None:
        """The queue was decided on again."""
        self._waits = True
        self._first.set()

    async def run(self) -> None:
        """Record until cancelled."""
        await self._first.wait()
        try:
            passed = _ANYWAY
            while True:
                if passed >= (_RETRY if self.trouble else _ANYWAY) or (
                    not self.trouble and (self._nodes or self._waits)
                ):
                    await self.record()
                    passed = 0
                await asyncio.sleep(BATCH_S)
                passed += 1
        finally:
            self._thread.submit(self._store.close)
            self._thread.shutdown()

    async def record(self) -> None:
        """Record what has changed."""
        now_s = self._hub.live.source.at_present().now_ns // 10**9
        views, turn = self._hub.live.views, Turn()
        everything = not self._store.goes_on(now_s)
        names = list(views) if everything else list(self._nodes)
        entries = self._hub.waiting.entries if everything or self._waits else None
        self._nodes, self._waits = set(), False
        observed: dict[str, dict[Key, KeyState]] = {}
        for name in names:
            await turn.share()
            observed[name] = self._of_node(views[name]) if name in views else {}
        if entries is not None:
            observed[WAITING] = dict(map(of_entry, entries))
        try:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store.record, now_s, observed)
        except NotRecorded as error:
            if str(error) != self.trouble:
                sys.stderr.write(f"npuctl web: {error}\n")
            self.trouble = str(error)
        else:
            self.trouble = ""

    def _of_node(self, view: NodeView) -> dict[Key, KeyState]:
        return dict(of_node(view, self._hub.live.location(view.node)))


def of_node(view: NodeView, location: Location) -> Iterable[tuple[Key, KeyState]]:
    """The state of a node, the faults of its chips, and the pods with their chips."""
    *head, _jobs, _chips = tile_of(view, location, KeptChips())
    numbers = [parse_chip_name(chip.name) for chip in view.chips]
    yield Key(IntervalKind.NODE, node=view.node), KeyState(msgspec.json.encode([*head, numbers]).decode())
    held: dict[str, list[str]] = {}
    for chip in view.chips:
        number = str(parse_chip_name(chip.name))
        if fault := _fault(chip):
            yield Key(IntervalKind.FAULT, node=view.node, name=number), KeyState(fault, LIMITED if chip.healthy else "")
        for holder in dict.fromkeys(holder for device in chip.devices for holder in device.holders):
            held.setdefault(holder, []).append(number)
    for pod, chips in held.items():
        yield Key(IntervalKind.RUNS, cut(view.jobs.get(pod, pod)), view.node, pod), KeyState(",".join(chips))


def _fault(chip: ChipView) -> str:
    if chip.health == "healthy" and chip.healthy:
        return ""
    why = [*chip.faults[:MOST_BEHIND], *([chip.cordon] if chip.cordon else [])]
    return cut(": ".join([chip.health, ", ".join(why)] if why else [chip.health]))


def of_entry(entry: QueueEntry) -> tuple[Key, KeyState]:
    """What is true of pods that wait."""
    key = Key(IntervalKind.WAITS, cut(entry.job), name="" if entry.gang else str(entry.priority))
    wait = WaitReason(entry.next.value, entry.reason, tuple(cut(job) for job in entry.behind[:MOST_BEHIND]))
    waiting = WaitDetail(entry.position, cut(requests(entry)), entry.since, cut(why(entry)))
    return key, KeyState(*(msgspec.json.encode(part).decode() for part in (wait, waiting)))
