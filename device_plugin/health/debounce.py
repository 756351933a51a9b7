"""The duration rule: a fault counts once it has lasted, and is over once it has been gone for long (§4.4)."""

import math

from device_plugin.health.fault_rules import DurationRule
from device_plugin.health.snapshot import Moment


class Debounce:
    """One fault of one chip under one duration rule.

    Both ways the time must have been *exceeded* (spec/node-agent.md §4.4).

    Args:
        rule: the rule.
    """

    __slots__ = ("_counts", "_present", "_turned", "alarm_ms", "faulty", "rule")

    def __init__(self, rule: DurationRule) -> None:
        self.rule = rule
        self.faulty = False
        """The debounced state."""
        self.alarm_ms = 0
        """When it became faulty, in Unix milliseconds."""
        self._present = False
        self._turned: Moment | None = None  # since when the code's presence contradicts the state
        self._counts = True

    @classmethod
    def restored(cls, rule: DurationRule, alarm_ms: int) -> "Debounce":
        """One that was faulty before a restart; the fault counts as present until it is seen to be gone."""
        debounce = cls(rule)
        debounce.faulty, debounce._present, debounce.alarm_ms = True, True, alarm_ms
        return debounce

    def turn(self, *, present: bool, at: Moment, counts: bool = True) -> None:
        """The code came or went; ``advance`` up to this moment comes first.

        Args:
            present: it came.
            at: when.
            counts: it came now, and was not merely found to be there.
        """
        if present == self._present:
            return
        self._present = present
        self._turned = at if present != self.faulty else None
        if present:
            self._counts = counts

    def advance(self, now_s: float) -> Moment | None:
        """Let time pass; the moment at which the state changed, if it did."""
        due = self._due()
        if due is None or now_s <= due.mono_s:
            return None
        self._turned = None
        self.faulty = self._present
        if self.faulty:
            self.alarm_ms = due.wall_ms
        return due

    @property
    def is_new(self) -> bool:
        """The fault came while it was watched, so it counts as an occurrence."""
        return self._counts

    def next_s(self) -> float | None:
        """The earliest time at which the state changes by itself."""
        due = self._due()
        return None if due is None else math.nextafter(due.mono_s, math.inf)

    def _due(self) -> Moment | None:
        if self._turned is None:
            return None
        return self._turned.after(self.rule.recover_s if self.faulty else self.rule.fault_s)
