"""The rule for 910B servers with 16 chips: two rings of 8, in which chip i is linked with chip i+8.

Up to 8 chips come from one ring; more are taken at the same positions of both rings
(docs/spec/products.md#910b-with-16-chips). docs/deviations.md lists the differences to the reference.
"""

from functools import lru_cache

from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.placement import Placement, Rule, by_health, ring_too_small

_WEIGHT = 16


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit is the number of chips (or pairs) that stay free in the ring (or rings)."""
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
    """The lower chip of each pair of which both chips are free."""
    return free & free >> product.chips // 2 & product.rings[0]


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The same order as one number; the misfit is at most 7, and at most 16 chips are free."""
    return _WEIGHT * (_WEIGHT * healthy - placement.misfit) + (_WEIGHT - placement.free)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """The refusal if no ring has enough free chips, or too few pairs are free."""
    if request > product.chips // 2:
        pairs = _pairs(product, free).bit_count()
        return Refusal(
            Reason.PAIRS_BROKEN,
            f"{count(request, 'chip')} requested must be {count(request // 2, 'pair')} of chips i and i+8; "
            f"{count(pairs, 'pair')} {'is' if pairs == 1 else 'are'} free",
        )
    return ring_too_small(product, free, request)


RULE = Rule(place, by_health, score, refuse, "ring")
