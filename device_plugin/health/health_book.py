"""The health of all chips: takes events, readings and operators' orders, and judges which chips can be used."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, TypeAlias

from ascend.chips import ChipSet, chip_ids, chip_set
from device_plugin.device_types import MAX_VDEV_ID, DeviceType, number_of
from device_plugin.driver import NO_CARD, ChipState, FaultEvent, Inventory
from device_plugin.health.chip_health import ChipHealth, HealthSettings
from device_plugin.health.damping import Damping
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.moment import Moment
from device_plugin.health.snapshot import EarlierState, Snapshot, Vnpus

HOLD_LIMIT_S = 300.0
"""The longest time a recovered chip is held back."""

ReadmissionPolicy: TypeAlias = Literal["automatic", "manual"]
"""Who puts a chip back into use once its faults have cleared.

``autoStowing``, docs/spec/node-report.md#writing-the-report.
"""


class HealthBook:
    """The health of the node's chips (docs/spec/faults.md). It has no clock: every call passes the time.

    A fault takes effect at once, whether an event or a reading reports it. Its end takes effect once the chip has been
    without faults for its hold time, which doubles with each relapse.

    Args:
        rules: the site's fault rules.
        hold_s: how long a recovered chip is held back the first time.
        stale_s: a chip not read for this long is unhealthy.
        readmission: who puts a recovered chip back into use.
        tells_faults_in_use: whether the kubelet is told of the faults of chips that pods run with.
    """

    def __init__(
        self,
        rules: FaultRules,
        *,
        hold_s: float = 1.0,
        stale_s: float = 10.0,
        readmission: ReadmissionPolicy = "automatic",
        tells_faults_in_use: bool = True,
    ) -> None:
        self._tells_faults_in_use = tells_faults_in_use
        self._policy = HealthSettings(rules, Damping(hold_s, HOLD_LIMIT_S), stale_s, readmission == "manual")
        self._chips: dict[int, ChipHealth] = {}
        self._phy_ids: dict[int, int] = {}  # by logic id
        self._now: Moment | None = None
        self.server: Inventory | None = None
        """As last discovered; None before the first discovery."""

    @property
    def discovered_chips(self) -> ChipSet:
        """The chips that were ever discovered, by this process or before a restart."""
        return self._chips_that(lambda chip: chip.facts is not None)

    def configure(self, rules: FaultRules) -> None:
        """Apply other rules to the faults that are present."""
        before, self._policy = self._policy, replace(self._policy, rules=rules)
        if self._now is not None:
            for chip in self._chips.values():
                chip.settle(self._now.mono_s, before)
                chip.configure(rules, self._now)

    def tune(self, *, hold_s: float, stale_s: float) -> None:
        """Apply settings that were read again."""
        damping = replace(self._policy.damping, hold_s=hold_s)
        self._policy = replace(self._policy, damping=damping, stale_s=stale_s)

    def restore(self, earlier: EarlierState, at: Moment) -> None:
        """Take over the state from before a restart; the site's rules come first, readings come later.

        Raises:
            ValueError: a chip was read before: a fault that had cleared by then would never end.
        """
        if any(chip.was_read for chip in self._chips.values()):
            raise ValueError("the state from before a restart must be restored before the first reading")
        self._turn_to(at)
        listed = earlier.manually_separated | earlier.awaiting | earlier.network_awaiting
        known = {*earlier.known, *earlier.known_vnpus}
        for phy_id in sorted({*chip_ids(listed | earlier.faulty), *earlier.reasons, *earlier.harmless, *known}):
            self._chips.setdefault(phy_id, ChipHealth()).restore(phy_id, earlier, at, self._policy)

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Take over a discovery. A new chip is unhealthy until its first reading; a missing chip stays, as unhealthy.

        Args:
            server: the server and its chips.
            at: when.
        """
        self._turn_to(at)
        self.server = server
        self._phy_ids = {}
        listed = {facts.phy_id for facts in server.chips}
        for phy_id, earlier in self._chips.items():
            if phy_id not in listed and earlier.facts is not None:
                earlier.facts = replace(earlier.facts, card_id=NO_CARD, device_id=NO_CARD)
        for facts in server.chips:
            self._phy_ids[facts.logic_id] = facts.phy_id
            chip = self._chips.setdefault(facts.phy_id, ChipHealth())
            # Which vNPUs a chip has, the driver does not say of one that it does not list.
            known = chip.facts.vnpus if chip.facts is not None and not facts.is_listed else facts.vnpus
            chip.facts = replace(facts, vnpus=known)
            chip.was_whole |= facts.is_listed and not facts.vnpus

    @property
    def vnpus(self) -> dict[DeviceType, ChipSet]:
        """The numbers of the vNPUs that the driver lists, by their type."""
        found: dict[DeviceType, ChipSet] = {}
        for chip in self._chips.values():
            for vnpu in filter(None, (part.vnpu for part in (chip.facts.vnpus if chip.facts is not None else ()))):
                if vnpu.vdev_id <= MAX_VDEV_ID:
                    device_type = DeviceType(vnpu.suffix)
                    found[device_type] = found.get(device_type, 0) | 1 << number_of(vnpu)
        return found

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Apply a fault event; the event of an unknown chip is ignored."""
        now = self._turn_to(at)
        phy_id = self._phy_ids.get(event.logic_id)
        if phy_id is not None:
            chip = self._chips[phy_id]
            chip.settle(now.mono_s, self._policy)
            chip.announce(event, at, self._policy)
            chip.settle(now.mono_s, self._policy)

    def was_reset(self, chips: ChipSet, at: Moment) -> None:
        """Follow a reset of chips: a fault that was announced before is over unless a reading shows it again."""
        now = self._turn_to(at)
        for phy_id in chip_ids(chips):
            if (chip := self._chips.get(phy_id)) is not None:
                chip.settle(now.mono_s, self._policy)
                chip.was_reset(at, self._policy)

    def events_lost(self) -> None:
        """Believe readings alone, because the driver announced too many events."""
        for chip in self._chips.values():
            chip.lose_events()

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Apply a reading; that of a chip never discovered is ignored.

        Args:
            phy_id: the chip.
            state: what was read.
            at: when the reading *started*: later events stay in effect.
        """
        now = self._turn_to(at)
        chip = self._chips.get(phy_id)
        if chip is None or chip.facts is None:
            return
        chip.settle(now.mono_s, self._policy)
        chip.read(state, at, self._policy)
        chip.settle(now.mono_s, self._policy)

    def separate(self, chips: ChipSet, at: Moment) -> None:
        """Take chips out of use, by an operator's order; any physical id is accepted, discovered or not."""
        self._turn_to(at)
        for phy_id in chip_ids(chips):
            self._chips.setdefault(phy_id, ChipHealth()).separate(at)

    def release(self, chips: ChipSet, at: Moment) -> None:
        """Put separated chips back into use, by an operator's order: at once unless something else bars them."""
        now = self._turn_to(at)
        for phy_id in chip_ids(chips):
            chip = self._chips.get(phy_id)
            if chip is not None and chip.is_separated:
                chip.settle(now.mono_s, self._policy)
                chip.release(now.mono_s, self._policy)

    def readmit(self, chips: ChipSet, network: ChipSet, at: Moment) -> None:
        """Readmit recovered chips, and network ports of chips, by an operator's order."""
        now = self._turn_to(at)
        for phy_id in chip_ids(chips | network):
            chip = self._chips.get(phy_id)
            if chip is not None:
                bit = chip_set((phy_id,))
                chip.settle(now.mono_s, self._policy)
                chip.readmit(own=bool(chips & bit), network=bool(network & bit))

    def judge(
        self,
        at: Moment,
        *,
        used: ChipSet = 0,
        running: ChipSet = 0,
        vnpus: Mapping[DeviceType, Vnpus] = MappingProxyType({}),
        divided: ChipSet = 0,
        under_other_ids: ChipSet = 0,
    ) -> Snapshot:
        """Judge all chips.

        Args:
            at: the present time.
            used: the chips that pods hold as a whole.
            running: the chips that pods run with as a whole.
            vnpus: the vNPUs, by their type. A fault of level PreSeparateNPU leaves chips healthy that pods run with, or
                with a vNPU of them.
            divided: the chips of whose AI cores pods have some.
            under_other_ids: the chips that pods run with and that the kubelet's ledger has not under their own ids.

        Raises:
            ValueError: nothing was discovered yet.
        """
        if self.server is None:
            raise ValueError("chips must be discovered before they are judged")
        now_s = self._turn_to(at).mono_s
        cut = self._chips_that(lambda chip: chip.facts is not None and bool(chip.facts.vnpus))
        held_whole = used
        for device_type, found in vnpus.items():
            used |= device_type.chips(found.used & found.offered)
            running |= device_type.chips(found.running & found.offered)
            cut |= device_type.chips(found.given)
        chips = []
        for phy_id, chip in sorted(self._chips.items()):
            chip.settle(now_s, self._policy)
            if chip.facts is not None:
                is_running = bool(running & chip_set((phy_id,)))
                chips.append(chip.judge(chip.facts, now_s, self._policy, running=is_running))
        reasons = {phy_id: chip.reasons() for phy_id, chip in sorted(self._chips.items())}
        return Snapshot(
            self.server,
            tuple(chips),
            manually_separated=self._chips_that(lambda chip: chip.is_separated),
            upgrade_reasons={phy_id: why for phy_id, why in reasons.items() if why},
            awaiting_readmission=self._chips_that(lambda chip: chip.awaits),
            network_awaiting_readmission=self._chips_that(lambda chip: chip.network_awaits),
            used=used,
            running=running,
            vnpus=vnpus,
            cut=cut,
            left_out=cut & ~held_whole & ~self._chips_that(lambda chip: chip.was_whole),
            held_whole=held_whole & cut,
            divided=divided,
            tells_faults_in_use=self._tells_faults_in_use,
            under_other_ids=under_other_ids,
        )

    def next_s(self, at: Moment) -> float | None:
        """Return the monotonic time at which the last judgement changes by itself; None if it never does."""
        now_s = self._turn_to(at).mono_s
        times = [chip.next_s(now_s, self._policy) for chip in self._chips.values()]
        return min((time for time in times if time is not None), default=None)

    def _chips_that(self, condition: Callable[[ChipHealth], bool]) -> ChipSet:
        return chip_set(phy_id for phy_id, chip in self._chips.items() if condition(chip))

    def _turn_to(self, at: Moment) -> Moment:
        """Return the present time; a late report does not turn the clock back."""
        self._now = at if self._now is None else max(self._now, at)
        return self._now
