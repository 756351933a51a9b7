"""What a node has left, and the verdict on a request for it."""

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from allocator.rules.request import Ask
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
        cut_off: the free chips whose network is unhealthy: no good for distributed jobs.
        sub_healthy: the node or a chip of it works, but not as it should.
    """

    product: Product
    healthy: int
    free: ChipSet
    room: int
    cut_off: ChipSet = 0
    sub_healthy: bool = False

    def usable(self, ask: Ask) -> ChipSet:
        """The free chips that serve a pod."""
        return self.free & ~self.cut_off if ask.distributed else self.free


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
def judge(vacancy: Vacancy, ask: Ask) -> Verdict:
    """Whether a pod fits on what a node has left; the order of the tests is that of their reasons' usefulness.

    Args:
        vacancy: what the node has left.
        ask: what the pod asks for.
    """
    obstacle = _obstacle_to_product(vacancy, ask) or _shortage(vacancy, ask)
    if obstacle is not None:
        return obstacle
    usable = vacancy.usable(ask)
    fit = ring_fit(vacancy.product, usable, ask.chips)
    if fit is None:
        return Refusal("RingTooSmall", _ring_sentence(vacancy.product, usable, ask.chips))
    return Fit(fit.key(vacancy.healthy), fit.score(vacancy.healthy), fit.chips, fit.taken)


def _obstacle_to_product(vacancy: Vacancy, ask: Ask) -> Refusal | None:
    product, request = vacancy.product, ask.chips
    if ask.products is not None and product.name not in ask.products:
        wanted = " or ".join(sorted(ask.products))
        return Refusal("WrongProduct", f"the job is for {wanted} servers, this is a {product.name} server")
    if request not in product.requests:
        allowed = ", ".join(map(str, product.requests))
        return Refusal("InvalidRequest", f"a pod may ask for {allowed} chips of a {product.name} server, not {request}")
    if ask.shuns_sub_health and vacancy.sub_healthy:
        return Refusal("NodeSubHealthy", "the node is sub-healthy, and the job's subHealthyStrategy is not ignore")
    return None


def _shortage(vacancy: Vacancy, ask: Ask) -> Refusal | None:
    if vacancy.usable(ask).bit_count() < ask.chips:
        free = vacancy.free.bit_count()
        sentence = f"{ask.chips} chips asked for, {free} free of {vacancy.healthy} healthy"
        if ask.distributed and vacancy.cut_off:
            cut_off = vacancy.cut_off.bit_count()
            sentence += f", {cut_off} of them with an unhealthy network, which a distributed job needs"
        return Refusal("NotEnoughChips", sentence)
    if vacancy.room < ask.chips:
        admitted = max(vacancy.room, 0)
        return Refusal("NoRoomAtKubelet", f"{ask.chips} chips asked for, the kubelet would admit {admitted}")
    return None


def _ring_sentence(product: Product, usable: ChipSet, request: int) -> str:
    per_ring = " + ".join(str((ring & usable).bit_count()) for ring in product.rings)
    return f"{request} chips asked for must be linked by one ring; the rings have {per_ring} free"
