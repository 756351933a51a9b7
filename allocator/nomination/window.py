"""The nominated pods that the scheduler has not filtered yet; no I/O."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from allocator.nomination.nomination import Nomination

AHEAD: Final = 16
"""So many nominations should have been seen ahead of the scheduler, whose informer may be behind that of the
allocator."""


class Window:
    """Nominated pods that were not filtered, in the order of their decisions.

    Args:
        size: the most pods it should have.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._nominations: dict[str, Nomination] = {}

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

    def add(self, nomination: Nomination) -> None:
        """A pod was nominated."""
        self._nominations[nomination.uid] = nomination

    def remove(self, uid: str) -> None:
        """A pod was filtered, or is not nominated any more; no effect if it is not there."""
        self._nominations.pop(uid, None)

    def unseen(self) -> Iterator[str]:
        """The uids of the next pods whose nomination the informer has not seen yet."""
        return (each.uid for each in islice(self._nominations.values(), AHEAD) if not each.written)

    @property
    def is_short(self) -> bool:
        """Whether more pods should be nominated, as far as there are any."""
        return len(self) < min(AHEAD, self._size)
