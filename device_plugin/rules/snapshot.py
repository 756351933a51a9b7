"""The chips of this node as last judged: an immutable value that every answer of the plugin is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ascend.annotations import ChipAddress
from ascend.chips import ChipSet, chip_set
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.rules.verdict import Assessment, UpgradeReason, Verdict


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
