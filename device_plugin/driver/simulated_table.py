"""The simulated driver's table of cards: filled when the driver is initialized, as with the real one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from device_plugin.driver import NO_CARD, Inventory, not_ready_sentence


class Presence(Protocol):
    """Whether a chip answers, and whether it is on the bus."""

    ready: bool
    present: bool


@dataclass(frozen=True, slots=True)
class Table:
    """What the driver found when it was initialized.

    Attributes:
        absent: chips that were off the bus.
        unready_cards: cards with a chip that did not answer.
    """

    absent: frozenset[int]
    unready_cards: frozenset[int]


def initialize(server: Inventory, chips: Mapping[int, Presence]) -> Table:
    """Fill the table.

    Args:
        server: all chips of the server.
        chips: the state of each, by physical id.
    """
    absent = frozenset(phy_id for phy_id, chip in chips.items() if not chip.present)
    unready = (facts.card_id for facts in server.chips if facts.phy_id not in absent and not chips[facts.phy_id].ready)
    return Table(absent, frozenset(unready))


def listed(server: Inventory, table: Table) -> Inventory:
    """Return the server as the driver lists it."""
    found = [facts for facts in server.chips if facts.phy_id not in table.absent]
    chips = tuple(
        replace(facts, card_id=NO_CARD, device_id=NO_CARD) if facts.card_id in table.unready_cards else facts
        for facts in found
    )
    not_ready = len(table.unready_cards)
    problems = (not_ready_sentence(not_ready, len({facts.card_id for facts in found})),) if not_ready else ()
    return replace(server, chips=chips, not_ready=not_ready, problems=problems)
