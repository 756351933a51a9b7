"""The verdict on a request for what a node has left."""

from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.cores import CoresLeft, no_cores
from allocator.rules.request import CORES_OF_CHIP, ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.vnpus import no_such_vnpu
from ascend.errors import Refusal
from ascend.grammar import a, count
from ascend.products import PRODUCTS, Product
from ascend.reasons import Reason
from ascend.rules.families import RULES, refuse_number
from ascend.rules.placement import OrderKey
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES, Media, VnpuTemplate


class Fit(msgspec.Struct, frozen=True):
    """A request fits: how the node ranks among others, and what the pod takes.

    Attributes:
        key: order among nodes, smaller is better; nodes of one product are adjacent.
        score: a number for the same order among nodes of one product, larger is better: the reference scheduler's if
            it has one.
        take: what the pod takes.
    """

    key: OrderKey
    score: int
    take: Take


Verdict: TypeAlias = Fit | Refusal


_SCORE_OF_CHIP: Final = 1024
"""More than twice the vNPUs of a node."""


_MOST_CPUS: Final = 8
"""More than the AI CPUs of a chip."""


_LAST: Final = 1024
"""More than the AI cores of a chip, and than the products."""


_PREFERENCE: Final = {name: position for position, name in enumerate(PRODUCTS)}
"""The order of products for a request that fits on several: the first is 910A, whose rule the reference applies to a
job that names no product (docs/spec/products.md#policies-and-rules)."""


def judge(vacancy: Vacancy, request: ChipRequest) -> Verdict:
    """The verdict on a request for a node; the most useful reason is checked first.

    Args:
        vacancy: what the node has left.
        request: what the pod requests.
    """
    obstacle = _unsuitable(vacancy, request)
    if obstacle is not None:
        return obstacle
    if request.vnpu:
        return _judge_vnpu(vacancy, request.vnpu)
    if request.cores:
        return _judge_cores(vacancy, request)
    product, usable = vacancy.product, vacancy.usable(request)
    rule = RULES[product.family]
    obstacle = _shortage(vacancy, request)
    placement = rule.place(product, usable, request.chips) if obstacle is None else None
    if placement is None:
        return _kept_or(obstacle or rule.refuse(product, usable, request.chips), vacancy, request)
    key = rule.key(placement, vacancy.healthy, vacancy.faulty)
    score = rule.score(product, placement, vacancy.healthy, vacancy.faulty)
    if vacancy.sub_healthy:
        # It ranks after an equally good node; the reference subtracts one point
        # (docs/spec/scheduling.md#fault-penalty).
        score = max(score - 1, 0)
    # Keys of different products are not comparable. Between equal scores the healthier server wins.
    order = (_PREFERENCE[product.name], *key, vacancy.sub_healthy, -vacancy.healthy)
    return Fit(order, score, Take(placement.chips, placement.taken))


def _judge_vnpu(vacancy: Vacancy, suffix: str) -> Verdict:
    chosen = vacancy.vnpus.choose(suffix) if vacancy.vnpus is not None else no_such_vnpu(suffix, ())
    if isinstance(chosen, Refusal):
        return _kept_or(chosen, vacancy, ChipRequest(0, vnpu=suffix))
    order = (_PREFERENCE[vacancy.product.name], -chosen.beside, -chosen.on_node, vacancy.sub_healthy)
    score = _SCORE_OF_CHIP * chosen.beside + 2 * chosen.on_node + 1 - vacancy.sub_healthy
    return Fit(order, score, Take.part(chosen.vnpu))


