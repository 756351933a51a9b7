"""The rule for 910A servers, two HCCS rings of 4: whether a request fits on a set of free chips, how well, and where.

docs/spec/affinity-rules.md#hccs-rings; docs/spec/products.md#910a-servers (its tables of all 100 states are test
cases). Up to 4 chips come from one ring; 8 chips take the whole server. The result depends on the free chips alone, so
it is computed once for every set of a product (256 sets, 4 requests) and then looked up.
"""

from functools import lru_cache

from ascend.chips import ChipSet, chip_ids
from ascend.products import Product
from ascend.rules.placement import Placement, Rule, by_health, ring_too_small

_PREFERRED_FREE: dict[int, tuple[int, ...]] = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}
"""By request: how many free chips the ring should have, best first; the position is the group A…D.

One chip is taken from a ring with 1, else 3, else 2, else 4 free chips; two chips from one with 2, else 4, else 3.
"""

_WEIGHT = 8
_GROUPS = 4


def place(product: Product, free: ChipSet, request: int) -> Placement | None:
    """The chips for a request; the misfit is the group, 0…3 for the documents' A…D.

    Args:
        product: the product of the server.
        free: its free chips; only chips of the product.
        request: one of the product's valid requests.
    """
    return _table(product, request)[free]


@lru_cache
def _table(product: Product, request: int) -> tuple[Placement | None, ...]:
    return tuple(_place(product, free, request) for free in range(product.all_chips + 1))


def _place(product: Product, free: ChipSet, request: int) -> Placement | None:
    if request == product.chips:
        return Placement.of(free, chip_ids(free), misfit=0) if free == product.all_chips else None
    # The group is the better of both rings; the selection follows the same preference, left ring first on a tie.
    # So the selected ring is always the one that determines the group.
    for group, wanted in enumerate(_PREFERRED_FREE[request]):
        for ring in product.rings:
            if (ring & free).bit_count() == wanted:
                return Placement.of(free, chip_ids(ring & free)[:request], misfit=group)
    return None


def score(product: Product, placement: Placement, healthy: int, faulty: int) -> int:  # noqa: ARG001 - a rule's signature
    """The reference scheduler's score for the same order: ``8·(4A-g)+(8-free)``."""
    return _WEIGHT * (_GROUPS * healthy - placement.misfit) + (_WEIGHT - placement.free)


RULE = Rule(place, by_health, score, ring_too_small, "ring")
