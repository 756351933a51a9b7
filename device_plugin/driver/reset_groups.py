"""Which chips are reset together (docs/spec/faults.md#reset-groups)."""

from collections.abc import Mapping

from ascend.chips import ChipSet, chip_set
from device_plugin.driver import NO_CARD, ChipFacts, Inventory

RING_SIZE = 4
"""Chips of a 910A that are linked, and reset, together (docs/spec/faults.md#reset-groups)."""

SEPARATE_BOARDS = frozenset({0x28, 0x29, 0x33, 0x3C})
"""Boards of the 910B whose chips are not linked, so that each is reset alone (docs/spec/faults.md#reset-groups)."""


def reset_group(server: Inventory, chip: ChipFacts, partners: Mapping[int, int | None]) -> ChipSet | None:
    """Return the chips that must be unused while this one is reset (docs/spec/faults.md#reset-groups), None if unknown.

    Args:
        server: as last discovered.
        chip: one of its chips.
        partners: for chips of type A3, by card: the card that is reset with it, None if there is none.
    """
    match server.chip_type:
        case "Ascend910":
            ring = chip.logic_id // RING_SIZE
            return chip_set(member.phy_id for member in server.chips if member.logic_id // RING_SIZE == ring)
        case "Ascend910B" if server.board_id in SEPARATE_BOARDS:
            return chip_set((chip.phy_id,))
        case "Ascend910B":
            return chip_set(member.phy_id for member in server.chips)
        case "Ascend910A3":
            partner = partners.get(chip.card_id, NO_CARD)
            # A chip whose card is not listed could be one of the partner card.
            if partner is not None and all(member.card_id != partner for member in server.chips if member.is_listed):
                return None
            cards = {chip.card_id, partner}
            return chip_set(member.phy_id for member in server.chips if member.card_id in cards)


def one_by_one(server: Inventory) -> bool:
    """Return whether a reset stops one chip of its group, not all (docs/spec/faults.md#reset-groups)."""
    return server.chip_type == "Ascend910"


def reset_groups(server: Inventory, partners: Mapping[int, int | None]) -> tuple[ChipSet, ...]:
    """Return the reset groups of a server, each once; chips whose group is unknown are in none."""
    if server.unidentified:
        return ()
    groups = (reset_group(server, chip, partners) for chip in server.chips)
    return tuple(dict.fromkeys(group for group in groups if group is not None))
