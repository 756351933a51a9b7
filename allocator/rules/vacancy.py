"""What a node has left, and the verdict on a request for it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from allocator.rules.ring import OrderKey, ring_fit
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.products import Product


@dataclass(frozen=True, slots=True)
class Vacancy:
    """What a usable node has left: nodes with equal vacancies are interchangeable.

    Attributes:
        product: the kind of server.
        healthy: how many of its chips are healthy, held or not (``A`` of the rule).
        free: the chips that are healthy and neither held nor reserved.
        room: how many chips the kubelet would still admit: what it offers minus what pods bound to it ask for.
    """

    product: Product
    healthy: int
    free: ChipSet
    room: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A request fits: where the node stands among others, and what the request takes.

    Attributes:
        key: order among nodes, the smaller the better.
        score: the reference scheduler's number for it.
        chips: in selection order.
        taken: the same as a set.
    """

    key: OrderKey
    score: int
    chips: tuple[int, ...]
    taken: ChipSet


Verdict: TypeAlias = Fit | Refusal

OCCUPIED = frozenset({"NotEnoughChips", "RingTooSmall", "NoRoomAtKubelet"})
"""Reasons that go away when other pods do; the others of a node need somebody to act."""


@lru_cache(maxsize=16384)
def judge(vacancy: Vacancy, request: int) -> Verdict:
    """Whether a request fits on what a node has left; the order of the tests is that of their reasons' usefulness.

    Args:
        vacancy: what the node has left.
        request: number of chips, at least 1.
    """
    product = vacancy.product
    if request not in product.requests:
        allowed = ", ".join(map(str, product.requests))
        return Refusal("InvalidRequest", f"a pod may ask for {allowed} chips of a {product.name} server, not {request}")
    free = vacancy.free.bit_count()
    if free < request:
        return Refusal("NotEnoughChips", f"{request} chips asked for, {free} free of {vacancy.healthy} healthy")
    if vacancy.room < request:
        return Refusal("NoRoomAtKubelet", f"{request} chips asked for, the kubelet would admit {max(vacancy.room, 0)}")
    fit = ring_fit(product, vacancy.free, request)
    if fit is None:
        return Refusal("RingTooSmall", _ring_sentence(vacancy, request))
    return Fit(fit.key(vacancy.healthy), fit.score(vacancy.healthy), fit.chips, fit.taken)


def _ring_sentence(vacancy: Vacancy, request: int) -> str:
    per_ring = " + ".join(str((ring & vacancy.free).bit_count()) for ring in vacancy.product.rings)
    return f"{request} chips asked for must be linked by one ring; the rings have {per_ring} free"
