"""The health of one chip: its faults, the rules applied to them, silence, damping and readmission."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from device_plugin.driver import NO_CARD, ChipFacts, ChipState, FaultEvent
from device_plugin.health.active_faults import ActiveFaults, FaultTransition
from device_plugin.health.bus_errors import BusErrorFilter
from device_plugin.health.damping import Damper, Damping
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.levels import CARD_DROP, NETWORK_CODES, FaultLevel
from device_plugin.health.lost_contact import LostContact
from device_plugin.health.moment import Moment
from device_plugin.health.snapshot import DOUBTS, Chip, EarlierState, FaultRecord
from device_plugin.health.upgrades import NO_CODE, UpgradeReason, Upgrades, raised

_READMISSION = "no fault, waiting for an operator to readmit it"


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """How all chips are judged.

    Attributes:
        rules: the site's fault rules.
        damping: of every recovery.
        stale_s: a chip not read for this long is unhealthy.
        manual: whether an operator readmits recovered chips.
    """

    rules: FaultRules
    damping: Damping
    stale_s: float
    manual: bool


class ChipHealth:
    """The health of one chip; call ``settle`` before and after every change."""

    def __init__(self) -> None:
        self.facts: ChipFacts | None = None
        """As last discovered, or as known from before a restart; None if it is not known."""
        self.was_whole = False
        """Whether a discovery of this process had it without vNPUs."""
        self._faults = ActiveFaults()
        self._contact = LostContact()
        self._was_faulty = False  # before the restart
        self._bus_errors = BusErrorFilter()
        self._upgrades = Upgrades()
        self._separated_ms: int | None = None  # since when an operator has separated it
        self._barred = Damper()  # faults that bar any use
        self._barred_new = Damper()  # faults that bar new use, those above included
        self._silence = Damper()
        self._network = Damper()
        self._awaits = False  # was unhealthy by a fault and was not readmitted since
        self._network_awaits = False

    # Changes.

    def announce(self, event: FaultEvent, at: Moment, policy: HealthSettings) -> None:
        """Apply an event of this chip."""
        self._apply(self._faults.announce(event, at), policy)

    def was_reset(self, at: Moment, policy: HealthSettings) -> None:
        """Take over that the chip was reset."""
        self._apply(self._faults.was_reset(at), policy)

    def lose_events(self) -> None:
        """Believe readings alone until the next event."""
        self._faults.lose_events()

    def read(self, state: ChipState, at: Moment, policy: HealthSettings) -> None:
        """Apply a reading that started at ``at``."""
        first = not self.was_read
        state = self._contact.confirm(state, self._faults.codes, policy.rules, at)
        self._apply(self._faults.read(state, at), policy)
        if first:
            self._upgrades.agree(self._faults, at)

    def _apply(self, transitions: Iterator[FaultTransition], policy: HealthSettings) -> None:
        for transition in self._bus_errors.filter(transitions, policy.rules):
            self._upgrades.update(transition, policy.rules)

    def configure(self, rules: FaultRules, at: Moment) -> None:
        """Apply other rules."""
        for transition in self._bus_errors.configure(rules):
            self._upgrades.update(transition, rules)
        self._upgrades.configure(rules, self._faults, at, hidden=self._bus_errors.hidden)

    @property
    def was_read(self) -> bool:
        """Whether the chip was ever read."""
        return self._faults.read_s is not None

    def restore(self, phy_id: int, earlier: EarlierState, at: Moment, policy: HealthSettings) -> None:
        """Take over the state from before a restart; a chip no longer separated was released in the meantime."""
        reasons = earlier.reasons.get(phy_id, ())
        separated = bool(earlier.manually_separated >> phy_id & 1)
        autofill = [why for why in reasons if why.kind == "FaultAutofill"]
        kept = [why for why in reasons if separated or why.level is not FaultLevel.MANUALLY_SEPARATE]
        self._upgrades.restore((why for why in kept if why.kind != "FaultAutofill"), policy.rules, at)
        cordoned = bool(earlier.cordoned >> phy_id & 1)
        if separated and (autofill or cordoned or not self.is_separated):
            self._separated_ms = max((why.time_ms for why in autofill), default=at.wall_ms)
        # The codes were reported as NotHandleFault by the rules or by their events; the rules apply anew.
        self._faults.recall(code for code in earlier.harmless.get(phy_id, ()) if code not in policy.rules.chip)
        if self.facts is None and phy_id in earlier.known:
            self.facts = ChipFacts(phy_id, NO_CARD, NO_CARD, NO_CARD, address=earlier.known[phy_id])
        elif self.facts is None and phy_id in earlier.known_vnpus:
            self.facts = ChipFacts(phy_id, NO_CARD, NO_CARD, NO_CARD, vnpus=earlier.known_vnpus[phy_id])
        self._was_faulty = bool(earlier.faulty >> phy_id & 1)
        self._awaits |= bool(earlier.awaiting >> phy_id & 1)
        self._network_awaits |= bool(earlier.network_awaiting >> phy_id & 1)

    def separate(self, at: Moment) -> None:
        """Take it out of use, by an operator's order, also if a rule has: the rule may release it."""
        if self._separated_ms is None:
            self._separated_ms = at.wall_ms

    def release(self, now_s: float, policy: HealthSettings) -> None:
        """Put it back into use, by an operator's order: at once unless another fault bars it."""
        own, network = self._records(policy.rules)
        level, network_level = self._level(own), _most_serious(network)
        self._separated_ms = None
        self._upgrades.release()
        self.settle(now_s, policy)
        if level is FaultLevel.MANUALLY_SEPARATE:
            self._barred.forgive()
            self._barred_new.forgive()
            self._awaits = self._barred.bad or (self._awaits and self._barred_new.bad)
        if network_level is FaultLevel.MANUALLY_SEPARATE:
            self._network.forgive()
            self._network_awaits = self._network.bad

    def readmit(self, *, own: bool, network: bool) -> None:
        """Readmit it, by an operator's order; without effect while it has faults."""
        self._awaits = self._awaits and not (own and self.awaits)
        self._network_awaits = self._network_awaits and not (network and self.network_awaits)

    # Consequences.

    def settle(self, now_s: float, policy: HealthSettings) -> None:
        """Let time pass, and update the dampers."""
        for transition in self._bus_errors.advance(now_s):
            self._upgrades.update(transition, policy.rules)
        self._upgrades.advance(now_s, policy.rules)
        own, network = self._records(policy.rules)
        silent = self._is_silent(now_s, policy)
        damping = policy.damping
        # While the chip can't be read, nothing shows that its network port has recovered.
        network_bad = _most_serious(network).bars_network or (silent and self._network.bad)
        self._network.update(bad=network_bad, now_s=now_s, damping=damping)
        if self.was_read:
            # Before the first reading it is unhealthy anyway; a chip found healthy then is healthy at once.
            self._barred.update(bad=self._bars_use(own), now_s=now_s, damping=damping)
            self._barred_new.update(bad=self._level(own).bars_new_use, now_s=now_s, damping=damping)
            self._silence.update(bad=silent or self._contact.in_doubt, now_s=now_s, damping=damping)
        self._awaits = policy.manual and (self._awaits or self._barred.bad)
        self._network_awaits = policy.manual and (self._network_awaits or self._network.bad)

    def _is_silent(self, now_s: float, policy: HealthSettings) -> bool:
        if self._faults.read_s is None or self._is_unlisted:
            return True
        return now_s >= self._faults.read_s + policy.stale_s

    @property
    def _is_unlisted(self) -> bool:
        return self.facts is not None and not self.facts.is_listed

    def next_s(self, now_s: float, policy: HealthSettings) -> float | None:
        """Return the earliest time at which anything changes by itself; ``settle`` comes first."""
        dampers = (self._barred, self._barred_new, self._silence, self._network)
        times = [self._bus_errors.next_s(), self._upgrades.next_s(policy.rules)]
        times += [damper.due_s(policy.damping) for damper in dampers]
        if self._faults.read_s is not None and not self._is_silent(now_s, policy):
            times.append(self._faults.read_s + policy.stale_s)
        return min((time for time in times if time is not None), default=None)

    @property
    def is_separated(self) -> bool:
        """Whether only an operator can put it back into use."""
        return any(why.level is FaultLevel.MANUALLY_SEPARATE for why in self.reasons())

    @property
    def awaits(self) -> bool:
        """Whether its faults have cleared and an operator has not readmitted it."""
        return self._awaits and not (self._barred.bad or self._barred_new.bad)

    @property
    def network_awaits(self) -> bool:
        """The same for its network port."""
        return self._network_awaits and not self._network.bad

    def reasons(self) -> tuple[UpgradeReason, ...]:
        """Return why its faults are more serious than their codes, sorted."""
        reasons = self._upgrades.reasons()
        if self._separated_ms is None:
            return reasons
        return UpgradeReason(NO_CODE, FaultLevel.MANUALLY_SEPARATE, "FaultAutofill", self._separated_ms), *reasons

    def _records(self, rules: FaultRules) -> tuple[list[FaultRecord], list[FaultRecord]]:
        """Return the chip's faults and the faults of its network port, the most serious first."""
        upgrades = raised(self._upgrades.reasons())
        codes = upgrades.keys() | (self._faults.codes.keys() - self._bus_errors.hidden)
        records = [self._record(code, upgrades.get(code), rules) for code in codes]
        records.sort(key=lambda record: (-record.level, record.code))
        network = [record for record in records if record.code in NETWORK_CODES]
        return [record for record in records if record.code not in NETWORK_CODES], network

    def _record(self, code: int, upgrade: tuple[FaultLevel, int] | None, rules: FaultRules) -> FaultRecord:
        """Return a fault as reported: if a rule raised it, with the rule's level and time.

        See docs/spec/node-report.md#fault-entries.
        """
        since = self._faults.codes.get(code)
        level, since_ms = FaultLevel.NORMAL, 0
        if since is not None:
            level, since_ms = rules.level(code, self._faults.severity(code)), since.wall_ms
        if upgrade is not None and upgrade[0] >= level:
            level, since_ms = upgrade
        return FaultRecord(code, rules.spell(code), since_ms, level)

    def _level(self, own: Sequence[FaultRecord]) -> FaultLevel:
        return FaultLevel.MANUALLY_SEPARATE if self._separated_ms is not None else _most_serious(own)

    def _bars_use(self, own: Sequence[FaultRecord]) -> bool:
        """Return whether any fault bars use, even if the most serious one does not."""
        return self._separated_ms is not None or any(record.level.bars_use for record in own)

    def judge(self, facts: ChipFacts, now_s: float, policy: HealthSettings, *, running: bool) -> Chip:
        """Judge it; ``settle`` comes first.

        Args:
            facts: the chip, as last discovered.
            now_s: the present.
            policy: how to judge.
            running: whether a pod runs with it; then a fault that only bars new use leaves it healthy.
        """
        own, network = self._records(policy.rules)
        # A chip that was unhealthy by a fault has to be readmitted; one that stayed healthy for its pod was not.
        self._awaits |= policy.manual and self.was_read and self._barred_new.bad and not running
        reason, sentence = self._why(own, now_s, policy, running=running)
        network_sentence = self._why_network(network, policy)
        sentences = [sentence, network_sentence and f"network: {network_sentence}"]
        return Chip(
            facts,
            self._level(own),
            _most_serious(network),
            tuple(own),
            tuple(network),
            network_healthy=not network_sentence,
            reason=reason,
            sentence="; ".join(filter(None, sentences)),
            in_doubt=reason in DOUBTS and (self.was_read or not self._was_faulty),
            network_in_doubt=self._network.bad and not _most_serious(network).bars_network,
        )

    def _why(
        self, own: Sequence[FaultRecord], now_s: float, policy: HealthSettings, *, running: bool
    ) -> tuple[str, str]:
        """Return why it is unhealthy, as a word and a sentence; empty if it is healthy."""
        if self._bars_use(own) or (self._level(own).bars_new_use and not running):
            return self._why_barred(own)
        if self._is_silent(now_s, policy):
            seen = f"has not reported it {f'for {policy.stale_s:g} s' if self.was_read else 'yet'}"
            return "DriverSilent", f"the driver {'does not list it' if self._is_unlisted else seen}"
        if self._contact.in_doubt:
            return "DriverAlarm", "the driver rates its health as fatal and reports no fault code that explains it"
        held = [self._barred, self._silence] if running else [self._barred, self._silence, self._barred_new]
        if bad := [damper for damper in held if damper.bad]:
            return "Recovering", _recovering(bad, policy)
        return ("AwaitingReadmission", _READMISSION) if self.awaits else ("", "")

    def _why_barred(self, own: Sequence[FaultRecord]) -> tuple[str, str]:
        barring = [record for record in own if record.level.bars_new_use]
        named = ", ".join(map(str, barring))
        if self._level(own) is FaultLevel.MANUALLY_SEPARATE:
            return "ManuallySeparated", ", ".join(filter(None, (named, "separated until an operator puts it back")))
        if any(record.code == CARD_DROP for record in barring):
            return "CardDropped", f"it does not answer: {named}"
        return "Fault", named

    def _why_network(self, network: Sequence[FaultRecord], policy: HealthSettings) -> str:
        if barring := [record for record in network if record.level.bars_network]:
            return ", ".join(map(str, barring))
        if self._network.bad:
            return _recovering([self._network], policy)
        return _READMISSION if self.network_awaits else ""


def _most_serious(records: Sequence[FaultRecord]) -> FaultLevel:
    return records[0].level if records else FaultLevel.NORMAL


def _recovering(dampers: Iterable[Damper], policy: HealthSettings) -> str:
    hold_s = max(damper.hold_s(policy.damping) for damper in dampers)
    return f"no fault, held back for {hold_s:g} s before it is used again"
