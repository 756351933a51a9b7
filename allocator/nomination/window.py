"""The nominated pods that the scheduler has not filtered yet; no I/O."""

from collections import Counter
from collections.abc import Iterator
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
