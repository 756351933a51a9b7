"""Gangs: the pods of a job get their places together or not at all, and then one by one, in whatever order they ask.

Until as many pods of the job are there as its minimum says, each of them is refused. The first that asks then makes the
plan for all of them: the policy seats every pod that waits (or, where that is too much, as many as the minimum needs),
and the ledger reserves all seats in the same step. Every later question finds its seat reserved. A seat whose pod is
deleted waits for the pod's successor; where a node breaks down before anybody was bound, the plan is made anew.

Two gangs can't block each other: a gang holds nothing while it waits for chips (no hold and wait), because a plan is
made and reserved without an await in between, or not at all. What is reserved but not used ends as a whole: after the
time to live, or when the job is gone. Only pods that are bound hold chips without end, and those run.

A pod that comes later (a successor of one that has ended, or more than the minimum) joins its peers: what the gang
still lacks is planned, on servers of the same product; those who have a place keep it. So it is after a restart too,
when the plan is forgotten and only the bound pods are left of it; `resume` then plans the rest before anybody else is
served.
"""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.gangs.pools import MemberPools
from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Seat, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod

INCOMPLETE = "GangIncomplete"
NO_GROUP = "GroupMissing"
NEVER = frozenset({INCOMPLETE, NO_GROUP})
"""Reasons that no other pod's end changes."""


@dataclass(frozen=True, slots=True)
class _State:
    """All that what a gang fits on depends on."""

    nodes: int
    # Peers have to be joined wherever their places are, also on nodes that are no use to anybody and stay so.
    places: int
    pods: int
    minimum: int
    lacks_group: bool


_Kind: TypeAlias = tuple[Ask, frozenset[tuple[str, str]]]
"""Pods of a gang that ask for the same on the same nodes: where one of them fits, so does another."""


