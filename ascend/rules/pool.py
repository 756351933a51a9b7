"""The rule for servers on which any chips fit: full mesh, single ring, cards without links.

docs/spec/products.md#pools-of-chips.
"""

from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.grammar import a, count
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.placement import OrderKey, Placement, Rule

_PER_FAULT = 100


def place(product: Product, free: ChipSet, request: int) -> Placement | None:  # noqa: ARG001 - a rule's signature
    """The lowest chips; the misfit is the number of chips that stay free."""
    chips = chip_ids(free)[:request]
    return Placement.of(free, chips, misfit=free.bit_count() - request) if len(chips) == request else None


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Orders nodes by unhealthy chips (fewer first), then by free chips (fewer first).

    Not by healthy chips: servers with cards come in several sizes, and the small ones are not worse.
    """
    return (faulty, placement.free)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's score for the same order: ``100·(max-U)-free``."""
    return _PER_FAULT * (product.chips - faulty) - placement.free


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """The refusal if too few chips are free; `judge` has checked that before."""
    return Refusal(
        Reason.NOT_ENOUGH_CHIPS,
        f"{count(request, 'chip')} of {a(f'{product.name} server')} requested, {free.bit_count()} free",
    )


RULE = Rule(place, key, score, refuse, "")
