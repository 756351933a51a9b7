"""The chips of this node as last read: an immutable value that every answer of the plugin is made from."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ascend.annotations import ChipAddress
from ascend.chips import ChipSet, chip_set
from ascend.products import Product
from device_plugin.driver import ChipReading, Reading


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip as last read.

    Attributes:
        chip_id: physical id.
        healthy: fit for use.
        network_healthy: fit for distributed jobs.
        faults: present fault codes and when each was first seen, Unix milliseconds.
        address: how other servers reach it.
    """

    chip_id: int
    healthy: bool
    network_healthy: bool
    faults: Mapping[str, int]
    address: ChipAddress


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All chips of the node, by ascending physical id."""

    product: Product
    chips: tuple[Chip, ...]
    super_pod_id: int
    server_index: int

    @property
    def all_chips(self) -> ChipSet:
        """Every chip the node has, healthy or not."""
        return chip_set(chip.chip_id for chip in self.chips)

    @property
    def healthy(self) -> ChipSet:
        """The chips fit for use."""
        return chip_set(chip.chip_id for chip in self.chips if chip.healthy)

    @property
    def network_unhealthy(self) -> ChipSet:
        """The chips unfit for distributed jobs."""
        return chip_set(chip.chip_id for chip in self.chips if not chip.network_healthy)


def take(reading: Reading, before: Snapshot | None, now_ms: int) -> Snapshot:
    """The snapshot after a reading.

    A fault keeps the time it was first seen at. A chip the driver no longer tells of is kept, as unhealthy: the
    kubelet gives no health update for a device that vanishes (spec/kubernetes.md §1.5).
    """
    known = {chip.chip_id: chip for chip in before.chips} if before is not None else {}
    chips = {each.chip_id: _chip(each, known.get(each.chip_id), now_ms) for each in reading.chips}
    for chip_id, chip in known.items():
        chips.setdefault(chip_id, replace(chip, healthy=False))
    ordered = tuple(chips[chip_id] for chip_id in sorted(chips))
    return Snapshot(reading.product, ordered, reading.super_pod_id, reading.server_index)


def _chip(reading: ChipReading, known: Chip | None, now_ms: int) -> Chip:
    seen = known.faults if known is not None else {}
    return Chip(
        reading.chip_id,
        reading.healthy,
        reading.network_healthy,
        {code: seen.get(code, now_ms) for code in reading.fault_codes},
        reading.address,
    )


def age_out(snapshot: Snapshot) -> Snapshot:
    """The snapshot once the driver has been silent for too long: what is not known to be healthy is not healthy."""
    return replace(snapshot, chips=tuple(replace(chip, healthy=False) for chip in snapshot.chips))
