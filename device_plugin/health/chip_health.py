"""The health of one chip: its faults, what the rules make of them, silence, damping and readmission."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from device_plugin.driver import ChipState, FaultEvent
from device_plugin.health.active_faults import ActiveFaults, FaultTransition
from device_plugin.health.bus_errors import BusErrorFilter
from device_plugin.health.damping import Damper, Damping
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.levels import CARD_DROP, NETWORK_CODES, Level
from device_plugin.health.snapshot import NO_CODE, FaultRecord, Moment, UpgradeReason, Verdict
from device_plugin.health.upgrades import Upgrades, raised

_READMISSION = "no fault any more, an operator has to readmit it"


@dataclass(frozen=True, slots=True)
class Policy:
    """What all chips are judged by.

    Attributes:
        rules: of the site.
        damping: of every recovery.
        stale_s: a chip not read for so long is not known to be healthy.
        manual: an operator readmits what has recovered.
    """

    rules: FaultRules
    damping: Damping
    stale_s: float
    manual: bool


@dataclass(frozen=True, slots=True)
class _Findings:
    """The faults of a chip at a moment, its own and its network's, each the most serious first."""

    own: tuple[FaultRecord, ...]
    network: tuple[FaultRecord, ...]
    level: Level
    network_level: Level
    bars_use: bool
    """One of its faults does, even where the most serious of them leaves a chip in use alone."""


