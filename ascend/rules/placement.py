"""The types of placement rules, which select chips within a server and order nodes, and what the rules share."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from ascend.chips import ChipSet, chip_set
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.products import Product
from ascend.reasons import Reason

OrderKey: TypeAlias = tuple[int, ...]
"""Orders nodes, smaller is better; comparable within a product."""


class Placement(msgspec.Struct, frozen=True):
    """Chips for a request, selected from a set of free chips.

    Attributes:
        misfit: how badly the request matches the free chips; 0 is perfect. Each family has its own scale.
        free: the number of free chips, before the request takes any.
        chips: the selected chips, in selection order.
        taken: the same as a set.
    """

    misfit: int
    free: int
    chips: tuple[int, ...]
    taken: ChipSet

    @classmethod
    def of(cls, free: ChipSet, chips: tuple[int, ...], *, misfit: int) -> "Placement":
        """The placement that takes these chips of the free ones."""
        return cls(misfit, free.bit_count(), chips, chip_set(chips))


class Rule(msgspec.Struct, frozen=True):
    """The rule of a family: four pure functions, and a noun.

    Attributes:
        place: selects chips for a request from a product's free chips; None if the free ones are not linked as
            required.
        key: the order of nodes, from the placement and the numbers of healthy and unhealthy chips of the node.
        score: a score for schedulers, from the same values and the product; larger is better, in the order of ``key``.
        refuse: why a request does not fit although enough chips are free.
        group: the noun for the linked chips of ``Product.rings``, as in ``mesh 0``; empty if all chips are alike.
    """

    place: Callable[[Product, ChipSet, int], Placement | None]
    key: Callable[[Placement, int, int], OrderKey]
    score: Callable[[Product, Placement, int, int], int]
    refuse: Callable[[Product, ChipSet, int], Refusal]
    group: str


def by_misfit(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Orders nodes by misfit."""
    return (placement.misfit,)


def by_health(placement: Placement, healthy: int, faulty: int) -> OrderKey:  # noqa: ARG001 - a rule's signature
    """Orders nodes by healthy chips (more first), then by misfit, then by free chips (fewer first)."""
    return (-healthy, placement.misfit, placement.free)


def per_ring(product: Product, free: ChipSet) -> str:
    """The number of free chips of each ring: ``3 + 1``."""
    return " + ".join(str((ring & free).bit_count()) for ring in product.rings)


def ring_too_small(product: Product, free: ChipSet, request: int) -> Refusal:
    """The refusal if no ring has enough free chips."""
    return Refusal(
        Reason.RING_TOO_SMALL,
        f"{count(request, 'chip')} requested must be within one ring; "
        f"the rings have {per_ring(product, free)} free chips",
    )