def _judge_cores(vacancy: Vacancy, request: ChipRequest) -> Verdict:
    """The verdict on AI cores: a part of one chip, or whole chips by the rule of the product."""
    left = vacancy.cores
    if left is None:
        return no_cores(request)
    asked = left.template_or_chips(request)
    if isinstance(asked, Refusal):
        return asked
    room = left.room - vacancy.kept.bit_count() * left.kind.cores

    def judge_these(these: Vacancy) -> Verdict:
        if isinstance(asked, VnpuTemplate):
            return _judge_part(these, left, request, asked, room)
        whole = replace(these, cores=None, room=room // left.kind.cores, unkept=None)
        verdict = _judge_chips_by_cores(whole, request, asked)
        return _kept_or(verdict, vacancy, request) if isinstance(verdict, Refusal) else verdict

    if not vacancy.doubtful:
        return judge_these(vacancy)
    settled = judge_these(vacancy.settled)
    if isinstance(settled, Fit):
        return settled
    doubtful = judge_these(vacancy)
    if isinstance(doubtful, Refusal):
        return doubtful
    # After every node that has room elsewhere, and again by product.
    return Fit((doubtful.key[0] + _LAST, *doubtful.key[1:]), 0, doubtful.take)


def _judge_chips_by_cores(vacancy: Vacancy, request: ChipRequest, chips: int) -> Verdict:
    verdict = judge(vacancy, replace(request, cores=0, chips=chips, media=Media.SHARED, with_labels=False))
    if isinstance(verdict, Refusal):
        are = f"{request.what} are {count(chips, 'whole chip')} of this node"
        return Refusal(verdict.reason, f"{are}: {verdict.message}")
    return Fit(verdict.key, verdict.score, Take.whole(verdict.take.chips, cores=request.cores))


def _judge_part(vacancy: Vacancy, left: CoresLeft, request: ChipRequest, template: VnpuTemplate, room: int) -> Verdict:
    chosen = left.choose(template, vacancy.free)
    if chosen is None:
        free = left.cores(vacancy.free)
        sentence = f"{request.what} requested, {free} free, but no chip has left what {template.name} needs"
        return _kept_or(Refusal(Reason.NO_FREE_VNPU, sentence), vacancy, request)
    if room < request.cores:
        sentence = f"{request.what} requested, the kubelet would admit {max(room, 0)}"
        return _kept_or(Refusal(Reason.NO_ROOM_AT_KUBELET, sentence), vacancy, request)
    chip = chosen.left
    # The parts of chips of different products are alike, so the product comes last.
    order = (chip.cores, chip.cpus, -left.used, vacancy.sub_healthy, _PREFERENCE[vacancy.product.name])
    fill = (CORES_OF_CHIP - chip.cores) * _MOST_CPUS + _MOST_CPUS - 1 - chip.cpus
    return Fit(order, _SCORE_OF_CHIP * fill + 2 * left.used + 1 - vacancy.sub_healthy, Take.part(chosen.cut))


def peer_on_node() -> Refusal:
    """Why a node refuses another pod of a job that is spread."""
    sentence = "another pod of the job is on the node, and servers of its product take one pod of a job of several pods"
    return Refusal(Reason.PEER_ON_NODE, sentence)


@lru_cache(maxsize=4096)
def capacity(vacancy: Vacancy, request: ChipRequest) -> tuple[int, Refusal]:
    """The number of pods with a request that fit on a node, and the refusal of the next pod."""
    verdict, number = judge(vacancy, request), 0
    while isinstance(verdict, Fit):
        number += 1
        vacancy = vacancy.without(verdict.take)
        verdict = judge(vacancy, request)
        if request.is_spread and isinstance(verdict, Fit):
            return number, peer_on_node()
    return number, verdict


def _invalid_for(product: Product, request: ChipRequest) -> Refusal | None:
    """Why a request is invalid for a product, whatever is free; None if it is valid."""
    if request.products is not None and product.name not in request.products:
        wanted = " or ".join(sorted(request.products))
        return Refusal(Reason.WRONG_PRODUCT, f"the job is for {wanted} servers; this is {a(f'{product.name} server')}")
    if request.is_for_chips and request.chips not in product.allowed(distributed=request.distributed):
        return refuse_number(product, request.chips, distributed=request.distributed)
    return None


def _unsuitable(vacancy: Vacancy, request: ChipRequest) -> Refusal | None:
    if request.avoids_sub_healthy and vacancy.sub_healthy:
        sentence = "the node is sub-healthy, and the job's label subHealthyStrategy is not ignore"
        return Refusal(Reason.NODE_SUB_HEALTHY, sentence)
    if vacancy.cores is not None and request.is_for_chips:
        sentence = f"the node offers its chips as {RESOURCE_CORES} only, {vacancy.cores.kind.cores} for each chip"
        return Refusal(Reason.RESOURCE_NOT_OFFERED, sentence)
    if request.model and vacancy.model and vacancy.model != request.model:
        return Refusal(Reason.WRONG_PRODUCT, f"the gang is on {request.model} chips; these are {vacancy.model}")
    return _invalid_for(vacancy.product, request)


def _shortage(vacancy: Vacancy, request: ChipRequest) -> Refusal | None:
    requested = count(request.chips, "chip")
    if vacancy.usable(request).bit_count() < request.chips:
        sentence = f"{requested} requested, {vacancy.free.bit_count()} free of {vacancy.healthy} healthy"
        cut_off = (vacancy.free & vacancy.cut_off).bit_count()
        if vacancy.needs_network(request) and cut_off:
            sentence += f", {cut_off} of them with an unhealthy network, which a job of several pods can't use"
        return Refusal(Reason.NOT_ENOUGH_CHIPS, sentence)
    if vacancy.room < request.chips:
        admitted = max(vacancy.room, 0)
        return Refusal(Reason.NO_ROOM_AT_KUBELET, f"{requested} requested, the kubelet would admit {admitted}")
    return None


def _kept_or(refusal: Refusal, vacancy: Vacancy, request: ChipRequest) -> Refusal:
    """Why a node refuses a request: ``ChipsKept`` if it would fit without what is kept for others."""
    if vacancy.unkept is None:
        return refusal
    chips = f"{count(vacancy.kept.bit_count(), 'chip is', 'chips are')}" if vacancy.kept else "parts of chips are"
    kept = f"{chips} kept for {vacancy.keeper or 'others'}"
    are_kept = isinstance(judge(vacancy.unkept, request), Fit)
    return Refusal(Reason.CHIPS_KEPT if are_kept else refusal.reason, f"{refusal.message}; {kept}")
