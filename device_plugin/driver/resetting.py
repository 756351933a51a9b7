"""What a driver can do beside reading chips: reset them, in groups (docs/spec/faults.md#reset-groups)."""

from collections.abc import Mapping
from typing import Protocol

from ascend.chips import ChipSet, chip_set
from device_plugin.driver import NO_CARD, ChipFacts, Driver, Inventory


class ResettingDriver(Driver, Protocol):
    """A driver that can reset chips. Calls may block or hang, as with ``Driver``."""

    def partner_cards(self, server: Inventory) -> Mapping[int, int | None]:
        """Return, by card of an A3 chip, the partner card of the reset; None without a partner.

        A card whose partner can't be read is left out.
        """

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        """Return the ids of the processes that use a chip, on the node and in all containers.

        Raises:
            DriverError: they can't be read; the message says why.
        """

    def reset(self, chip: ChipFacts) -> None:
        """Reset a chip with the chips of its reset group (docs/spec/faults.md#reset-groups).

        Returns before they have started. There must be one reset at a time.

        Raises:
            DriverError: the driver refuses, or fails; the message says why.
        """

    def has_started(self, chip: ChipFacts) -> bool:
        """Return whether a chip has started after a reset.

        Raises:
            DriverError: that can't be read; the message says why.
        """


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
