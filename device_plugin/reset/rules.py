"""Which chips a reset is for, and who uses a group of chips. No input or output."""

from collections.abc import Iterator, Mapping

from ascend.chips import ChipSet, chip_ids, chip_set, join_names
from device_plugin.health.levels import FaultLevel
from device_plugin.health.snapshot import Chip, Snapshot

RESTARTING = frozenset(
    {FaultLevel.RESTART_REQUEST, FaultLevel.RESTART_BUSINESS, FaultLevel.FREE_RESTART, FaultLevel.RESTART}
)
"""Levels of faults that a reset is expected to end (docs/spec/faults.md#hot-reset)."""

SEPARATING = frozenset({FaultLevel.SEPARATE, FaultLevel.MANUALLY_SEPARATE})
"""Levels of faults for which people have to reset or replace the chip."""


def wanting(snapshot: Snapshot, group: ChipSet) -> dict[int, str]:
    """Return the chips of a group that a reset is for, with their faults for people."""
    return {chip.chip_id: _faults(chip) for chip in members(snapshot, group) if chip.level in RESTARTING}


def lasting(snapshot: Snapshot) -> ChipSet:
    """Return the chips with faults that no reset by this program ends."""
    return chip_set(chip.chip_id for chip in snapshot.chips if chip.level in SEPARATING)


def members(snapshot: Snapshot, group: ChipSet) -> Iterator[Chip]:
    """Return the chips of a group."""
    return (chip for chip in snapshot.chips if group >> chip.chip_id & 1)


def obstacles(snapshot: Snapshot, group: ChipSet, held: Mapping[str, ChipSet]) -> list[str]:
    """Return why a group can't be reset now, as sentences: as far as this program knows by itself.

    A pod that is bound with a chip of the group holds it, although its containers do not run yet. Once it was given its
    chips, what is written on it does not count.

    Args:
        snapshot: the node's chips.
        group: the chips that are reset together.
        held: the chips of each pod, by any of the ledgers, and by ``namespace/name``.
    """
    sentences = [f"pod {key} holds {join_names(chip_ids(of & group))}" for key, of in held.items() if of & group]
    if (
        cut := (snapshot.cut | snapshot.divided | chip_set(chip.phy_id for chip in snapshot.server.chips if chip.vnpus))
        & group
    ):
        sentences.append(f"{join_names(chip_ids(cut))} is cut into virtual chips")
    if gone := group & ~chip_set(chip.phy_id for chip in snapshot.server.chips if chip.is_listed):
        sentences.append(f"the driver does not list {join_names(chip_ids(gone))}")
    return sentences


def _faults(chip: Chip) -> str:
    return ", ".join(f"{fault.name} ({fault.level.wire})" for fault in chip.faults if fault.level in RESTARTING)
