"""The rule for A3 servers: cards of two dies; a pod that requests more than one chip takes whole cards.

docs/spec/products.md#a3-servers; docs/deviations.md lists the differences to the reference.
"""

from functools import lru_cache

from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.placement import Placement, Rule, by_misfit

_WEIGHT = 16
_MOST = 32
_BREAKS_A_CARD = 16
"""Added to the misfit if a single chip breaks a whole card: more than any other misfit, so that a node with a card that
is broken already is preferred."""


@lru_cache(maxsize=1 << 15)
def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit is the number of chips that stay free, and more if a card is broken."""
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


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's score: ``16·(32-best)``; health has no influence on it."""
    return _WEIGHT * (_MOST - placement.misfit)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """The refusal if too few whole cards are free."""
    whole = sum(card & ~free == 0 for card in product.rings)
    return Refusal(
        Reason.CARDS_BROKEN,
        f"{count(request, 'chip')} requested must be {count((request + 1) // 2, 'whole card')}; "
        f"{count(whole, 'whole card')} {'is' if whole == 1 else 'are'} free",
    )


RULE = Rule(place, by_misfit, score, refuse, "card")
