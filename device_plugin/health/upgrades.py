"""Applies the frequency and duration rules to the faults of one chip."""

import math
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal, TypeAlias

from device_plugin.health.active_faults import ActiveFaults, FaultTransition
from device_plugin.health.fault_rules import DurationRule, FaultRules
from device_plugin.health.frequency import Counter
from device_plugin.health.levels import FaultLevel
from device_plugin.health.moment import Moment

UpgradeKind: TypeAlias = Literal["FaultFrequency", "FaultDuration", "FaultAutofill"]

NO_CODE = 0
"""The code of an upgrade reason without a fault: an operator separated the chip."""


@dataclass(frozen=True, slots=True)
class UpgradeReason:
    """Why a fault is more serious than its code; survives a restart of the plugin.

    See docs/spec/node-report.md#upgradefaultreason.

    Attributes:
        code: as the driver reports it; ``NO_CODE`` if an operator separated the chip.
        level: the level it was raised to.
        kind: the rule.
        time_ms: when, in Unix milliseconds.
    """

    code: int
    level: FaultLevel
    kind: UpgradeKind
    time_ms: int


class Debounce:
    """A fault of a chip under a duration rule: it counts after the alarm time and ends after the release time.

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
        self.is_new = True
        """Whether the fault counts as a new occurrence."""

    @classmethod
    def faulty_before_restart(cls, rule: DurationRule, alarm_ms: int) -> "Debounce":
        """Restore a fault from before a restart; the fault counts as present until a reading finds it cleared."""
        debounce = cls(rule)
        debounce.faulty, debounce._present, debounce.alarm_ms = True, True, alarm_ms
        return debounce

    def update(self, *, present: bool, at: Moment, counts: bool = True) -> None:
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
            self.is_new = counts

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

    def next_s(self) -> float | None:
        """Return the earliest time at which the debounced state changes by itself."""
        due = self._due()
        return None if due is None else math.nextafter(due.mono_s, math.inf)

    def _due(self) -> Moment | None:
        if self._changed is None:
            return None
        return self._changed.after(self.rule.recover_s if self.faulty else self.rule.fault_s)


class Upgrades:
    """The faults of one chip that rules raised to a higher level.

    For a code with duration rules the frequency rules count the alarms of the duration rule with the shortest time
    (docs/spec/faults.md#frequency-rule).
    """

    def __init__(self) -> None:
        self._debounces: dict[DurationRule, Debounce] = {}
        self._counters: dict[int, Counter] = {}

    def update(self, transition: FaultTransition, rules: FaultRules) -> None:
        """Apply a transition; ``advance`` up to now comes first."""
        lasting = rules.duration.get(transition.code, ())
        for rule in lasting:
            debounce = self._debounces.setdefault(rule, Debounce(rule))
            debounce.update(present=transition.present, at=transition.at, counts=transition.counts)
        if lasting:
            return
        if transition.present:
            self._occur(transition.code, transition.at, rules, counts=transition.counts)
        elif transition.code in self._counters:
            self._counters[transition.code].clear(transition.at)

    def advance(self, now_s: float, rules: FaultRules) -> None:
        """Let time pass."""
        flips = [(at, debounce) for debounce in self._debounces.values() if (at := debounce.advance(now_s)) is not None]
        for at, debounce in sorted(flips, key=lambda flip: flip[0]):
            code = debounce.rule.code
            if debounce.faulty:
                if debounce.rule is min(rules.duration[code], key=lambda rule: rule.fault_s):
                    self._occur(code, at, rules, counts=debounce.is_new)
            elif code in self._counters and not self._lasts(code):
                self._counters[code].clear(at)
        for code, counter in self._counters.items():
            counter.advance(now_s, rules.frequency.get(code, ()))

    def _occur(self, code: int, at: Moment, rules: FaultRules, *, counts: bool) -> None:
        frequent = rules.frequency.get(code, ())
        if frequent or code in self._counters:
            counter = self._counters.setdefault(code, Counter())
            counter.advance(at.mono_s, frequent)
            counter.occur(at, frequent, counts=counts)

    def _lasts(self, code: int) -> bool:
        return any(debounce.faulty for rule, debounce in self._debounces.items() if rule.code == code)

    def next_s(self, rules: FaultRules) -> float | None:
        """Return the earliest time at which something changes by itself."""
        times = [debounce.next_s() for debounce in self._debounces.values()]
        times += [counter.next_s(rules.frequency.get(code, ())) for code, counter in self._counters.items()]
        return min((time for time in times if time is not None), default=None)

    def reasons(self) -> tuple[UpgradeReason, ...]:
        """Return why each raised fault was raised, sorted."""
        if not (self._debounces or self._counters):
            return ()
        lasting = [
            UpgradeReason(rule.code, rule.level, "FaultDuration", debounce.alarm_ms)
            for rule, debounce in self._debounces.items()
            if debounce.faulty
        ]
        frequent = [
            UpgradeReason(code, level, "FaultFrequency", time_ms)
            for code, counter in self._counters.items()
            for level, time_ms in counter.upgrades.items()
        ]
        # Two duration rules with one code and level are one reason.
        return tuple(sorted({*lasting, *frequent}, key=lambda why: (why.code, why.level, why.kind, why.time_ms)))

    def restore(self, reasons: Iterable[UpgradeReason], rules: FaultRules, at: Moment) -> None:
        """Take over reasons from before a restart, except those that neither a rule nor an operator can release."""
        for why in reasons:
            if why.kind == "FaultDuration":
                for rule in rules.duration.get(why.code, ()):
                    if rule.level is why.level:
                        self._debounces[rule] = Debounce.faulty_before_restart(rule, why.time_ms)
            elif why.kind == "FaultFrequency":
                counter = self._counters.setdefault(why.code, Counter())
                counter.restore(why.level, why.time_ms, at)
                counter.keep(rules.frequency.get(why.code, ()))

    def agree(self, faults: ActiveFaults, at: Moment) -> None:
        """Compare restored faults with the first reading: they may have cleared."""
        for rule, debounce in self._debounces.items():
            debounce.update(present=faults.is_present(rule.code), at=at, counts=False)

    def configure(
        self, rules: FaultRules, faults: ActiveFaults, at: Moment, *, hidden: AbstractSet[int] = frozenset()
    ) -> None:
        """Apply other rules to the faults that are present and not hidden; none of them is a new occurrence."""
        lasting = {rule for of_code in rules.duration.values() for rule in of_code}
        self._debounces = {rule: debounce for rule, debounce in self._debounces.items() if rule in lasting}
        for code, since in faults.codes.items():
            for rule in rules.duration.get(code, ()):
                if rule not in self._debounces and faults.is_present(code) and code not in hidden:
                    self._debounces[rule] = Debounce(rule)
                    self._debounces[rule].update(present=True, at=since, counts=False)
        for code, counter in list(self._counters.items()):
            counter.keep(rules.frequency.get(code, ()))
            if code not in rules.frequency and not counter.upgrades:
                del self._counters[code]
            elif self._lasts(code) if code in rules.duration else faults.is_present(code):
                counter.occur(at, (), counts=False)
            elif counter.is_present:
                counter.clear(at)

    def release(self) -> None:
        """Forget the separation and all counts, because an operator puts the chip back into use."""
        for counter in self._counters.values():
            counter.release()


def raised(reasons: Iterable[UpgradeReason]) -> dict[int, tuple[FaultLevel, int]]:
    """Return, by code, the most serious level it was raised to and when, in Unix milliseconds."""
    levels: dict[int, tuple[FaultLevel, int]] = {}
    for why in reasons:
        levels[why.code] = max((why.level, why.time_ms), levels.get(why.code, (why.level, why.time_ms)))
    return levels
