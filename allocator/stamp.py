"""The time of a decision, as written on the pod: strictly increasing, also across restarts and clock corrections.

The device plugin hands pods of equal size their chips in this order (spec/scheduling.md §1.6), so no two may be equal.
"""

from collections.abc import Callable, Iterable

DAY_NS = 24 * 3600 * 10**9


class Stamps:
    """Gives out decision times.

    Args:
        now_ns: the wall clock, Unix nanoseconds.
        written: the times that live pods carry, asked for once, when the first stamp is needed.
    """

    def __init__(self, now_ns: Callable[[], int], written: Callable[[], Iterable[int]]) -> None:
        self._now_ns = now_ns
        self._written = written
        self._last: int | None = None

    def next(self) -> int:
        """A time later than all before, and not earlier than the clock."""
        now_ns = self._now_ns()
        if self._last is None:
            # A pod's author may write anything; a time far ahead would push every later one towards CLAIMED.
            self._last = max((time for time in self._written() if time < now_ns + DAY_NS), default=0)
        self._last = max(now_ns, self._last + 1)
        return self._last
