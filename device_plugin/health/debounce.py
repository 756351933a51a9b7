"""The duration rule: a fault counts once it has lasted, and ends once it has been clear for long enough.

See docs/spec/faults.md#duration-rule.
"""

import math

from device_plugin.health.fault_rules import DurationRule
from device_plugin.health.snapshot import Moment


class Debounce:
    """One fault of one chip under one duration rule.

    Both times must be *exceeded* (docs/spec/faults.md#duration-rule).

    Args:
        rule: the rule.
    """

    def __init__(self, rule: DurationRule) -> None:
        self.rule = rule
        self.faulty = False
        """The debounced state."""
        self.alarm_ms = 0
        """When it became faulty, in Unix milliseconds."""
        self._present = False
        self._changed: Moment | None = None  # since when the fault's presence contradicts the debounced state
        self._counts = True

    @classmethod
    def restored(cls, rule: DurationRule, alarm_ms: int) -> "Debounce":
        """Return one that was faulty before a restart; the fault counts as present until a reading finds it cleared."""
        debounce = cls(rule)
        debounce.faulty, debounce._present, debounce.alarm_ms = True, True, alarm_ms
        return debounce

    def feed(self, *, present: bool, at: Moment, counts: bool = True) -> None:
        """Apply a transition of the fault; ``advance`` up to this moment comes first.

        Args:
            present: True if the fault occurred.
            at: when.
            counts: whether it is a new occurrence.
        """
        if present == self._present:
            return
        self._present = present
        self._changed = at if present != self.faulty else None
        if present:
            self._counts = counts

    def advance(self, now_s: float) -> Moment | None:
        """Let time pass; return the moment at which the debounced state changed, None if it did not."""
        due = self._due()
        if due is None or now_s <= due.mono_s:
            return None
        self._changed = None
        self.faulty = self._present
        if self.faulty:
            self.alarm_ms = due.wall_ms
        return due

    @property
    def is_new(self) -> bool:
        """Whether the fault counts as a new occurrence."""
        return self._counts

    def next_s(self) -> float | None:
        """Return the earliest time at which the debounced state changes by itself."""
        due = self._due()
        return None if due is None else math.nextafter(due.mono_s, math.inf)

    def _due(self) -> Moment | None:
        if self._changed is None:
            return None
        return self._changed.after(self.rule.recover_s if self.faulty else self.rule.fault_s)
