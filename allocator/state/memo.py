"""Answers that are kept until their dependencies have another version. No I/O."""

from collections.abc import Hashable
from typing import Generic, TypeVar

_Key = TypeVar("_Key", bound=Hashable)
_Answer = TypeVar("_Answer")


class Memo(Generic[_Key, _Answer]):
    """The last answer for each key, with the version of all that it depends on besides the key.

    The tests of the allocator find each answer anew, and compare it with the answer that was kept.

    Args:
        most: the most answers; beyond it the least recently used one is dropped.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._answers: dict[_Key, tuple[object, _Answer]] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def recall(self, key: _Key, version: object) -> _Answer | None:
        """The answer that was kept for this version; None if it has to be found."""
        known = self._answers.pop(key, None)
        if known is None or known[0] != version:
            return None
        self._answers[key] = known
        return known[1]

    def keep(self, key: _Key, version: object, answer: _Answer) -> _Answer:
        """Keep an answer; returns it."""
        self._answers.pop(key, None)
        if len(self._answers) >= self._most:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = version, answer
        return answer
