"""The chips of this node as last judged: an immutable value that every answer of the plugin is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ascend.annotations import ChipAddress
from ascend.chips import ChipSet, chip_set
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.health.levels import Level

UpgradeKind: TypeAlias = Literal["FaultFrequency", "FaultDuration", "FaultAutofill"]

NO_CODE = 0
"""The code of a reason that no fault gave: an operator separated the chip."""


@dataclass(frozen=True, slots=True, order=True)
class Moment:
    """When something was: rules count on the monotonic clock, people read the wall clock.

    Attributes:
        mono_s: monotonic seconds; only differences mean something.
        wall_ms: Unix milliseconds.
    """

    mono_s: float
    wall_ms: int

    def after(self, seconds: float) -> "Moment":
        """The moment so many seconds later."""
        return Moment(self.mono_s + seconds, self.wall_ms + round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault of a chip, present or remembered by a rule.

    Attributes:
        code: as the driver has it.
        name: as reports spell it.
        since_ms: Unix milliseconds; where a rule made it more serious, when that was.
        level: how serious it is.
    """

    code: int
    name: str
    since_ms: int
    level: Level


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a chip is fit for use.

    Attributes:
        healthy: what the kubelet is told.
        network_healthy: fit for distributed jobs, as far as its network port goes; the kubelet is not told.
        level: of its faults; a chip can be unhealthy without one, ``reason`` says why then.
        network_level: of its network's faults.
        faults: its own, the most serious first.
        network_faults: its network's, the most serious first.
        reason: a stable CamelCase word, why it is not healthy; empty where it is.
        sentence: the same for people, network included; equal for as long as nothing has changed.
    """

    healthy: bool
    network_healthy: bool
    level: Level
    network_level: Level
    faults: tuple[FaultRecord, ...]
    network_faults: tuple[FaultRecord, ...]
    reason: str
    sentence: str


@dataclass(frozen=True, slots=True)
class UpgradeReason:
    """Why a fault is more serious than its code; survives a restart (spec/node-agent.md §5.6).

    Attributes:
        code: as the driver has it; ``NO_CODE`` where an operator separated the chip.
        level: the level it has.
        kind: the rule.
        time_ms: when, in Unix milliseconds.
    """

    code: int
    level: Level
    kind: UpgradeKind
    time_ms: int


@dataclass(frozen=True, slots=True)
class Assessment:
    """The health of all chips at a moment.

    Attributes:
        chips: by ascending physical id.
        manually_separated: out of use until an operator says otherwise, discovered here or not.
        upgrade_reasons: by physical id, sorted; only chips that have some.
        awaiting_readmission: chips whose faults are gone and that an operator has to readmit.
        network_awaiting_readmission: the same for their network.
        next_s: the monotonic time at which this changes by itself; None: only when something is told.
    """

    chips: Mapping[int, Verdict]
    manually_separated: ChipSet
    upgrade_reasons: Mapping[int, tuple[UpgradeReason, ...]]
    awaiting_readmission: ChipSet
    network_awaiting_readmission: ChipSet
    next_s: float | None


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip: what it is, and how it is."""

    facts: ChipFacts
    verdict: Verdict

    @property
    def chip_id(self) -> int:
        """Its physical id."""
        return self.facts.phy_id

    @property
    def healthy(self) -> bool:
        """Fit for use."""
        return self.verdict.healthy

    @property
    def address(self) -> ChipAddress:
        """How other servers reach it."""
        return self.facts.address

    @property
    def numa_node(self) -> int | None:
        """The NUMA node it is close to; None where unknown."""
        return self.facts.numa_node


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All chips of the node, by ascending physical id.

    Attributes:
        server: the server they are in.
        chips: those offered whole, also such as the driver tells of no more.
        manually_separated: taken out until an operator lets them in again.
        upgrade_reasons: why chips count as worse than their codes say, by physical id.
        awaiting_readmission: recovered, waiting for an operator.
        network_awaiting_readmission: their ports have recovered, waiting for an operator.
        used: the chips that pods hold, as they were judged: who holds a chip is a part of how it is.
    """

    server: Inventory
    chips: tuple[Chip, ...]
    manually_separated: ChipSet = 0
    upgrade_reasons: Mapping[int, tuple[UpgradeReason, ...]] = field(default_factory=dict)
    awaiting_readmission: ChipSet = 0
    network_awaiting_readmission: ChipSet = 0
    used: ChipSet = 0

    @property
    def all_chips(self) -> ChipSet:
        """Every chip the node has, healthy or not."""
        return chip_set(chip.chip_id for chip in self.chips)

    @property
    def healthy(self) -> ChipSet:
        """The chips fit for use."""
        return chip_set(chip.chip_id for chip in self.chips if chip.verdict.healthy)

    @property
    def spared(self) -> ChipSet:
        """The chips that are healthy only for the pods that run with them: a fault of theirs bars new use."""
        return chip_set(chip.chip_id for chip in self.chips if chip.healthy and chip.verdict.level.bars_new_use)

    @property
    def network_unhealthy(self) -> ChipSet:
        """The chips unfit for distributed jobs."""
        return chip_set(chip.chip_id for chip in self.chips if not chip.verdict.network_healthy)


def take(server: Inventory, known: Mapping[int, ChipFacts], assessment: Assessment, used: ChipSet = 0) -> Snapshot:
    """The snapshot of an assessment.

    Args:
        server: as discovered last.
        known: every chip ever discovered, by physical id: one that is gone stays listed, as unhealthy, because the
            kubelet gives no health update for a device that vanishes (spec/kubernetes.md §1.5).
        assessment: how they are.
        used: the chips that pods held then.
    """
    return Snapshot(
        server,
        tuple(Chip(known[phy_id], verdict) for phy_id, verdict in sorted(assessment.chips.items())),
        assessment.manually_separated,
        assessment.upgrade_reasons,
        assessment.awaiting_readmission,
        assessment.network_awaiting_readmission,
        used,
    )