@dataclass(frozen=True, slots=True)
class _Trial:
    """Whether asking for a pod of each kind gives a place to anybody of its gang."""

    state: _State
    fits: dict[_Kind, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Question:
    job: JobKey
    state: _State
    kind: _Kind
    # Of two that ask for the same, each is the other's peer and not its own.
    own: str
    candidates: Collection[str] | None


class Gangs:
    """Plans jobs and hands out the seats.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        ttl_s: how long a plan lives after one of its pods was bound last.
        ask_of: what a pod asks of a node.
        policy: where the pods of a job go.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        *,
        ttl_s: float,
        ask_of: Callable[[Pod], Ask],
        policy: Policy = pack,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._ask_of = ask_of
        self._policy = policy
        self._trials: dict[str, _Trial] = {}
        # A scheduler asks for pod after pod of a gang that does not fit, and each answer would take a plan of them all.
        self._answered: tuple[_Question, Refusal] | None = None

    def place(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Reservation:
        """The pod's seat, with the plan of its whole job made first where there is none.

        Args:
            pod: a pod that is not bound, nor about to be.
            ask: what it asks of a node.
            job: its job, a gang.
            candidates: the only nodes it may be on. Where they are several, its peers are looked for among them too,
                since most pods of a job are made from one template; a peer with another node selector goes where that
                says. A single name says where this pod goes and no more.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        held = self._ledger.get(pod.uid)
        if held is not None and held.stage is not Stage.PLANNED:
            # It was placed alone, before it was known to be of a gang.
            self._ledger.release(pod.uid)
            held = None
        if held is not None and not self._cluster.suits(held, ask):
            if self._has_begun(job):
                self._ledger.release(held.uid)
            else:
                self._ledger.drop_plan(held.plan)
        seat = self._find_seat(pod, ask, job, candidates)
        if seat is not None:
            return self._sit(pod, seat)
        self._require_complete(job, pod)
        seats = self._plan(pod, ask, job, candidates)
        self._ledger.reserve_plan(job.key.plan, seats, ttl_s=self._ttl_s)
        made = self._ledger.get(pod.uid)
        if made is None:
            raise Refusal(
                "GangDoesNotFit",
                f"job {job.key}: its first {job.min_available} pods are placed, pod {pod.key} does not fit beside them",
            )
        return made

    def preview(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> str:
        """The node the pod would be placed on; reserves nothing.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        node = self._seats(pod, ask, job, candidates).get(pod.uid)
        if node is None:
            raise Refusal("GangDoesNotFit", f"job {job.key}: pod {pod.key} does not fit beside its peers")
        return node

    def may_fit(self, pod: Pod, job: Job) -> bool:
        """Whether asking again makes sense; found out anew only when something has changed since the last time."""
        held = self._ledger.get(pod.uid)
        if held is not None and held.stage is Stage.PLANNED:
            return True
        try:
            ask = self._ask_of(pod)
        except Refusal:
            return False
        state, kind = self._state(job), _kind(pod, ask)
        trial = self._trials.get(job.key.plan)
        if trial is None or trial.state != state:
            self._trials = {name: each for name, each in self._trials.items() if each.state.nodes == state.nodes}
            trial = self._trials[job.key.plan] = _Trial(state)
        if kind not in trial.fits:
            try:
                # Where it is one too many itself, its peers get their places when it asks.
                trial.fits[kind] = bool(self._seats(pod, ask, job, None))
            except Refusal:
                trial.fits[kind] = False
        return trial.fits[kind]

    def resume(self) -> list[Job]:
        """Plan the rest of every gang of which some pods are bound and some wait; returns those that don't fit."""
        stuck = []
        for job in self._cluster.jobs:
            waiting = [pod for pod in job.pods.values() if _waits(pod)]
            if not job.is_gang or not waiting or len(waiting) == job.size:
                continue
            first = min(waiting, key=lambda pod: (job.rank_of(pod), pod.name))
            try:
                self.place(first, self._ask_of(first), job, None)
            except Refusal:
                stuck.append(job)
        return stuck

    def _seats(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> dict[str, str]:
        """The nodes of those who would get a place if the pod was asked for, by uid; reserves nothing.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        with self._without_bad_seat(pod, ask, job):
            seat = self._find_seat(pod, ask, job, candidates)
            if seat is not None:
                return {pod.uid: seat.node}
            self._require_complete(job, pod)
            return {seat.uid: seat.node for seat in self._plan(pod, ask, job, candidates)}

    def _require_complete(self, job: Job, pod: Pod) -> None:
        if self._cluster.jobs.lacks_group(job):
            raise Refusal(NO_GROUP, f"pod {pod.key} is of {job.kind} {job.key}, which does not exist (yet)")
        present = job.present + (pod.uid not in job.pods)
        if present < job.min_available:
            missing = job.min_available - present
            raise Refusal(
                INCOMPLETE,
                f"job {job.key}: {job.min_available} pods must be placed together, {present} are there, "
                f"{missing} missing",
            )

    def _find_seat(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Reservation | None:
        """A seat of the plan there is that suits the pod now: its own, an empty one, or a peer's to change with."""
        held = self._ledger.get(pod.uid)
        if held is not None and held.stage is not Stage.PLANNED:
            held = None
        if held is not None and (candidates is None or held.node in candidates) and self._cluster.suits(held, ask):
            return held
        for seat in self._ledger.seats(job.key.plan):
            # Equal pods are interchangeable: the one that sits there has not asked yet, or will be told anew.
            fair = seat.is_empty or (held is not None and len(seat.chips) == len(held.chips))
            if fair and (candidates is None or seat.node in candidates) and self._cluster.suits(seat, ask):
                return seat
        return None

    def _sit(self, pod: Pod, seat: Reservation) -> Reservation:
        if seat.uid == pod.uid:
            return seat
        if self._ledger.get(pod.uid) is None:
            return self._ledger.hand(seat.uid, pod.uid, pod.key)
        self._ledger.swap(pod.uid, seat.uid)
        return self._ledger.get(pod.uid) or seat

    def _without_bad_seat(self, pod: Pod, ask: Ask, job: Job) -> AbstractContextManager[object]:
        """Where a seat would be given up if its pod was placed, count it as given up."""
        held = self._ledger.get(pod.uid)
        if held is None or (held.stage is Stage.PLANNED and self._cluster.suits(held, ask)):
            return nullcontext()
        if held.stage is not Stage.PLANNED or self._has_begun(job):
            return self._ledger.suspended(pod.uid)
        return self._ledger.set_aside(held.plan)

    def _has_begun(self, job: Job) -> bool:
        """Whether any pod is bound, or about to be: else a plan of which a seat is no good any more is made anew."""
        return any(not _waits(pod) or self._is_settled(pod.uid) for pod in job.pods.values() if pod.asks_for_chips)

    def _state(self, job: Job) -> _State:
        jobs = self._cluster.jobs
        places = self._ledger.version
        return _State(self._cluster.index.version, places, job.version, job.min_available, jobs.lacks_group(job))

    def _plan(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        several = frozenset(candidates) if candidates is not None and len(candidates) > 1 else None
        if candidates is not None and several is None:
            return self._plan_anew(pod, ask, job, candidates)
        held = self._ledger.get(pod.uid)
        question = _Question(job.key, self._state(job), _kind(pod, ask), held.node if held is not None else "", several)
        if self._answered is not None and self._answered[0] == question:
            refusal = self._answered[1]
            raise Refusal(refusal.reason, refusal.message)
        try:
            return self._plan_anew(pod, ask, job, several)
        except Refusal as refusal:
            self._answered = question, refusal.with_traceback(None)
            raise

    def _plan_anew(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        is_one = candidates is not None and len(candidates) == 1
        pools = MemberPools(self._cluster.pools, pod.spec.node_selector, None if is_one else candidates)
        members: list[Member] = []
        placed: dict[int, str] = {}
        satisfied = 0
        for rank, each in self._roll(job, pod):
            held = self._ledger.get(each.uid) if each.uid != pod.uid else None
            node = each.spec.node_name or (held.node if held is not None else "")
            if not each.asks_for_chips or node or not each.is_live:
                satisfied += 1
                placed |= {rank: node} if node else {}
                continue
            own = candidates if each.uid == pod.uid and is_one else pools.of(each.spec.node_selector)
            asks = ask if each.uid == pod.uid else self._ask_of(each)
            named = self._cluster.pools.named_products(each.spec.node_selector, asks)
            members.append(Member(each.uid, each.key, rank, asks, own, named))
        needed = job.min_available - satisfied
        if needed <= 0:
            # The gang stands; this pod is one more, or takes the place of one that has ended.
            needed = 1
            members = [member for member in members if member.uid == pod.uid]
        products = self._cluster.peer_products(job, pod.uid)
        if products is not None and not all(member.may_join(products) for member in members):
            # Those that name other servers than their peers are on are meant to be there; the rest join them.
            members = [member.joining(products) for member in members]
            products = None
        request = GangRequest(job.key, tuple(members), placed, pools.common, products)
        found = self._back(request)
        if isinstance(found, Refusal) and needed < len(members):
            found = self._back(replace(request, members=request.members[:needed]))
        if isinstance(found, Refusal):
            raise found
        return found

    def _back(self, request: GangRequest) -> list[Seat] | Refusal:
        """The policy's seats, with pods on their previous nodes as far as that leaves room for all."""
        previous = self._cluster.previous.of(request.job) if self._cluster.previous is not None else {}
        bound = tuple(
            replace(member, candidates=(node,))
            if (node := previous.get(member.rank)) is not None
            and ((allowed := request.allowed(member)) is None or node in allowed)
            and self._cluster.index.vacancy_for(member.ask, node) is not None
            else member
            for member in request.members
        )
        if bound != request.members:
            found = self._policy(replace(request, members=bound), self._cluster.index)
            if not isinstance(found, Refusal):
                return found
        return self._policy(request, self._cluster.index)

    def _roll(self, job: Job, pod: Pod) -> list[tuple[int, Pod]]:
        ranked = job.ranked()
        if pod.uid not in job.pods:
            ranked.append((job.rank_of(pod), pod))
        return ranked

    def _is_settled(self, uid: str) -> bool:
        held = self._ledger.get(uid)
        return held is not None and held.stage not in (Stage.PLANNED, Stage.TENTATIVE)


def _waits(pod: Pod) -> bool:
    return pod.asks_for_chips and not pod.spec.node_name and pod.is_live


def _kind(pod: Pod, ask: Ask) -> _Kind:
    return ask, frozenset(pod.spec.node_selector.items())
