"""Answers that hold as long as what they were found from does."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_MOST: Final = 4096
"""Where nothing changes for long, somebody may ask ever new questions."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class Remembered(Generic[Q, A]):
    """The answers to questions about one state, forgotten with it.

    Args:
        most: so many at once; fewer where questions are large.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._state: Hashable = None
        self._answers: dict[Q, A] = {}

    def under(self, state: Hashable) -> dict[Q, A]:
        """The answers found in this state so far, by question; to be added to before anything else changes."""
        if state != self._state or len(self._answers) >= self._most:
            self._state, self._answers = state, {}
        return self._answers
