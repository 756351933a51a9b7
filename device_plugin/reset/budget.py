"""How often a group of chips may be reset: a limit per hour, and a wait after each failure that doubles."""

import math
from collections.abc import Iterable

from ascend.rate_limiters import doubled_s

HOUR_S = 3600.0
FIRST_S = 60.0
"""The wait after the first failure."""


class ResetBudget:
    """The resets of one group.

    Args:
        per_hour: how many resets there may be within an hour.
        earlier: when it was reset before, as seconds of the clock that the methods are called with.
    """

    def __init__(self, per_hour: int, earlier: Iterable[float] = ()) -> None:
        self._per_hour = per_hour
        self._resets = sorted(earlier)
        self._failures = 0
        self._failed_s = -math.inf

    @property
    def resets(self) -> tuple[float, ...]:
        """When it was reset within the last hour, as far as that matters."""
        return tuple(self._resets)

    def spend(self, now_s: float) -> None:
        """Count a reset."""
        self._resets = [reset for reset in self._resets if reset > now_s - HOUR_S]
        self._resets.append(now_s)

    def give_back(self) -> None:
        """Forget the last reset that was counted: the driver was not called for it."""
        self._resets.pop()

    def on_failure(self, now_s: float) -> None:
        """Count a failure: the last reset did not end the fault."""
        self._failures, self._failed_s = self._failures + 1, now_s

    def on_success(self) -> None:
        """Forget the failures."""
        self._failures = 0

    def is_spent(self, now_s: float) -> bool:
        """Return whether the limit is reached."""
        return sum(reset > now_s - HOUR_S for reset in self._resets) >= self._per_hour

    def due_s(self, now_s: float) -> float:
        """Return when the next reset may be, at the earliest now."""
        due_s = max(now_s, self._failed_s + doubled_s(FIRST_S, self._failures, HOUR_S))
        if self.is_spent(now_s):
            recent = [reset for reset in self._resets if reset > now_s - HOUR_S]
            due_s = max(due_s, recent[-self._per_hour] + HOUR_S)
        return due_s
