"""What a node has left, and the verdict on a request for it."""

from collections.abc import Collection
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.cores import CoresLeft, no_cores
from allocator.rules.request import CORES_OF_CHIP, ChipRequest
from allocator.rules.vnpus import VnpusLeft, no_such_vnpu
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.errors import Refusal
from ascend.grammar import a, count
from ascend.products import PRODUCTS, Product
from ascend.reasons import Reason
from ascend.rules.families import RULES, refuse_number
from ascend.rules.placement import OrderKey
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES, Media, VnpuTemplate
from ascend.vnpus import Vnpu


class Vacancy(msgspec.Struct, frozen=True, gc=False):
    """What a usable node has left; nodes with equal vacancies are interchangeable.

    Attributes:
        product: the product of the server.
        healthy: the number of its healthy chips, held or not (``A`` of the rules).
        free: the chips that are healthy and neither held nor reserved.
        room: the number of chips the kubelet would still admit: allocatable minus the requests of pods bound to it, and
            minus the kept chips, so it can be negative.
        faulty: the number of its unhealthy chips (``U`` of the rules).
        cut_off: the free or kept chips with an unhealthy network, which distributed jobs can't use.
        sub_healthy: the node or one of its chips is degraded.
        kept: the chips that would be free, but are kept for others: for pods that have preempted, or a waiting job.
        keeper: what they are kept for, in sentences.
        vnpus: what is left of its vNPUs; None if it has none.
        cores: what is left of its AI cores, if its chips are cut while pods run; it takes no requests for chips then.
        doubtful: the free chips that are in use by the node's report, if they are cut while pods run; they come last.
        unkept: what would be left if nothing were kept for others; None if nothing is.
        model: the model of its chips; empty if it is unknown.
    """

    product: Product
    healthy: int
    free: ChipSet
    room: int
    faulty: int = 0
    cut_off: ChipSet = 0
    sub_healthy: bool = False
    kept: ChipSet = 0
    keeper: str = ""
    vnpus: VnpusLeft | None = None
    cores: CoresLeft | None = None
    doubtful: ChipSet = 0
    unkept: "Vacancy | None" = None
    model: str = ""

    def usable(self, request: ChipRequest) -> ChipSet:
        """The free chips that a request can use."""
        return self.free & ~self.cut_off if self.needs_network(request) else self.free

    @property
    def settled(self) -> "Vacancy":
        """Without the doubtful chips."""
        free = self.free & ~self.doubtful
        return replace(self, free=free, cut_off=self.cut_off & (free | self.kept), doubtful=0)

    def keeping(self, chips: ChipSet, keeper: str, parts: Collection[Vnpu | Cut]) -> "Vacancy":
        """What is left beside what is kept for others, whether somebody has something of it now or not.

        Args:
            chips: the chips that are kept as a whole; some of them may be cut now.
            keeper: what all of it is kept for, in sentences.
            parts: the vNPUs that are kept.
        """
        kept = self.free & chips
        free, number, vnpus, cores = self.free & ~kept, kept.bit_count(), self.vnpus, self.cores
        if vnpus is not None:
            vnpus = vnpus.keeping([part for part in parts if isinstance(part, Vnpu)])
        if cores is not None:
            cores, free = cores.keeping([part for part in parts if isinstance(part, Cut)], chips, free)
        if (free, vnpus, cores) == (self.free, self.vnpus, self.cores):
            return self
        return replace(
            self,
            free=free,
            room=self.room - number,
            cut_off=self.cut_off & (free | kept),
            kept=kept,
            keeper=keeper,
            vnpus=vnpus,
            cores=cores,
            doubtful=self.doubtful & free,
            unkept=self,
        )

    def without(self, take: Take) -> "Vacancy":
        """What is left after a pod has taken this."""
        unkept = self.unkept.without(take) if self.unkept is not None else None
        if take.vnpu is not None:
            left = self.vnpus.without((take.vnpu,)) if self.vnpus is not None else None
            return replace(self, vnpus=left, unkept=unkept)
        taken, cores = take.occupied, self.cores
        if cores is not None:
            cores = cores.without_cores(take.cores) if take.cut is None else cores.without(take.cut, self.free)
        return replace(
            self,
            free=self.free & ~taken,
            cut_off=self.cut_off & ~taken,
            room=max(self.room - len(take.chips), 0),
            cores=cores,
            doubtful=self.doubtful & ~taken,
            unkept=unkept,
        )

    def has(self, take: Take, request: ChipRequest) -> bool:
        """Whether what a pod would take is free, and usable for a request."""
        if take.vnpu is not None:
            return self.vnpus is not None and take.vnpu in self.vnpus.free
        if take.cut is not None:
            return self.cores is not None and self.cores.has(take.cut, self.free)
        if take.cores and (self.cores is None or self.cores.kind.whole_chips(take.cores) != len(take.chips)):
            return False
        return not take.chip_set & ~self.usable(request)

    def needs_network(self, request: ChipRequest) -> bool:
        """Whether a request can't use chips of this product that have an unhealthy network."""
        return request.needs_network and self.product.has_network


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
    asked = left.asked(request)
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
    """How many pods of a job with this request fit on a node one after the other, and why it refuses the next one."""
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
