"""What the rules of frequency and duration make of one chip's faults."""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet

from device_plugin.health.active_faults import ActiveFaults, FaultTransition
from device_plugin.health.debounce import Debounce
from device_plugin.health.fault_rules import DurationRule, FaultRules
from device_plugin.health.frequency import Counter
from device_plugin.health.levels import Level
from device_plugin.health.snapshot import Moment, UpgradeReason


class Upgrades:
    """The faults of one chip that are more serious than their codes.

    A code with a duration rule is counted by the frequency rules each time that rule fires; with several, the quickest
    (spec/node-agent.md §4.3).
    """

    __slots__ = ("_counters", "_debounces")

    def __init__(self) -> None:
        self._debounces: dict[DurationRule, Debounce] = {}
        self._counters: dict[int, Counter] = {}

    def turn(self, turn: FaultTransition, rules: FaultRules) -> None:
        """A fault came or went; ``advance`` up to now comes first."""
        lasting = rules.duration.get(turn.code, ())
        for rule in lasting:
            debounce = self._debounces.setdefault(rule, Debounce(rule))
            debounce.turn(present=turn.present, at=turn.at, counts=turn.counts)
        if lasting:
            return
        if turn.present:
            self._came(turn.code, turn.at, rules, counts=turn.counts)
        elif turn.code in self._counters:
            self._counters[turn.code].went(turn.at)

    def advance(self, now_s: float, rules: FaultRules) -> None:
        """Let time pass."""
        flips = [(at, debounce) for debounce in self._debounces.values() if (at := debounce.advance(now_s)) is not None]
        for at, debounce in sorted(flips, key=lambda flip: flip[0]):
            code = debounce.rule.code
            if debounce.faulty:
                if debounce.rule is min(rules.duration[code], key=lambda rule: rule.fault_s):
                    self._came(code, at, rules, counts=debounce.is_new)
            elif code in self._counters and not self._lasts(code):
                self._counters[code].went(at)
        for code, counter in self._counters.items():
            counter.advance(now_s, rules.frequency.get(code, ()))

    def _came(self, code: int, at: Moment, rules: FaultRules, *, counts: bool) -> None:
        frequent = rules.frequency.get(code, ())
        if frequent or code in self._counters:
            counter = self._counters.setdefault(code, Counter())
            counter.advance(at.mono_s, frequent)
            counter.came(at, frequent, counts=counts)

    def _lasts(self, code: int) -> bool:
        return any(debounce.faulty for rule, debounce in self._debounces.items() if rule.code == code)

    def next_s(self, rules: FaultRules) -> float | None:
        """The earliest time at which something changes by itself."""
        times = [debounce.next_s() for debounce in self._debounces.values()]
        times += [counter.next_s(rules.frequency.get(code, ())) for code, counter in self._counters.items()]
        return min((time for time in times if time is not None), default=None)

    def reasons(self) -> tuple[UpgradeReason, ...]:
        """Every fault that was raised and why, sorted."""
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
        # Two duration rules of one code and level are one reason.
        return tuple(sorted({*lasting, *frequent}, key=lambda why: (why.code, why.level, why.kind, why.time_ms)))

    def restore(self, reasons: Iterable[UpgradeReason], rules: FaultRules, at: Moment) -> None:
        """What was raised before a restart; what no rule can ever forgive is dropped, but for an operator's part."""
        for why in reasons:
            if why.kind == "FaultDuration":
                for rule in rules.duration.get(why.code, ()):
                    if rule.level is why.level:
                        self._debounces[rule] = Debounce.restored(rule, why.time_ms)
            elif why.kind == "FaultFrequency":
                counter = self._counters.setdefault(why.code, Counter())
                counter.restore(why.level, why.time_ms, at)
                counter.keep(rules.frequency.get(why.code, ()))

    def agree(self, presence: ActiveFaults, at: Moment) -> None:
        """After the first reading: what was restored as present may be gone."""
        for rule, debounce in self._debounces.items():
            debounce.turn(present=presence.is_there(rule.code), at=at, counts=False)

    def configure(
        self, rules: FaultRules, presence: ActiveFaults, at: Moment, *, hidden: AbstractSet[int] = frozenset()
    ) -> None:
        """Other rules hold from now on: what is present and not hidden is judged anew, nothing of it counts as new."""
        lasting = {rule for each in rules.duration.values() for rule in each}
        self._debounces = {rule: debounce for rule, debounce in self._debounces.items() if rule in lasting}
        for code, since in presence.codes.items():
            for rule in rules.duration.get(code, ()):
                if rule not in self._debounces and presence.is_there(code) and code not in hidden:
                    self._debounces[rule] = Debounce(rule)
                    self._debounces[rule].turn(present=True, at=since, counts=False)
        for code, counter in list(self._counters.items()):
            counter.keep(rules.frequency.get(code, ()))
            if code not in rules.frequency and not counter.upgrades:
                del self._counters[code]
            elif self._lasts(code) if code in rules.duration else presence.is_there(code):
                counter.came(at, (), counts=False)
            elif counter.is_on:
                counter.went(at)

    def release(self) -> None:
        """An operator puts the chip back into use: its separation and all counters are forgotten."""
        for counter in self._counters.values():
            counter.release()


def raised(reasons: Iterable[UpgradeReason]) -> dict[int, tuple[Level, int]]:
    """By code, the most serious level it was raised to, and when, in Unix milliseconds."""
    levels: dict[int, tuple[Level, int]] = {}
    for why in reasons:
        levels[why.code] = max((why.level, why.time_ms), levels.get(why.code, (why.level, why.time_ms)))
    return levels
