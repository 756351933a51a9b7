"""The rule of the 910A server, two HCCS rings of 4: does a request fit on a set of free chips, how well, and where.

Seed 000 "Affinity Principles"; spec/scheduling.md §4.1 (its tables of all 100 states are test cases). A pod of up to
one ring's size stays within one ring; one of the whole server takes all of it. Everything depends on the free chips
alone, so it is computed once per product for every set (256 sets, 4 requests) and then looked up.
"""

from functools import lru_cache

from allocator.rules.placement import OrderKey, Placement, Rule, per_ring
from ascend.chips import ChipSet, chip_ids
from ascend.errors import Refusal
from ascend.products import Product
from ascend.reasons import Reason

_PREFERRED_FREE: dict[int, tuple[int, ...]] = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}
"""For a request, how many free chips the ring should have, best first; the position is the group A…D.

One chip goes to a ring with 1, else 3, else 2, else 4 free; two chips to one with 2, else 4, else 3.
"""

_WEIGHT = 8
_GROUPS = 4


def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; its misfit is the group, 0…3 for the documents' A…D.

    Args:
        product: the server.
        free: its free chips; others than the product's must not be in it.
        request: one of the product's valid requests.
    """
    return _table(product, request)[free]


@lru_cache
def _table(product: Product, request: int) -> tuple[Placement | None, ...]:
    return tuple(_place(product, free, request) for free in range(product.all_chips + 1))


def _place(product: Product, free: ChipSet, request: int) -> Placement | None:
    if request == product.chips:
        return Placement.of(free, chip_ids(free), misfit=0) if free == product.all_chips else None
    # The group is the better of both rings'; the selection walks the same preference, left ring first on a tie.
    # So the ring taken is always the one that made the group.
    for group, wanted in enumerate(_PREFERRED_FREE[request]):
        for ring in product.rings:
            if (ring & free).bit_count() == wanted:
                return Placement.of(free, chip_ids(ring & free)[:request], misfit=group)
    return None


def key(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Healthier servers first, then the better group, then the fuller server."""
    return (-healthy, placement.misfit, placement.free)


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's number for the same order: ``8·(4A-g)+(8-free)``."""
    return _WEIGHT * (_GROUPS * healthy - placement.misfit) + (_WEIGHT - placement.free)


def refuse(product: Product, free: ChipSet, request: int) -> Refusal:
    """No ring has enough free chips."""
    rings = per_ring(product, free)
    return Refusal(
        Reason.RING_TOO_SMALL, f"{request} chips asked for must be linked by one ring; the rings have {rings} free"
    )


RULE = Rule(place, key, score, refuse)
