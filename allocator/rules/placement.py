"""Where a pod goes on one server: what every family's rule answers."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ascend.chips import ChipSet, chip_set
from ascend.errors import Refusal
from ascend.products import Product

OrderKey: TypeAlias = tuple[int, ...]
"""What nodes are ordered by: the smaller, the better. Comparable within a product."""


class Placement(msgspec.Struct, frozen=True):
    """Chips for a request out of a set of free ones.

    Attributes:
        misfit: how badly the request suits what is free; 0 is perfect. Its scale is the family's.
        free: how many chips are free before the request takes its own.
        chips: the chips it takes, in selection order.
        taken: the same as a set.
    """

    misfit: int
    free: int
    chips: tuple[int, ...]
    taken: ChipSet

    @classmethod
    def of(cls, free: ChipSet, chips: tuple[int, ...], *, misfit: int) -> "Placement":
        """These chips out of the free ones."""
        return cls(misfit, free.bit_count(), chips, chip_set(chips))


class Rule(msgspec.Struct, frozen=True):
    """The rule of a family: four pure functions.

    Attributes:
        place: the chips for a request out of free ones; None where they are not linked as it takes.
        key: the order of nodes, from the placement, the healthy and the faulty chips of the node.
        score: the number a scheduler adds up, from the product as well; larger is better and never contradicts the key.
        refuse: why a request doesn't fit although enough chips are free.
    """

    place: Callable[[Product, ChipSet, int], Placement | None]
    key: Callable[[Placement, int, int], OrderKey]
    score: Callable[[Product, Placement, int, int], int]
    refuse: Callable[[Product, ChipSet, int], Refusal]


def per_ring(product: Product, free: ChipSet) -> str:
    """How many chips of each ring are free: ``3 + 1``."""
    return " + ".join(str((ring & free).bit_count()) for ring in product.rings)