class ChipHealth:
    """The health of one chip; ``settle`` comes before and after what is told of it."""

    __slots__ = (
        "_association",
        "_awaits",
        "_faults",
        "_network",
        "_network_awaits",
        "_presence",
        "_reserve",
        "_separated_ms",
        "_silence",
        "_upgrades",
        "cut",
        "discovered",
    )

    def __init__(self) -> None:
        self.discovered = False
        """It exists, or did; others are only known by what was restored."""
        self.cut = False
        """It is cut into virtual chips, so it can't be given whole."""
        self._presence = ActiveFaults()
        self._association = BusErrorFilter()
        self._upgrades = Upgrades()
        self._separated_ms: int | None = None  # by an operator
        self._faults = Damper()  # faults that bar any use
        self._reserve = Damper()  # faults that bar new use, the former included
        self._silence = Damper()
        self._network = Damper()
        self._awaits = False  # was unhealthy by a fault and has not been readmitted since
        self._network_awaits = False

    # What is told.

    def announce(self, event: FaultEvent, at: Moment, policy: Policy) -> None:
        """An event of this chip."""
        self._apply(self._presence.announce(event, at), policy)

    def read(self, state: ChipState, at: Moment, policy: Policy) -> None:
        """A reading started at this moment."""
        first = self._presence.read_s is None
        self._apply(self._presence.read(state, at), policy)
        if first:
            self._upgrades.agree(self._presence, at)

    def _apply(self, turns: Iterator[FaultTransition], policy: Policy) -> None:
        for turn in self._association.take(turns, policy.rules):
            self._upgrades.turn(turn, policy.rules)

    def configure(self, rules: FaultRules, at: Moment) -> None:
        """Other rules hold from now on."""
        for turn in self._association.configure(rules):
            self._upgrades.turn(turn, rules)
        self._upgrades.configure(rules, self._presence, at, hidden=self._association.hidden)

    @property
    def was_read(self) -> bool:
        """The driver has told of it."""
        return self._presence.read_s is not None

    def restore(self, reasons: Iterable[UpgradeReason], *, separated: bool, at: Moment, policy: Policy) -> None:
        """What was so before a restart. Who is not separated any more was released while nobody looked."""
        autofill = [why for why in reasons if why.kind == "FaultAutofill"]
        kept = [why for why in reasons if separated or why.level is not Level.MANUALLY_SEPARATE]
        self._upgrades.restore((why for why in kept if why.kind != "FaultAutofill"), policy.rules, at)
        if separated and (autofill or not self.is_separated):
            self._separated_ms = max((why.time_ms for why in autofill), default=at.wall_ms)

    def restore_waiting(self, *, own: bool, network: bool) -> None:
        """It awaited readmission before a restart."""
        self._awaits |= own
        self._network_awaits |= network

    def restore_harmless(self, codes: Iterable[int], rules: FaultRules) -> None:
        """These were reported as nothing that has to be handled before a restart, by the rules or by their events."""
        self._presence.recall(code for code in codes if code not in rules.chip)

    def separate(self, at: Moment) -> None:
        """An operator takes it out of use."""
        if not self.is_separated:
            self._separated_ms = at.wall_ms

    def release(self, now_s: float, policy: Policy) -> None:
        """An operator puts it back: at once where no other fault bars it."""
        before = self._findings(policy)
        self._separated_ms = None
        self._upgrades.release()
        self.settle(now_s, policy)
        if before.level is Level.MANUALLY_SEPARATE:
            self._faults.forgive()
            self._reserve.forgive()
            self._awaits = self._faults.bad or (self._awaits and self._reserve.bad)
        if before.network_level is Level.MANUALLY_SEPARATE:
            self._network.forgive()
            self._network_awaits = self._network.bad

    def readmit(self, *, own: bool, network: bool) -> None:
        """An operator readmits it; as long as it has faults there is nothing to readmit."""
        self._awaits = self._awaits and not (own and self.awaits)
        self._network_awaits = self._network_awaits and not (network and self.network_awaits)

    # What follows.

    def settle(self, now_s: float, policy: Policy) -> None:
        """Let time pass, and let the dampers see how things are."""
        for turn in self._association.advance(now_s):
            self._upgrades.turn(turn, policy.rules)
        self._upgrades.advance(now_s, policy.rules)
        found = self._findings(policy)
        silent = self._is_silent(now_s, policy)
        damping = policy.damping
        # While nothing is read, nothing is read to be better.
        network_bad = found.network_level.bars_network or (silent and self._network.bad)
        self._network.feed(bad=network_bad, now_s=now_s, damping=damping)
        if self._presence.read_s is not None:
            # Before, it is not healthy anyway; a chip that is found healthy is so at once.
            self._faults.feed(bad=found.bars_use, now_s=now_s, damping=damping)
            self._reserve.feed(bad=found.level.bars_new_use, now_s=now_s, damping=damping)
            self._silence.feed(bad=silent, now_s=now_s, damping=damping)
        self._awaits = policy.manual and (self._awaits or self._faults.bad)
        self._network_awaits = policy.manual and (self._network_awaits or self._network.bad)

    def _is_silent(self, now_s: float, policy: Policy) -> bool:
        return self._presence.read_s is None or now_s >= self._presence.read_s + policy.stale_s

    def next_s(self, now_s: float, policy: Policy) -> float | None:
        """The earliest time at which anything changes by itself, after ``settle``."""
        dampers = (self._faults, self._reserve, self._silence, self._network)
        times = [self._association.next_s(), self._upgrades.next_s(policy.rules)]
        times += [damper.due_s(policy.damping) for damper in dampers]
        if self._presence.read_s is not None and not self._is_silent(now_s, policy):
            times.append(self._presence.read_s + policy.stale_s)
        return min((time for time in times if time is not None), default=None)

    @property
    def is_separated(self) -> bool:
        """It is on the list of chips that an operator has to put back."""
        return any(why.level is Level.MANUALLY_SEPARATE for why in self.reasons())

    @property
    def awaits(self) -> bool:
        """Its faults are gone, and an operator has not readmitted it."""
        return self._awaits and not (self._faults.bad or self._reserve.bad)

    @property
    def network_awaits(self) -> bool:
        """The same for its network."""
        return self._network_awaits and not self._network.bad

    def reasons(self) -> tuple[UpgradeReason, ...]:
        """Why its faults are more serious than their codes, sorted."""
        reasons = self._upgrades.reasons()
        if self._separated_ms is None:
            return reasons
        return UpgradeReason(NO_CODE, Level.MANUALLY_SEPARATE, "FaultAutofill", self._separated_ms), *reasons

    def _findings(self, policy: Policy) -> _Findings:
        upgrades = raised(self._upgrades.reasons())
        own: list[FaultRecord] = []
        network: list[FaultRecord] = []
        seen = self._presence.codes.keys() - self._association.hidden
        for code in upgrades.keys() | seen:
            record = self._record(code, upgrades.get(code), policy.rules)
            (network if code in NETWORK_CODES else own).append(record)
        for records in (own, network):
            records.sort(key=lambda record: (-record.level, record.code))
        levels = [record.level for record in own]
        if self._separated_ms is not None:
            levels.append(Level.MANUALLY_SEPARATE)
        return _Findings(
            own=tuple(own),
            network=tuple(network),
            level=max(levels, default=Level.NORMAL),
            network_level=max((record.level for record in network), default=Level.NORMAL),
            bars_use=any(level.bars_use for level in levels),
        )

    def _record(self, code: int, upgrade: tuple[Level, int] | None, rules: FaultRules) -> FaultRecord:
        """A fault as reported: where a rule made it more serious, with the rule's level and time (§5.2)."""
        since = self._presence.codes.get(code)
        level, since_ms = Level.NORMAL, 0
        if since is not None:
            level, since_ms = rules.level(code, self._presence.severity(code)), since.wall_ms
        if upgrade is not None and upgrade[0] >= level:
            level, since_ms = upgrade
        return FaultRecord(code, rules.spell(code), since_ms, level)

    def verdict(self, now_s: float, policy: Policy, *, used: bool) -> Verdict:
        """Whether it is fit for use, after ``settle``; a fault that bars new use leaves a chip in use alone."""
        found = self._findings(policy)
        # Who was unhealthy by a fault has to be readmitted; a chip in use was not.
        read = self._presence.read_s is not None
        self._awaits |= policy.manual and read and self._reserve.bad and not used
        reason, sentence = self._why(found, now_s, policy, used=used)
        network = self._why_network(found, policy)
        sentences = [sentence, network and f"network: {network}"]
        return Verdict(
            healthy=not reason,
            network_healthy=not network,
            level=found.level,
            network_level=found.network_level,
            faults=found.own,
            network_faults=found.network,
            reason=reason,
            sentence="; ".join(each for each in sentences if each),
        )

    def _why(self, found: _Findings, now_s: float, policy: Policy, *, used: bool) -> tuple[str, str]:
        """Why the chip is not healthy, in a word and a sentence; empty where it is."""
        if found.bars_use or (found.level.bars_new_use and not used):
            return _why_barred(found)
        if self.cut:
            return "CutIntoVirtual", "it is cut into virtual chips"
        if self._presence.read_s is None:
            return "DriverSilent", "the driver has not told of it yet"
        if self._is_silent(now_s, policy):
            return "DriverSilent", f"the driver has not told of it for {policy.stale_s:g} s"
        held = [self._faults, self._silence] if used else [self._faults, self._silence, self._reserve]
        if any(damper.bad for damper in held):
            return "Recovering", _recovering([damper for damper in held if damper.bad], policy)
        return ("AwaitingReadmission", _READMISSION) if self.awaits else ("", "")

    def _why_network(self, found: _Findings, policy: Policy) -> str:
        barring = [record for record in found.network if record.level.bars_network]
        if barring:
            return _named(barring)
        if self._network.bad:
            return _recovering([self._network], policy)
        return _READMISSION if self.network_awaits else ""


def _why_barred(found: _Findings) -> tuple[str, str]:
    barring = [record for record in found.own if record.level.bars_new_use]
    named = _named(barring)
    if found.level is Level.MANUALLY_SEPARATE:
        return "ManuallySeparated", ", ".join(filter(None, (named, "an operator has to put it back into use")))
    if any(record.code == CARD_DROP for record in barring):
        return "CardDropped", f"it does not answer any more: {named}"
    return "Fault", named


def _named(records: Iterable[FaultRecord]) -> str:
    return ", ".join(f"{record.name} ({record.level.wire})" for record in records)


def _recovering(dampers: Iterable[Damper], policy: Policy) -> str:
    hold_s = max(damper.hold_s(policy.damping) for damper in dampers)
    return f"no fault any more, watched for {hold_s:g} s before it is used again"
