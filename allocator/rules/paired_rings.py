"""The rule of the 910B server with 16 chips: two rings of 8, in which chip i is linked with chip i+8.

A pod of up to 8 chips stays within one ring; a larger one takes the same positions of both (spec/scheduling.md §4.3).
Differences to the reference are in docs/deviations.md.
"""

from functools import lru_cache

from allocator.rules.placement import OrderKey, Placement, Rule, per_ring
from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.products import Product
from ascend.reasons import Reason

_WEIGHT = 16


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit is how many chips (or pairs of them) the ring has too many."""
    size = product.chips // 2
    if request > size:
        pairs = chip_ids(_pairs(product, free))
        wanted = request // 2
        if len(pairs) < wanted:
            return None
        chips = tuple(chip for low in pairs[:wanted] for chip in (low, low + size))
        return Placement.of(free, chips, misfit=len(pairs) - wanted)
    usable = [ring & free for ring in product.rings if (ring & free).bit_count() >= request]
    if not usable:
        return None
    best = min(usable, key=lambda chips: (chips.bit_count(), chips & -chips))
    return Placement.of(free, chip_ids(best)[:request], misfit=best.bit_count() - request)


def _pairs(product: Product, free: ChipSet) -> ChipSet:
    """The lower chips of those pairs of which both are free."""
    return free & free >> product.chips // 2 & product.rings[0]


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Healthier servers first, then the better fit, then the fuller server."""
    return (-healthy, placement.misfit, placement.free)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The same order in one number; the misfit is at most 7, free chips at most 16."""
    return _WEIGHT * (_WEIGHT * healthy - placement.misfit) + (_WEIGHT - placement.free)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """No ring has enough free chips, or too few of them are paired."""
    if request > product.chips // 2:
        pairs = _pairs(product, free).bit_count()
        return Refusal(
            Reason.PAIRS_BROKEN,
            f"{request} chips asked for must be {request // 2} pairs of chips i and i+8; {pairs} pairs are free",
        )
    rings = per_ring(product, free)
    return Refusal(
        Reason.RING_TOO_SMALL, f"{request} chips asked for must be linked by one ring; the rings have {rings} free"
    )


RULE = Rule(place, key, score, refuse)
