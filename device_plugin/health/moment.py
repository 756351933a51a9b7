"""The time by which the health of chips is judged: on both clocks, and only while this process ran.

A process can stand still while time passes: it is suspended, its machine is paused, its memory is swapped out, or its
CPU limit is used up. Nobody read the chips then, so that time says nothing about them: it is not counted.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

TICK_S = 0.25
"""Seconds between two ticks of the event loop."""

LATE_S = 1.0
"""A tick that is later than this shows that the process stood still."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """A point in time: rules compare the monotonic clock, reports show the wall clock.

    Attributes:
        mono_s: monotonic seconds; only differences are meaningful.
        wall_ms: Unix milliseconds.
    """

    mono_s: float
    wall_ms: int

    def after(self, seconds: float) -> "Moment":
        """Return the moment this many seconds later."""
        return Moment(self.mono_s + seconds, self.wall_ms + round(seconds * 1000))


def present_moment() -> Moment:
    """Return the present time on both clocks."""
    return Moment(time.monotonic(), time.time_ns() // 1_000_000)


class RunningTime:
    """A monotonic clock that stands still while the event loop does; it may be read by any thread.

    Args:
        now_s: a monotonic clock that does not.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._ticked: tuple[float, float] | None = None  # the last tick on that clock and on this one

    def now_s(self) -> float:
        """Return the seconds in which the process ran; before the first tick all count."""
        now_s = self._now_s()
        if (ticked := self._ticked) is None:
            return now_s
        real_s, running_s = ticked
        return running_s + min(now_s - real_s, LATE_S)

    def moment(self) -> Moment:
        """Return the present time."""
        return Moment(self.now_s(), time.time_ns() // 1_000_000)

    def tick(self) -> float:
        """Note that the event loop turns; return for how many seconds it stood still."""
        running_s, now_s = self.now_s(), self._now_s()
        before, self._ticked = self._ticked, (now_s, running_s)
        return max(now_s - before[0] - LATE_S, 0.0) if before is not None else 0.0

    async def run(self, stood_still: Callable[[float], None]) -> None:
        """Tick until cancelled.

        Args:
            stood_still: receives the seconds for which the event loop stood still, if it did.
        """
        while True:
            if still_s := self.tick():
                stood_still(still_s)
            await asyncio.sleep(TICK_S)
