"""Damping: what was bad is good again only after a while, and after a longer while each time it comes back."""

from dataclasses import dataclass

QUIET_HOLDS = 10
"""After so many of its holds without a relapse the past is forgotten."""


@dataclass(frozen=True, slots=True)
class Damping:
    """How long what was bad has to be good before it counts as good.

    Attributes:
        hold_s: the first time; doubles with each relapse. 0 switches damping off.
        limit_s: at most.
    """

    hold_s: float
    limit_s: float

    def hold_after(self, relapses: int) -> float:
        """How long after so many relapses."""
        # Where doubling has long passed any limit the power itself could not be represented.
        return min(self.hold_s * 2.0 ** min(relapses, 64), max(self.limit_s, self.hold_s))

    def quiet_after(self, relapses: int) -> float:
        """How long it must have been good for the next fault to be no relapse.

        At least the limit: whatever the script, within that time the returns to good number no more than the
        doublings that fit into it.
        """
        return max(QUIET_HOLDS * self.hold_after(relapses), self.limit_s)


class Damper:
    """One condition, damped: bad takes effect at once, good after the hold."""

    __slots__ = ("_clear_s", "_recovered_s", "_relapses", "bad")

    def __init__(self) -> None:
        self.bad = False
        """The damped condition."""
        self._clear_s: float | None = None  # while bad: since when the condition itself is good
        self._recovered_s: float | None = None  # while good: since when
        self._relapses = 0

    def feed(self, *, bad: bool, now_s: float, damping: Damping) -> None:
        """What the condition itself is now; time must not run backwards."""
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
        """When it will be good if the condition stays so; None where it is good, or the condition is bad."""
        return None if self._clear_s is None else self._clear_s + self.hold_s(damping)

    def hold_s(self, damping: Damping) -> float:
        """How long it is held this time."""
        return damping.hold_after(self._relapses)

    def forgive(self) -> None:
        """A person vouches for it: good at once where the condition is, and the past is forgotten."""
        self._recovered_s, self._relapses = None, 0
        if self._clear_s is not None:
            self.bad, self._clear_s = False, None
