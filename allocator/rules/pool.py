"""The rule where any chips will do: a full mesh, a single ring, cards that are not linked (spec/scheduling.md §4.2)."""

from allocator.rules.placement import OrderKey, Placement, Rule
from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.products import Product
from ascend.reasons import Reason

_PER_FAULT = 100


def place(product: Product, free: ChipSet, request: int) -> Placement | None:  # noqa: ARG001 - a rule's signature
    """The lowest chips; the misfit is how many stay free."""
    chips = chip_ids(free)[:request]
    return Placement.of(free, chips, misfit=free.bit_count() - request) if len(chips) == request else None


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Servers with fewer faulty chips first, then the fuller one.

    Not by healthy chips: servers with cards come in several sizes, and the small ones are not worse.
    """
    return (faulty, placement.free)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's number for the same order: ``100·(max-U)-free``."""
    return _PER_FAULT * (product.chips - faulty) - placement.free


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """Never needed where enough chips are free."""
    return Refusal(
        Reason.NOT_ENOUGH_CHIPS, f"{request} chips of a {product.name} server asked for, {free.bit_count()} free"
    )


RULE = Rule(place, key, score, refuse)
