"""How far ahead of the scheduler a nomination has to be; no I/O."""

from collections.abc import Callable
from math import ceil, inf
from typing import Final

_BUSY_S: Final = 1.0
"""Filter calls that are further apart don't tell the scheduler's speed."""


class Pace:
    """The scheduler's speed.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._last_s = -inf
        self._interval_s = 0.0

    def filtered(self) -> None:
        """The scheduler has called ``filter`` for a pod."""
        now_s = self._monotonic()
        gap_s, self._last_s = now_s - self._last_s, now_s
        if gap_s < _BUSY_S:
            self._interval_s += (gap_s - self._interval_s) / 8

    def lead(self, latency_s: float) -> int:
        """How many pods the scheduler takes until a nomination that is decided now reaches it; at least one.

        Args:
            latency_s: the duration of the request that writes it.
        """
        # The pod that it filters now may take longer than the last ones.
        interval_s = max(self._interval_s, self._monotonic() - self._last_s)
        return max(1, ceil(latency_s / interval_s)) if interval_s > 0 else 1
