"""The ring rule of the 910A server: does a request fit on a set of free chips, how well, and which chips it takes.

Seed 000 "Affinity Principles"; spec/scheduling.md §4.1 (its tables of all 100 states are test cases). A pod of up to
one ring's size stays within one ring; one of the whole server takes all of it. Everything depends on the free chips
alone, so it is computed once per product for every set (256 sets, 4 requests) and then looked up.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.products import Product

OrderKey: TypeAlias = tuple[int, int, int]
"""``(-healthy chips, group, free chips)``: the smaller, the better the node."""

_PREFERRED_FREE: dict[int, tuple[int, ...]] = {1: (1, 3, 2, 4), 2: (2, 4, 3), 4: (4,)}
"""For a request, how many free chips the ring should have, best first; the position is the group A…D.

One chip goes to a ring with 1, else 3, else 2, else 4 free; two chips to one with 2, else 4, else 3.
"""

_WEIGHT = 8
_GROUPS = 4


@dataclass(frozen=True, slots=True)
class RingFit:
    """How a request fits on a set of free chips.

    Attributes:
        group: 0…3, the documents' A…D: how well the best ring suits the request.
        free: how many chips are free before the request takes its own.
        chips: the chips it takes, in selection order.
        taken: the same as a set.
    """

    group: int
    free: int
    chips: tuple[int, ...]
    taken: ChipSet

    def key(self, healthy: int) -> OrderKey:
        """What nodes are ordered by: healthier servers first, then the better group, then the fuller server."""
        return (-healthy, self.group, self.free)

    def score(self, healthy: int) -> int:
        """The reference scheduler's number for the same order: ``8·(4A-g)+(8-free)``, larger is better."""
        return _WEIGHT * (_GROUPS * healthy - self.group) + (_WEIGHT - self.free)


def ring_fit(product: Product, free: ChipSet, request: int) -> RingFit | None:
    """How ``request`` chips fit on the free chips of a server; None where they don't.

    Args:
        product: the server.
        free: its free chips; others than the product's must not be in it.
        request: one of the product's valid requests.
    """
    return _table(product, request)[free]


@lru_cache
def _table(product: Product, request: int) -> tuple[RingFit | None, ...]:
    return tuple(_fit(product, free, request) for free in range(product.all_chips + 1))


def _fit(product: Product, free: ChipSet, request: int) -> RingFit | None:
    if request == product.chips:
        if free != product.all_chips:
            return None
        return RingFit(group=0, free=product.chips, chips=chip_ids(free), taken=free)
    # The group is the better of both rings'; the selection walks the same preference, left ring first on a tie.
    # So the ring taken is always the one that made the group.
    for group, wanted in enumerate(_PREFERRED_FREE[request]):
        for ring in product.rings:
            if (ring & free).bit_count() == wanted:
                chips = chip_ids(ring & free)[:request]
                return RingFit(group, free.bit_count(), chips, chip_set(chips))
    return None
