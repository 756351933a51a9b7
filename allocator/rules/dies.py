"""The rule of the A3 server: cards of two dies, and a pod of more than one chip takes whole cards.

spec/scheduling.md §4.4; differences to the reference are in docs/deviations.md.
"""

from functools import lru_cache

from allocator.rules.placement import OrderKey, Placement, Rule
from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.products import Product
from ascend.reasons import Reason

_WEIGHT = 16
_MOST = 32
_BREAKS_A_CARD = 16
"""What it costs to break a card for a single chip while another is broken already elsewhere: more than any misfit."""


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit is how many stay free, and more where a card must be broken."""
    if not free:
        return None
    whole = [card for card in product.rings if card & ~free == 0]
    left = free.bit_count() - request
    if request == 1:
        halves = [card & free for card in product.rings if (card & free).bit_count() == 1]
        if halves:
            return Placement.of(free, chip_ids(halves[0]), misfit=left)
        return Placement.of(free, chip_ids(free)[:1], misfit=left + _BREAKS_A_CARD)
    if 2 * len(whole) < request:
        return None
    chips = tuple(chip for card in whole[: request // 2] for chip in chip_ids(card))
    return Placement.of(free, chips, misfit=left)


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """The better fit first."""
    return (placement.misfit,)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's number: ``16·(32-best)``; it says nothing of health."""
    return _WEIGHT * (_MOST - placement.misfit)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """Too few cards are free as a whole."""
    whole = sum(card & ~free == 0 for card in product.rings)
    return Refusal(
        Reason.CARDS_BROKEN,
        f"{request} chips asked for must be {(request + 1) // 2} whole cards; {whole} are free as a whole",
    )


RULE = Rule(place, key, score, refuse)
