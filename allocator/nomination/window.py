"""The nominated pods that the scheduler has not filtered yet; no I/O."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Final

from allocator.nomination.nomination import Nomination

AHEAD: Final = 16
"""So many nominations should have been seen ahead of the scheduler, whose informer may be behind that of the
allocator."""

_PER_FREE: Final = 3
"""The most pods of a namespace for each place that is free."""


class Window:
    """Nominated pods that were not filtered, in the order of their decisions.

    Args:
        size: the most pods it should have.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._nominations: dict[str, Nomination] = {}
        self._by_namespace: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._nominations)

    def __contains__(self, uid: str) -> bool:
        return uid in self._nominations

    def __iter__(self) -> Iterator[str]:
        return iter(self._nominations)

    @property
    def has_room(self) -> bool:
        """Whether it has room for another pod."""
        return len(self) < self._size

    def has_room_for(self, namespace: str) -> bool:
        """Whether it has room for a pod of a namespace: so many of one must leave a third of their number free.

        Pods whose scheduler never filters them stay for some time: those of one namespace, or several, must not keep
        the pods of another out. Of one alone three quarters of the window are used.
        """
        own, left = self._by_namespace[namespace], self._size - len(self)
        return self.has_room and (own < _PER_FREE * left or own < AHEAD > len(self))

    def add(self, nomination: Nomination) -> None:
        """A pod was nominated."""
        self.remove(nomination.uid)
        self._nominations[nomination.uid] = nomination
        self._by_namespace[nomination.namespace] += 1

    def remove(self, uid: str) -> None:
        """A pod was filtered, or is not nominated any more; no effect if it is not there."""
        known = self._nominations.pop(uid, None)
        if known is not None:
            self._by_namespace[known.namespace] -= 1
            if not self._by_namespace[known.namespace]:
                del self._by_namespace[known.namespace]

    def unseen(self) -> Iterator[str]:
        """The uids of the next pods whose nomination the informer has not seen yet."""
        return (each.uid for each in islice(self._nominations.values(), AHEAD) if not each.written)

    @property
    def is_short(self) -> bool:
        """Whether more pods should be nominated, as far as there are any."""
        return len(self) < min(AHEAD, self._size)
