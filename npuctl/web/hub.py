"""What all open pages show: the tiles of the nodes and the queue, each kept current, and sent on as it changes."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from npuctl.web.answers import Answers, WaitingWork
from npuctl.web.live import LiveCluster, Tile, tile_of

QUEUE_S: Final = 1.0
"""The queue is decided on again so long after a change, or three times as long as that takes."""

_ANYWAY_S: Final = 30.0
"""Without a change, too: reports become old."""


class OpenPage(Protocol):
    """An open page."""

    def on_tiles(self, seq: int, tiles: list[Tile], gone: list[str]) -> None:
        """Nodes have changed, or are gone."""

    def on_waiting(self) -> None:
        """The queue was decided on again."""


class Hub:
    """What the pages have in common.

    Args:
        live: the cluster.

    Attributes:
        answers: what is asked of the cluster.
        waiting: the queue.
        viewers: the open pages.
        has_read: whether the cluster has been read.
    """

    def __init__(self, live: LiveCluster) -> None:
        self.live = live
        self.answers = Answers(live)
        self.waiting = WaitingWork()
        self.has_read = False
        self.viewers: set[OpenPage] = set()
        self._seq = 0
        self._changed = asyncio.Event()

    def snapshot(self) -> dict[str, Any]:
        """All tiles, as of a number; changes of later numbers follow."""
        return {"seq": self._seq, "tiles": self._tiles(sorted(self.live.views))}

    def on_changed(self, names: Sequence[str]) -> None:
        """Nodes have changed, or pods that wait."""
        self._changed.set()
        if names:
            self._send(names)

    def _send(self, names: Sequence[str]) -> None:
        self._seq += 1
        known = [name for name in names if name in self.live.views]
        tiles, gone = self._tiles(known), [name for name in names if name not in self.live.views]
        for viewer in list(self.viewers):
            viewer.on_tiles(self._seq, tiles, gone)

    def _tiles(self, names: Iterable[str]) -> list[Tile]:
        views, kept = self.live.views, self.waiting.kept
        return [tile_of(views[name], self.live.location(name), kept) for name in names]

    async def run(self) -> None:
        """Keep the queue current until cancelled."""
        await self._changed.wait()
        while True:
            self._changed.clear()
            started_s, before = time.monotonic(), self.waiting.kept
            self.waiting = await self.answers.waiting()
            self.has_read = True
            kept = self.waiting.kept
            if changed := [name for name in before | kept if before.get(name) != kept.get(name)]:
                self._send(changed)
            for viewer in list(self.viewers):
                viewer.on_waiting()
            await asyncio.sleep(max(QUEUE_S, 3 * (time.monotonic() - started_s)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ANYWAY_S):
                    await self._changed.wait()
