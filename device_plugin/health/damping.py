"""Damping: a bad condition counts as good only after a hold time, which doubles with each relapse."""

from dataclasses import dataclass

from ascend.rate_limiters import doubled_s

QUIET_HOLDS = 10
"""After this many hold times without a relapse the earlier relapses no longer count."""


@dataclass(frozen=True, slots=True)
class Damping:
    """How long a bad condition must be good before it counts as good.

    Attributes:
        hold_s: the hold time without relapses; doubles with each relapse. 0 turns damping off.
        limit_s: the longest hold time.
    """

    hold_s: float
    limit_s: float

    def hold_after(self, relapses: int) -> float:
        """Return the hold time after this many relapses."""
        return doubled_s(self.hold_s, 1 + relapses, max(self.limit_s, self.hold_s))

    def quiet_after(self, relapses: int) -> float:
        """Return how long the condition must be good for the next fault not to count as a relapse.

        It is at least the limit, so the returns to good within the limit number no more than the doublings that fit
        into it.
        """
        return max(QUIET_HOLDS * self.hold_after(relapses), self.limit_s)


class Damper:
    """One damped condition: bad takes effect at once, good after the hold time."""

    def __init__(self) -> None:
        self.bad = False
        """The damped condition."""
        self._clear_s: float | None = None  # while damped bad: since when the condition itself is good
        self._recovered_s: float | None = None  # while damped good: since when
        self._relapses = 0

    def update(self, *, bad: bool, now_s: float, damping: Damping) -> None:
        """Apply the present condition; time must not run backwards."""
        if bad:
            if not self.bad and self._recovered_s is not None:
                quiet = now_s >= self._recovered_s + damping.quiet_after(self._relapses)
                self._relapses = 0 if quiet else self._relapses + 1
            self.bad, self._clear_s = True, None
        elif self.bad:
            if self._clear_s is None:
                self._clear_s = now_s
            due_s = self.due_s(damping)
            if due_s is not None and now_s >= due_s:
                self.bad, self._clear_s, self._recovered_s = False, None, now_s

    def due_s(self, damping: Damping) -> float | None:
        """Return when it becomes good if the condition stays good; None if it is good, or the condition is bad."""
        return None if self._clear_s is None else self._clear_s + self.hold_s(damping)

    def hold_s(self, damping: Damping) -> float:
        """Return the present hold time."""
        return damping.hold_after(self._relapses)

    def forgive(self) -> None:
        """Forget the relapses, and become good at once if the condition is good: an operator decided so."""
        self._recovered_s, self._relapses = None, 0
        if self._clear_s is not None:
            self.bad, self._clear_s = False, None
