"""Decides when the driver is initialized again because cards are missing in its list.

For as long as the reference waits for cards at its start, the waiting times double up to a minute; later they are long,
because readings pause while the driver is initialized (docs/spec/dcmi.md#start).
"""

import time
from collections.abc import Callable, Hashable

from ascend.rate_limiters import Backoff

LIMIT_S = 600.0
"""The reference's ``deviceResetTimeout``: how long it waits for all cards."""

FIRST_S, FAST_LIMIT_S, SLOW_S = 1.0, 60.0, 600.0
"""The first waiting time, the longest one within the limit, and those after it."""


class Renewal:
    """The waiting times between two initializations.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._backoff = Backoff(FIRST_S, FAST_LIMIT_S)
        self._lacking: Hashable = None
        self._since_s = 0.0

    def wait_s(self, lacking: Hashable) -> float:
        """Return how long to wait until the next initialization.

        Args:
            lacking: what is missing; if that changes, the waiting times start over.
        """
        if lacking != self._lacking:
            self._lacking, self._since_s = lacking, self._now_s()
            self._backoff.reset()
        return self._backoff.next_s() if self._now_s() < self._since_s + LIMIT_S else SLOW_S

    def reset(self) -> None:
        """Note that nothing is missing."""
        self._lacking = None
