"""The frequency rule: a fault that occurs too often is raised until it has been clear for long enough.

See docs/spec/faults.md#frequency-rule.
"""

import math
from collections import deque
from collections.abc import Sequence

from device_plugin.health.fault_rules import FrequencyRule
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import Moment

MAX_TIMES = 100
"""The highest number of occurrences a rule can count (docs/spec/faults.md#rules-of-faultcustomizationjson)."""


class Counter:
    """Counts the occurrences of a chip's fault, and keeps the levels to which the fault was raised."""

    def __init__(self) -> None:
        self._occurrences: deque[float] = deque(maxlen=MAX_TIMES)
        self._total = 0
        self._counted: dict[FrequencyRule, int] = {}  # by rule, how many occurrences no longer count
        self._clear_s: float | None = None  # since when the fault is clear; None while it is present
        self.upgrades: dict[FaultLevel, int] = {}
        """The levels the fault was raised to, and when, in Unix milliseconds."""

    @property
    def is_present(self) -> bool:
        """Whether the fault is present."""
        return self._clear_s is None

    def restore(self, level: FaultLevel, time_ms: int, at: Moment) -> None:
        """Take over a level from before a restart; unless the fault is found again, it counts as clear since then."""
        self.upgrades[level] = time_ms
        last_s = at.mono_s - max(0, at.wall_ms - time_ms) / 1000
        self._clear_s = last_s if self._clear_s is None else max(self._clear_s, last_s)

    def occur(self, at: Moment, rules: Sequence[FrequencyRule], *, counts: bool) -> None:
        """Count an occurrence.

        Args:
            at: when.
            rules: the rules of its code.
            counts: whether it is a new occurrence.
        """
        self._clear_s = None
        if not counts:
            return
        self._occurrences.append(at.mono_s)
        self._total += 1
        for rule in rules:
            # A fault that is raised already is raised anew by every occurrence.
            if rule.level in self.upgrades or self._is_too_often(rule, at.mono_s):
                self.upgrades[rule.level] = at.wall_ms
                self._counted[rule] = self._total

    def _is_too_often(self, rule: FrequencyRule, now_s: float) -> bool:
        fresh = self._total - self._counted.get(rule, 0)
        enough = min(fresh, len(self._occurrences)) >= rule.times
        return enough and now_s - self._occurrences[-rule.times] <= rule.window_s

    def clear(self, at: Moment) -> None:
        """Note that the fault has cleared."""
        self._clear_s = at.mono_s

    def advance(self, now_s: float, rules: Sequence[FrequencyRule]) -> None:
        """Let time pass: remove the levels whose release time has been exceeded."""
        for level, due_s in self._releases(rules):
            if now_s > due_s:
                del self.upgrades[level]

    def next_s(self, rules: Sequence[FrequencyRule]) -> float | None:
        """Return the earliest time at which a level is removed."""
        dues = [math.nextafter(due_s, math.inf) for _, due_s in self._releases(rules)]
        return min(dues, default=None)

    def _releases(self, rules: Sequence[FrequencyRule]) -> list[tuple[FaultLevel, float]]:
        if self._clear_s is None or not self.upgrades:
            return []
        releases = []
        for level in self.upgrades:
            times = [rule.release_s for rule in rules if rule.level is level]
            known = [time for time in times if time is not None]
            if known and len(known) == len(times):
                releases.append((level, self._clear_s + max(known)))
        return releases

    def keep(self, rules: Sequence[FrequencyRule]) -> None:
        """Apply new rules: remove levels that no rule can release, except levels that an operator releases."""
        kept = {FaultLevel.MANUALLY_SEPARATE, *(rule.level for rule in rules)}
        self.upgrades = {level: time_ms for level, time_ms in self.upgrades.items() if level in kept}
        self._counted = {rule: total for rule, total in self._counted.items() if rule in rules}

    def release(self) -> None:
        """Forget the separation and the occurrences, because an operator puts the chip back into use."""
        self.upgrades.pop(FaultLevel.MANUALLY_SEPARATE, None)
        self._occurrences.clear()
