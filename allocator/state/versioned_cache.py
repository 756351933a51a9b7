"""A cache of answers that are valid for one version of the state."""

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")


class VersionedCache(Generic[K, A]):
    """Answers by key, dropped when the state changes.

    Args:
        limit: the most answers kept: while the state stays unchanged, the number of different keys is unlimited.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._version: Hashable = None
        self._answers: dict[K, A] = {}

    def at(self, version: Hashable) -> dict[K, A]:
        """The answers found at this version so far; add to them before anything else changes."""
        if version != self._version or len(self._answers) >= self._limit:
            self._version, self._answers = version, {}
        return self._answers
