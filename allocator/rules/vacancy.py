"""What a node has left, and the verdict on a pod for it."""

from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.families import RULES
from allocator.rules.placement import OrderKey
from allocator.rules.request import Ask
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.products import PRODUCTS, Product


class Vacancy(msgspec.Struct, frozen=True):
    """What a usable node has left: nodes with equal vacancies are interchangeable.

    Attributes:
        product: the kind of server.
        healthy: how many of its chips are healthy, held or not (``A`` of the rules).
        free: the chips that are healthy and neither held nor reserved.
        room: how many chips the kubelet would still admit: what it offers minus what pods bound to it ask for.
        faulty: how many of its chips are not healthy (``U`` of the rules).
        cut_off: the free chips whose network is unhealthy: no good for distributed jobs.
        sub_healthy: the node or a chip of it works, but not as it should.
    """

    product: Product
    healthy: int
    free: ChipSet
    room: int
    faulty: int = 0
    cut_off: ChipSet = 0
    sub_healthy: bool = False

    def usable(self, ask: Ask) -> ChipSet:
        """The free chips that serve a pod."""
        return self.free & ~self.cut_off if self.needs_network(ask) else self.free

    def without(self, taken: ChipSet) -> "Vacancy":
        """What is left once a pod has taken these chips."""
        return replace(
            self,
            free=self.free & ~taken,
            cut_off=self.cut_off & ~taken,
            room=max(self.room - taken.bit_count(), 0),
        )

    def needs_network(self, ask: Ask) -> bool:
        """Whether a pod can do nothing with a chip whose network is unhealthy."""
        return (ask.distributed or ask.minds_network) and self.product.heeds_network


class Fit(msgspec.Struct, frozen=True):
    """A pod fits: where the node stands among others, and what the pod takes.

    Attributes:
        key: order among nodes, the smaller the better; nodes of one product are together.
        score: a number for the same order among nodes of one product, larger is better: the reference scheduler's where
            it has one.
        chips: in selection order.
        taken: the same as a set.
    """

    key: OrderKey
    score: int
    chips: tuple[int, ...]
    taken: ChipSet


Verdict: TypeAlias = Fit | Refusal

OCCUPIED = frozenset(
    {"NotEnoughChips", "RingTooSmall", "PairsBroken", "CardsBroken", "MeshTooSmall", "NoRoomAtKubelet"}
)
"""Reasons that go away when other pods do; the others of a node need somebody to act."""

_PREFERENCE: Final = {name: position for position, name in enumerate(PRODUCTS)}
"""Of servers of different products those listed first are taken first. That is 910A, whose rule the reference gives to
a job that names nothing (spec/scheduling.md §3.3)."""


def judge(vacancy: Vacancy, ask: Ask) -> Verdict:
    """Whether a pod fits on what a node has left; the order of the tests is that of their reasons' usefulness.

    Args:
        vacancy: what the node has left.
        ask: what the pod asks for.
    """
    obstacle = _unsuitable(vacancy, ask) or _shortage(vacancy, ask)
    if obstacle is not None:
        return obstacle
    product, usable = vacancy.product, vacancy.usable(ask)
    rule = RULES[product.family]
    placement = rule.place(product, usable, ask.chips)
    if placement is None:
        return rule.refuse(product, usable, ask.chips)
    key = rule.key(placement, vacancy.healthy, vacancy.faulty)
    score = rule.score(product, placement, vacancy.healthy, vacancy.faulty)
    if vacancy.sub_healthy:
        # It yields to an equally good one; the reference takes one point off (spec/scheduling.md §1.4).
        score = max(score - 1, 0)
    # Keys of different products mean different things. Where the score sees no difference, the healthier server wins.
    preference = -1 if product.name == ask.prefers else _PREFERENCE[product.name]
    order = (preference, *key, vacancy.sub_healthy, -vacancy.healthy)
    return Fit(order, score, placement.chips, placement.taken)


@lru_cache(maxsize=4096)
def capacity(vacancy: Vacancy, ask: Ask) -> tuple[int, Refusal]:
    """How many such pods a node takes, one after the other, and why not one more."""
    verdict, count = judge(vacancy, ask), 0
    while isinstance(verdict, Fit):
        count += 1
        vacancy = vacancy.without(verdict.taken)
        verdict = judge(vacancy, ask)
    return count, verdict


def unsuitable_request(product: Product, ask: Ask) -> Refusal | None:
    """Why a pod makes no sense on a kind of server however much of it is free; None where it does."""
    if ask.products is not None and product.name not in ask.products:
        wanted = " or ".join(sorted(ask.products))
        return Refusal("WrongProduct", f"the job is for {wanted} servers, this is a {product.name} server")
    if ask.peers is not None and product.name not in ask.peers:
        theirs = " or ".join(sorted(ask.peers))
        return Refusal(
            "WrongProduct", f"the other pods of the job are on {theirs} servers, this is a {product.name} server"
        )
    allowed = product.allowed(distributed=ask.distributed)
    if ask.chips not in allowed:
        who = "a pod of a job of several pods" if allowed != product.requests else "a pod"
        numbers = ", ".join(map(str, allowed))
        return Refusal(
            "InvalidRequest", f"{who} may ask for {numbers} chips of a {product.name} server, not {ask.chips}"
        )
    return None


def _unsuitable(vacancy: Vacancy, ask: Ask) -> Refusal | None:
    if ask.shuns_sub_health and vacancy.sub_healthy:
        return Refusal("NodeSubHealthy", "the node is sub-healthy, and the job's subHealthyStrategy is not ignore")
    return unsuitable_request(vacancy.product, ask)


def _shortage(vacancy: Vacancy, ask: Ask) -> Refusal | None:
    if vacancy.usable(ask).bit_count() < ask.chips:
        sentence = f"{ask.chips} chips asked for, {vacancy.free.bit_count()} free of {vacancy.healthy} healthy"
        if vacancy.needs_network(ask) and vacancy.cut_off:
            cut_off = vacancy.cut_off.bit_count()
            sentence += f", {cut_off} of them with an unhealthy network, which a job of several pods needs"
        return Refusal("NotEnoughChips", sentence)
    if vacancy.room < ask.chips:
        admitted = max(vacancy.room, 0)
        return Refusal("NoRoomAtKubelet", f"{ask.chips} chips asked for, the kubelet would admit {admitted}")
    return None
