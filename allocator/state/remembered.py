"""Answers that hold as long as what they were found from does."""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

_MOST: Final = 4096
"""So many answers are remembered at once; where nothing changes for long, somebody may ask ever new questions."""

Q = TypeVar("Q", bound=Hashable)
A = TypeVar("A")


class Remembered(Generic[Q, A]):
    """The answers to questions about one state, forgotten with it."""

    def __init__(self) -> None:
        self._state: Hashable = None
        self._answers: dict[Q, A] = {}

    def under(self, state: Hashable) -> dict[Q, A]:
        """The answers found in this state so far, by question; to be added to before anything else changes."""
        if state != self._state or len(self._answers) >= _MOST:
            self._state, self._answers = state, {}
        return self._answers
