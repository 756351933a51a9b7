"""The frequency rule: a fault that comes too often stays more serious until it has been gone for long (§4.3)."""

import math
from collections import deque
from collections.abc import Mapping, Sequence

from device_plugin.health.fault_rules import FrequencyRule
from device_plugin.health.levels import Level
from device_plugin.health.snapshot import Moment

MOST_TIMES = 100
"""No rule counts further (spec/node-agent.md §4.2)."""


class Counter:
    """How often one fault of one chip came, and what followed from it."""

    __slots__ = ("_cleared", "_gone_s", "_hits", "_total", "_upgrades")

    def __init__(self) -> None:
        self._hits: deque[float] = deque(maxlen=MOST_TIMES)
        self._total = 0
        self._cleared: dict[FrequencyRule, int] = {}  # by rule, how many hits count no more
        self._gone_s: float | None = None  # since when the fault is gone; None while it is there
        self._upgrades: dict[Level, int] = {}

    @property
    def upgrades(self) -> Mapping[Level, int]:
        """The levels the fault was raised to, and when, in Unix milliseconds; empty most of the time."""
        return self._upgrades

    @property
    def is_on(self) -> bool:
        """The fault is there."""
        return self._gone_s is None

    def restore(self, level: Level, time_ms: int, at: Moment) -> None:
        """It was raised to this level before a restart; unless it is found again, it has been gone since."""
        self._upgrades[level] = time_ms
        last_s = at.mono_s - max(0, at.wall_ms - time_ms) / 1000
        self._gone_s = last_s if self._gone_s is None else max(self._gone_s, last_s)

    def came(self, at: Moment, rules: Sequence[FrequencyRule], *, counts: bool) -> None:
        """The fault came.

        Args:
            at: when.
            rules: the rules of its code.
            counts: it came now, and was not merely found to be there.
        """
        self._gone_s = None
        if not counts:
            return
        self._hits.append(at.mono_s)
        self._total += 1
        for rule in rules:
            # Who is raised already is raised anew by every time it comes.
            if rule.level in self._upgrades or self._is_too_often(rule, at.mono_s):
                self._upgrades[rule.level] = at.wall_ms
                self._cleared[rule] = self._total

    def _is_too_often(self, rule: FrequencyRule, now_s: float) -> bool:
        fresh = self._total - self._cleared.get(rule, 0)
        return min(fresh, len(self._hits)) >= rule.times and now_s - self._hits[-rule.times] <= rule.window_s

    def went(self, at: Moment) -> None:
        """The fault went."""
        self._gone_s = at.mono_s

    def advance(self, now_s: float, rules: Sequence[FrequencyRule]) -> None:
        """Let time pass: forgive what has been gone for more than its rule's release time."""
        for level, due_s in self._releases(rules):
            if now_s > due_s:
                del self._upgrades[level]

    def next_s(self, rules: Sequence[FrequencyRule]) -> float | None:
        """The earliest time at which something is forgiven."""
        dues = [math.nextafter(due_s, math.inf) for _, due_s in self._releases(rules)]
        return min(dues, default=None)

    def _releases(self, rules: Sequence[FrequencyRule]) -> list[tuple[Level, float]]:
        if self._gone_s is None or not self._upgrades:
            return []
        releases = []
        for level in self._upgrades:
            times = [rule.release_s for rule in rules if rule.level is level]
            known = [time for time in times if time is not None]
            if known and len(known) == len(times):
                releases.append((level, self._gone_s + max(known)))
        return releases

    def keep(self, rules: Sequence[FrequencyRule]) -> None:
        """Other rules hold from now on: forget what no rule can ever forgive, but for what an operator can."""
        kept = {Level.MANUALLY_SEPARATE, *(rule.level for rule in rules)}
        self._upgrades = {level: time_ms for level, time_ms in self._upgrades.items() if level in kept}
        self._cleared = {rule: total for rule, total in self._cleared.items() if rule in rules}

    def release(self) -> None:
        """An operator puts the chip back into use: forget its separation and what was counted."""
        self._upgrades.pop(Level.MANUALLY_SEPARATE, None)
        self._hits.clear()
