"""The chips of this node as last judged: immutable values, from which every answer of the plugin is made."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ascend.base_device_infos import ChipAddress
from ascend.chips import ChipSet, chip_set
from device_plugin.device_types import DeviceType
from device_plugin.driver import ChipFacts, Inventory, VirtualNpu
from device_plugin.health.levels import FaultLevel
from device_plugin.health.upgrades import UpgradeReason

RESETTING = "Resetting"
"""Why a chip without a fault is unhealthy: it is withheld, because it is reset together with others."""

RESETTING_SENTENCE = "it is withheld: it or a chip beside it is being reset, or has not started yet"

DOUBTS = frozenset({"DriverSilent", "DriverAlarm", "Recovering"})
"""Why a chip is unhealthy of which no fault is known."""

IN_USE, CUT, REMOVED = "ChipInUse", "CutIntoVirtual", "Removed"
"""Why a device of a chip without a fault is unhealthy: it can't be offered in this form."""

_NO_FAULTS = frozenset({"", RESETTING, IN_USE, CUT, REMOVED})


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault of a chip, present or still counted by a rule.

    Attributes:
        code: as the driver reports it.
        name: as reports spell it.
        since_ms: Unix milliseconds; for a fault that a rule raised, the time of the raise.
        level: how serious it is.
    """

    code: int
    name: str
    since_ms: int
    level: FaultLevel

    def __str__(self) -> str:
        return f"{self.name} ({self.level.wire})"


@dataclass(frozen=True, slots=True)
class EarlierState:
    """What an earlier plugin reported.

    Attributes:
        manually_separated: chips that are separated, with or without a reason. Reasons of manual separation of other
            chips are dropped, because an operator released these (docs/spec/faults.md#manual-separation).
        reasons: why faults were raised, by physical id.
        awaiting: chips that awaited readmission.
        network_awaiting: chips whose network port awaited readmission.
        harmless: by physical id, the codes that the earlier report called NotHandleFault. For a code that no table
            lists only its event has a severity, and the reading that finds it again has none.
        known: by physical id, the chips that it advertised. One that the driver no longer lists stays, as unhealthy.
        known_vnpus: by physical id, the vNPUs of the chips that were cut. They stay likewise.
        faulty: chips that were unhealthy by a fault. They are so until they are read.
        cordoned: separated chips that an operator has cordoned, also while no plugin ran. A rule does not release them.
    """

    manually_separated: ChipSet = 0
    reasons: Mapping[int, Sequence[UpgradeReason]] = field(default_factory=dict)
    awaiting: ChipSet = 0
    network_awaiting: ChipSet = 0
    harmless: Mapping[int, Collection[int]] = field(default_factory=dict)
    known: Mapping[int, ChipAddress] = field(default_factory=dict)
    faulty: ChipSet = 0
    known_vnpus: Mapping[int, tuple[VirtualNpu, ...]] = field(default_factory=dict)
    cordoned: ChipSet = 0


@dataclass(frozen=True, slots=True)
class Vnpus:
    """The vNPUs of one size, as sets of their numbers.

    Attributes:
        present: those that the driver lists.
        used: those that pods hold.
        running: those that pods run with, or are about to.
        given: those of them that pods were given by this plugin's ledger. Annotations alone, which a pod's author could
            write, make no removed vNPU of a whole chip.
        with_cores: those of pods that request AI cores.
        under_other_ids: those that pods run with and that the kubelet's ledger has not under their own ids.
    """

    present: ChipSet = 0
    used: ChipSet = 0
    running: ChipSet = 0
    given: ChipSet = 0
    with_cores: ChipSet = 0
    under_other_ids: ChipSet = 0

    @property
    def offered(self) -> ChipSet:
        """The chips in the kubelet's list: a removed chip stays while a pod runs with it."""
        return self.present | self.given


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip as last judged.

    Attributes:
        facts: what the driver reports about the chip itself.
        level: the most serious level of its own faults, separation by an operator included.
        network_level: the most serious level of its network port's faults.
        faults: its own faults, most serious first.
        network_faults: its network port's faults, most serious first.
        network_healthy: whether its network port allows distributed jobs; the kubelet is not told.
        reason: why it is unhealthy, a stable CamelCase word; empty if it is healthy.
        sentence: the reason for people, network included; unchanged while nothing changes.
        in_doubt: whether it is unhealthy although no fault is known: it was not read, or is held back after a fault.
            Its pods may be fine.
        network_in_doubt: the same for its network port.
    """

    facts: ChipFacts
    level: FaultLevel = FaultLevel.NORMAL
    network_level: FaultLevel = FaultLevel.NORMAL
    faults: tuple[FaultRecord, ...] = ()
    network_faults: tuple[FaultRecord, ...] = ()
    network_healthy: bool = True
    reason: str = ""
    sentence: str = ""
    in_doubt: bool = False
    network_in_doubt: bool = False

    @property
    def chip_id(self) -> int:
        """The physical id."""
        return self.facts.phy_id

    @property
    def healthy(self) -> bool:
        """Whether the chip can be used, as reported to the kubelet."""
        return not self.reason

    @property
    def faulty(self) -> bool:
        """Whether a fault of the chip itself is known, or an operator has taken it out of use."""
        return self.reason not in _NO_FAULTS and not self.in_doubt

    @property
    def healthy_by_itself(self) -> bool:
        """Whether nothing is wrong with the chip, although it may be withheld because chips are being reset."""
        return not self.reason or (self.reason == RESETTING and not self.in_doubt)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All chips of the node at one moment.

    Attributes:
        server: the server as last discovered.
        chips: all chips, cut ones included, by ascending physical id; one that is no longer discovered stays, as
            unhealthy, because the kubelet gets no health update for a device that vanishes
            (docs/spec/kubelet.md#listandwatch).
        manually_separated: chips out of use until an operator puts them back, discovered here or not.
        upgrade_reasons: why faults are more serious than their codes, by physical id; only chips that have a reason.
        awaiting_readmission: chips without faults that an operator has to readmit.
        network_awaiting_readmission: chips whose network port an operator has to readmit.
        used: chips that pods held when the chips were judged: the health of a chip can depend on its use.
        running: those that pods ran with, or were about to; a pod that is only bound does not have its chips yet.
        recovering: chips that are withheld because they are being reset, or start.
        reset_annotations: annotations of the Node about resets; empty if there are none to write.
        vnpus: the vNPUs of the chips that are cut, by their type.
        cut: the chips that have vNPUs, or had them and a pod still runs with one.
        left_out: those of them that this program has not advertised as a whole, and that no pod holds as a whole: the
            kubelet counts such a chip for its pod, also one that was cut before this program started.
        held_whole: those of them that pods hold as a whole.
        divided: chips that are offered by their AI cores, and of which somebody has a part.
        tells_faults_in_use: whether the kubelet is told of the faults of chips that pods run with.
        under_other_ids: chips that pods run with and that the kubelet's ledger has not under their own ids.
    """

    server: Inventory
    chips: tuple[Chip, ...]
    manually_separated: ChipSet = 0
    upgrade_reasons: Mapping[int, tuple[UpgradeReason, ...]] = field(default_factory=dict)
    awaiting_readmission: ChipSet = 0
    network_awaiting_readmission: ChipSet = 0
    used: ChipSet = 0
    running: ChipSet = 0
    recovering: ChipSet = 0
    reset_annotations: Mapping[str, str] = field(default_factory=dict)
    vnpus: Mapping[DeviceType, Vnpus] = field(default_factory=dict)
    cut: ChipSet = 0
    left_out: ChipSet = 0
    held_whole: ChipSet = 0
    divided: ChipSet = 0
    tells_faults_in_use: bool = True
    under_other_ids: ChipSet = 0

    def withholding(self, chips: ChipSet, annotations: Mapping[str, str]) -> "Snapshot":
        """Return the snapshot with these chips out of use because they are being reset.

        Args:
            chips: the chips; one that is unhealthy keeps its reason.
            annotations: of the Node, about resets.
        """
        if not (chips or annotations):
            return self
        judged = tuple(
            replace(chip, reason=RESETTING, sentence=RESETTING_SENTENCE)
            if chips >> chip.chip_id & 1 and (chip.healthy or chip.in_doubt)
            else chip
            for chip in self.chips
        )
        return replace(self, chips=judged, recovering=chips & self.all_chips, reset_annotations=annotations)

    @property
    def healthy_by_themselves(self) -> ChipSet:
        """The chips that are healthy, withheld or not."""
        return chip_set(chip.chip_id for chip in self.chips if chip.healthy_by_itself)

    @property
    def only_withheld(self) -> ChipSet:
        """The chips without faults that are unhealthy because they are being reset."""
        return chip_set(chip.chip_id for chip in self.chips if chip.reason == RESETTING)

    @property
    def all_chips(self) -> ChipSet:
        """Every chip, healthy or not."""
        return chip_set(chip.chip_id for chip in self.chips)

    @property
    def healthy(self) -> ChipSet:
        """The healthy chips."""
        return chip_set(chip.chip_id for chip in self.chips if chip.healthy)

    @property
    def unhealthy(self) -> ChipSet:
        """The unhealthy chips."""
        return chip_set(chip.chip_id for chip in self.chips if not chip.healthy)

    @property
    def sent_healthy(self) -> ChipSet:
        """The chips that the kubelet sees as healthy: healthy chips, and the chips of running pods.

        The kubelet shows a known fault of a chip in use in the status of its pod, and does nothing else to the pod. But
        it counts the chip twice, as taken and as unhealthy: as long as the pod runs, the Node is short of a free chip
        (docs/spec/node-report.md#stable-device-count). So no doubt about a chip is told, and no fault if a setting says
        so, or if the kubelet would show it in the status of another pod.
        """
        told = chip_set(chip.chip_id for chip in self.chips if chip.faulty) & ~self.under_other_ids
        return self.all_chips & (self.healthy | (self.running & ~(told if self.tells_faults_in_use else 0)))

    @property
    def reported_unhealthy(self) -> ChipSet:
        """The unhealthy chips, without those that a pod runs with although no fault of them is known.

        Readers take a pod with an unhealthy chip for faulty, and delete it (docs/spec/rescheduling.md#faulty-pods).
        Chips without a fault that are withheld are reported as recovering.
        """
        return self.unhealthy & ~(self.in_doubt & self.running) & ~self.only_withheld

    @property
    def reported_network_unhealthy(self) -> ChipSet:
        """The chips with an unhealthy network port, without those that a pod runs with although no fault is known."""
        return self.network_unhealthy & ~(self.network_in_doubt & self.running)

    @property
    def in_doubt(self) -> ChipSet:
        """The unhealthy chips without a known fault."""
        return chip_set(chip.chip_id for chip in self.chips if chip.in_doubt)

    @property
    def network_in_doubt(self) -> ChipSet:
        """The chips with an unhealthy network port without a known fault."""
        return chip_set(chip.chip_id for chip in self.chips if chip.network_in_doubt)

    @property
    def closed_to_new_pods(self) -> ChipSet:
        """The chips that are healthy only for the pods that run with them, because a fault bars new use."""
        return chip_set(chip.chip_id for chip in self.chips if chip.healthy and chip.level.bars_new_use)

    @property
    def closed_cut_chips(self) -> ChipSet:
        """The cut chips that are not reported as unhealthy, for the sake of pods that run with some of their vNPUs.

        No new pod gets the others.
        """
        return (self.cut | self.divided) & (self.closed_to_new_pods | (self.in_doubt & self.running))

    @property
    def network_unhealthy(self) -> ChipSet:
        """The chips whose network port does not allow distributed jobs."""
        return chip_set(chip.chip_id for chip in self.chips if not chip.network_healthy)
