"""Preemption for gangs: no pod ends unless the whole gang fits then. No I/O.

Victims are chosen once for all pods that the gang still needs (``clearing.py``). A scheduler preempts for one pod at a
time. So the seats are kept as the gang's promise, and each of its pods is answered with one of them: the node and the
victims there.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from allocator.decision.clearing import Fitting, clear
from allocator.decision.trial import Trial
from allocator.decision.victim_set import NEVER, Suggestion
from allocator.gangs.gangs import Gangs
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import Occupant, least_important_first
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.promises import Promise
from ascend.chips import ChipSet, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason

_AGAIN_S: Final = 5.0
"""How long an answer that preemption does not help is valid for the gang: its scheduler calls for each of its pods."""


_ATTEMPTS: Final = 10
"""How often victims are chosen, if the gang or the nodes change meanwhile. Its scheduler would not ask again before a
pod ends."""

_MOST_OFFERED: Final = 64
"""The most gangs whose offered nodes are remembered."""


@dataclass(slots=True)
class Place:
    """A seat of the plan, and what has to end for it.

    Attributes:
        node: the node.
        request: what the pod requests that it is for.
        victims: the uids of the pods on the node that have to end.
        uid: the uid of the pod that was answered with it; empty before.
    """

    node: str
    request: ChipRequest
    victims: frozenset[str]
    uid: str = ""


@dataclass(slots=True)
class _Plan:
    promise: Promise
    places: list[Place]
    announced: bool = False


class _ChangedError(Exception):
    """The gang or the nodes have changed while victims were chosen."""


class GangPreemption:
    """Chooses victims for gangs, and remembers what each pod was answered.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        gangs: what is placed, and the policy.
        due_s: until when chips are kept whose holders have to end first.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, gangs: Gangs, due_s: Callable[[Iterable[str]], float]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._due_s = due_s
        self._lock = asyncio.Lock()
        self._plans: dict[str, _Plan] = {}
        self._useless: dict[str, tuple[int, float, Refusal]] = {}
        self._offered: dict[str, Collection[str]] = {}

    def offered(self, job: Job, nodes: Collection[str]) -> None:
        """A pod of a gang that does not fit was filtered: these nodes have passed the scheduler's own filters.

        A gang needs them as well, and its scheduler names only nodes without room when it asks for victims.
        """
        self._offered.pop(job.key.plan, None)
        self._offered[job.key.plan] = nodes
        if len(self._offered) > _MOST_OFFERED:
            del self._offered[next(iter(self._offered))]

    async def place(
        self, pod: Pod, request: ChipRequest, job: Job, suggested: Mapping[str, Suggestion]
    ) -> Place | None:
        """The node of a pod on which others have to end first; None if it has none: it waits for its peers.

        Args:
            pod: the pod.
            request: what it requests of a node.
            job: its gang.
            suggested: the nodes on which pods may end.

        Raises:
            Refusal: the gang is incomplete, or would not fit even then.
        """
        async with self._lock:  # so that the pods of a gang share one plan
            place = await self._place(pod, request, job, suggested)
        if place is not None:
            self._ledger.promises.renew(job.key.plan, self._due_s(place.victims))
        return place

    async def _place(
        self, pod: Pod, request: ChipRequest, job: Job, suggested: Mapping[str, Suggestion]
    ) -> Place | None:
        plan = self._current(job)
        if plan is not None:
            place = self._answer(plan, pod, request, suggested)
            if place is not None or any(each.uid == pod.uid for each in plan.places):
                return place
            # The other places are for its peers, if they are possible.
            if all(each.uid or each.node in suggested or not self.remaining(each) for each in plan.places):
                return None
        for _ in range(_ATTEMPTS):
            with suppress(_ChangedError):
                return await self._place_anew(pod, request, job, suggested, plan.places if plan is not None else ())
        raise Refusal(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: nodes have changed while victims were chosen")

    async def _place_anew(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        suggested: Mapping[str, Suggestion],
        earlier: Collection[Place],
    ) -> Place | None:
        if (incomplete := self._gangs.incomplete(job, pod)) is not None:
            raise incomplete
        useless = self._useless.get(job.key.plan)
        if useless is not None and useless[0] == job.version and self._now_s < useless[1] + _AGAIN_S:
            raise Refusal(useless[2].reason, useless[2].message)
        version = job.version
        try:
            plan = await self._make(pod, request, job, suggested, earlier)
        except Refusal as refusal:
            if job.version != version:
                raise _ChangedError from refusal
            self._useless = {key: each for key, each in self._useless.items() if self._now_s < each[1] + _AGAIN_S}
            self._useless[job.key.plan] = job.version, self._now_s, refusal.with_traceback(None)
            raise
        self._plans[job.key.plan] = plan
        return self._answer(plan, pod, request, suggested)

    def unanswered(self, job: Job) -> list[Pod]:
        """The pods of a gang that have to call for the other places of a new plan; returned once for each plan.

        They may have been refused before the plan was possible, and their scheduler sees nothing that has changed.
        """
        plan = self._current(job)
        if plan is None or plan.announced:
            return []
        plan.announced = True
        places = sum(not each.uid and bool(self.remaining(each)) for each in plan.places)
        answered = {each.uid for each in plan.places}
        return [pod for _, pod in job.ranked() if pod.waits_for_chips and pod.uid not in answered] if places else []

    def remaining(self, place: Place) -> list[Occupant]:
        """The victims of a place that have not ended yet."""
        record = self._cluster.nodes.get(place.node)
        holdings = record.holdings if record is not None else {}
        return [
            Occupant.of(self._cluster.pods[uid], holdings[uid].chips, holdings[uid].counted)
            for uid in sorted(place.victims)
            if uid in holdings
        ]

    @property
    def _now_s(self) -> float:
        return self._ledger.promises.monotonic()

    def _current(self, job: Job) -> _Plan | None:
        """The plan of a gang, as long as its seats are kept for it."""
        promises = self._ledger.promises
        for name, plan in tuple(self._plans.items()):
            kept = promises.get(name)
            if kept is None or kept.chips is not plan.promise.chips:
                del self._plans[name]
        return self._plans.get(job.key.plan)

    def _answer(self, plan: _Plan, pod: Pod, request: ChipRequest, suggested: Mapping[str, Suggestion]) -> Place | None:
        """The pod's place, or one of a peer with an equal request that was not answered yet."""
        own = next((each for each in plan.places if each.uid == pod.uid), None)
        if own is not None:
            if not self.remaining(own):
                return None  # its node is free for it
            if own.node in suggested:
                return own
            own.uid = ""
        for place in plan.places:
            if not place.uid and place.request == request and place.node in suggested and self.remaining(place):
                place.uid = pod.uid
                return place
        return None

    async def _make(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        suggested: Mapping[str, Suggestion],
        earlier: Iterable[Place],
    ) -> _Plan:
        answered = [each for each in earlier if each.uid]
        # There pods are ending already for peers.
        nodes = {each.node for each in answered if each.node not in suggested}
        undisrupted = nodes.union(node for node, each in suggested.items() if not each.pdb_violations)
        nodes.update(suggested)
        try:
            plan = await self._make_on(undisrupted, pod, request, job)
        except Refusal:
            if len(undisrupted) == len(nodes):
                raise
            plan = await self._make_on(nodes, pod, request, job)
        given = {each.uid: each.node for each in answered}
        for peer in job.pods.values():  # another leader may have answered
            if peer.waits_for_chips and (node := peer.status.nominated_node_name):
                given.setdefault(peer.uid, node)
        for uid, node in given.items():
            place = next((each for each in plan.places if each.node == node and not each.uid), None)
            if place is not None:
                place.uid = uid
        return plan

    async def _make_on(self, nodes: Collection[str], pod: Pod, request: ChipRequest, job: Job) -> _Plan:
        waiting = [pod, *(each for each in job.pods.values() if each.waits_for_chips)]
        priority = min(each.priority for each in waiting)
        never = any(each.spec.preemption_policy == NEVER for each in waiting)
        trial = Trial(self._cluster, self._ledger, owner=job.key.plan, priority=priority, terminating_only=never)
        version = job.version
        await trial.read(nodes)
        gang, needed = self._gangs.gang_request(pod, request, job, None)
        allowed = frozenset(nodes).union(self._offered.get(job.key.plan, ()))
        common = allowed if gang.candidates is None else allowed.intersection(gang.candidates)
        gang = replace(gang, members=gang.members[:needed], candidates=common)
        fitting = Fitting(self._gangs, gang, trial)
        await clear(fitting, trial, max((each.request for each in gang.members), key=lambda each: each.chips))
        seats = await fitting.seats()
        if isinstance(seats, Refusal):  # pragma: no cover - `clear` has checked it
            raise seats
        # Other tasks have run meanwhile.
        if job.version != version:
            raise _ChangedError
        requests = {each.uid: each.request for each in gang.members}
        chips: defaultdict[str, ChipSet] = defaultdict(int)
        for seat in seats:
            chips[seat.node] |= chip_set(seat.chips)
        victims: dict[str, frozenset[str]] = {}
        for node, taken in chips.items():
            found = _needed_victims(trial, node, taken)
            if found is None:
                raise _ChangedError
            victims[node] = found
        owner = job.key.plan
        due_s = self._due_s(uid for each in victims.values() for uid in each)
        promise = Promise(owner, f"job {job.key}", priority, dict(chips), due_s)
        self._ledger.promises.keep(promise)
        places = [Place(seat.node, requests[seat.uid], victims[seat.node]) for seat in seats]
        return _Plan(promise, places)


def _needed_victims(trial: Trial, node: str, taken: ChipSet) -> frozenset[str] | None:
    """The pods that have to end on a node for these chips; None if these are not free even then."""

    def free(staying: Iterable[str]) -> bool:
        offer = trial.offer(node, set(staying))
        return isinstance(offer, Vacancy) and not taken & ~offer.free and offer.room >= taken.bit_count()

    if not free(()):
        return None
    staying: list[str] = []
    ended = trial.ended_on(node)
    for each in reversed(least_important_first(ended)):
        if free([*staying, each.uid]):
            staying.append(each.uid)
    return frozenset(each.uid for each in ended).difference(staying)
