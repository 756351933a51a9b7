"""How far nominations are ahead of the scheduler: the nominated pods to be filtered, and the scheduler's pace.

Answers to ``filter`` wait for nominations, no longer than is saved.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Final

from allocator.nomination.entry import Entry, State

AHEAD: Final = 16
"""So many nominations should have been seen ahead of the scheduler, whose informer may be behind that of the
allocator."""

_PER_FREE: Final = 3
"""The most pods of a namespace for each place that is free."""


class Window:
    """Nominated pods that were not filtered, in the order of their decisions.

    Pods with a seat take no room: their chips are reserved in any case.

    Args:
        size: the most pods without a seat that it should have.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._entries: dict[str, Entry] = {}
        self._alone = 0
        self._by_namespace: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, uid: str) -> bool:
        return uid in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    @property
    def has_room(self) -> bool:
        """Whether it has room for another pod."""
        return self._alone < self._size

    def has_room_for(self, namespace: str) -> bool:
        """Whether it has room for a pod of a namespace: so many of one must leave a third of their number free.

        Pods whose scheduler never filters them stay for some time: those of one namespace, or several, must not keep
        the pods of another out. Of one alone three quarters of the window are used.
        """
        own, left = self._by_namespace[namespace], self._size - self._alone
        return self.has_room and (own < _PER_FREE * left or own < AHEAD > self._alone)

    def add(self, entry: Entry) -> None:
        """A pod was nominated."""
        self.remove(entry.uid)
        self._entries[entry.uid] = entry
        if not entry.has_seat:
            self._alone += 1
            self._by_namespace[entry.namespace] += 1

    def remove(self, uid: str) -> None:
        """A pod was filtered, or is not nominated any more; no effect if it is not there."""
        entry = self._entries.pop(uid, None)
        if entry is not None and not entry.has_seat:
            self._alone -= 1
            self._by_namespace[entry.namespace] -= 1
            if not self._by_namespace[entry.namespace]:
                del self._by_namespace[entry.namespace]

    def unseen(self) -> Iterator[str]:
        """The uids of the next pods whose nomination the informer has not seen yet."""
        first = islice(self._entries.values(), AHEAD)
        return (entry.uid for entry in first if entry.state is State.ORDERED)

    @property
    def is_short(self) -> bool:
        """Whether more pods should be nominated, as far as there are any."""
        return len(self) < min(AHEAD, self._size)


LONGEST_S: Final = 0.1
"""A longer interval is not the duration of one filtering: 10,000 nodes take half of it."""
_WEIGHT: Final = 1 / 4


class Pace:
    """The scheduler's speed, measured by its calls of ``filter``, and how long they wait.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._answered_s: float | None = None
        self.all_nodes_s = 0.0
        """How long filtering a pod on all nodes takes, averaged over the last ones; 0 if unknown."""
        self._progress = asyncio.Event()

    def on_filter(self, *, all_nodes: bool) -> None:
        """The scheduler has called ``filter`` for a pod.

        Args:
            all_nodes: whether it has filtered all nodes, not only one.
        """
        since_s, self._answered_s = self._answered_s, None
        if since_s is not None and all_nodes:
            took_s = min(self._monotonic() - since_s, LONGEST_S)
            self.all_nodes_s += (took_s - self.all_nodes_s) * _WEIGHT

    def on_progress(self) -> None:
        """A nomination was seen by the informer, or given up."""
        self._progress.set()

    async def wait(self, is_behind: Callable[[], bool]) -> float:
        """Wait while nominations are behind, at most as long as it takes the scheduler to filter a pod on all nodes.

        Args:
            is_behind: called after each progress.

        Returns:
            How long it has waited, in seconds.
        """
        if not is_behind():
            return 0.0
        started_s = self._monotonic()
        with suppress(TimeoutError):
            async with asyncio.timeout(self.all_nodes_s):
                while is_behind():
                    self._progress.clear()
                    await self._progress.wait()
        return self._monotonic() - started_s

    def on_filter_answered(self, *, has_next: bool) -> None:
        """The call was answered.

        Args:
            has_next: whether a pod waits that the scheduler filters next. Without one it is idle until a pod is
                created, and the time until its next call says nothing about its speed.
        """
        self._answered_s = self._monotonic() if has_next else None
