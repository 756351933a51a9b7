"""Whether pods that may be created fit all at one time, and chips for such pods until the pods come.

The question is that of a gang: the policy of the job finds a seat for each pod, beside everything that is held,
reserved or promised now. The seats are those of a plan of the job, in the ledger, which wait for pods as those of
deleted pods do: whoever asks next finds their chips taken, and a pod of the job that comes gets one.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from copy import copy
from typing import Final, NamedTuple

from allocator.decision.choice import Choice
from allocator.decision.engine import DecisionEngine
from allocator.decision.request import RequestReader
from allocator.gangs.gradual import MANY
from allocator.gangs.planning import Planner
from allocator.gangs.policy import GangRequest, Member
from allocator.rules.node_constraints import untolerated
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.state.reservation import Seat
from allocator.state.view import AS_IT_IS, WITHOUT_PROMISES, Without
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason
from ascend.turn import Steps, Turn, at_once

_TRIES: Final = 3
"""After so many times that nodes have changed meanwhile, all is done at once."""
_MOST_KNOWN: Final = 16
"""Of so many kinds of pods the nodes that they may be on are kept."""
_STEP: Final = 32
"""After so many seats or nodes there may be a pause."""


class _Expected(NamedTuple):
    """The pods of a job that may be created.

    Attributes:
        gang: what is to be placed.
        first: one of them.
        planner: finds their seats.
        reader: reads what they request.
    """

    gang: GangRequest
    first: Pod
    planner: Planner
    reader: RequestReader

    @property
    def plan(self) -> str:
        """The name of the plan of the job."""
        return self.gang.job.plan

    @property
    def is_large(self) -> bool:
        """Whether finding seats for all of them takes long."""
        return len(self.gang.members) > MANY


class ExpectedPods:
    """Answers for pods that may be created.

    Args:
        engine: the decisions on pods.
    """

    def __init__(self, engine: DecisionEngine) -> None:
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._engine = engine
        self._known: tuple[int, dict[object, frozenset[str] | None]] = -1, {}

    async def fit(self, pods: Sequence[Pod]) -> bool:
        """Whether pods fit; see ``keep``."""
        try:
            for of_job in await self._read(pods):
                await self._search(of_job, Turn())
        except Refusal:
            return False
        return True

    async def keep(self, pods: Sequence[Pod], ttl_s: float) -> tuple[str, ...]:
        """Reserve seats for pods; returns the names of the plans, which ``release`` takes.

        Args:
            pods: the pods that request chips, as their controllers would create them.
            ttl_s: how long the seats are kept for them.

        Raises:
            Refusal: not all of them fit now, or the request of one is invalid on every node. A job that has placed
                pods already is left as it is; of one whose pods are gone or end no earlier seat counts.
        """
        kept: list[str] = []
        try:
            for of_job in await self._read(pods):
                known = self._cluster.jobs.by_key.get(of_job.gang.job)
                if known is not None and known.placed:
                    continue  # its pods have come
                self._ledger.drop_plan(of_job.plan)  # its pods, if it had any, are gone or end
                kept.append(of_job.plan)
                await self._keep(of_job, ttl_s)
        except BaseException:  # a cancelled caller keeps no seats either
            self.release(kept)
            raise
        return tuple(kept)

    def release(self, plans: Collection[str]) -> None:
        """Release seats, unless pods for them have come."""
        for plan in plans:
            if self._ledger.plans.of(plan).is_ahead:
                self._ledger.drop_plan(plan)

    async def never_fit(self, pods: Sequence[Pod]) -> str | None:
        """Why pods can't start together even on empty nodes, a sentence; None if there is room.

        Each pod is counted on empty nodes as if it were alone, so what is said is certain, and what is not may be so.
        """
        turn = Turn()
        kinds: defaultdict[tuple[object, ...], list[Pod]] = defaultdict(list)
        for pod in pods:
            await turn.share()
            try:
                self._engine.validate_here(pod)
                request = self._engine.request_of(pod)
            except Refusal as refusal:
                return refusal.message if refusal.reason.category is Category.REQUEST else None
            kinds[request, pod.spec.node_requirements, pod.spec.tolerations].append(pod)
        for alike in kinds.values():
            pod, room = alike[0], 0
            request = self._engine.request_of(pod)
            for name in await turn.share_between(self._candidates(pod)):
                await turn.share()
                if (record := self._cluster.nodes.get(name)) is not None and room < len(alike):
                    gone = {*record.holdings, *self._ledger.on(name)}
                    offer = self._cluster.offer_of(record, WITHOUT_PROMISES._replace(pods=gone))
                    room += capacity(offer, request)[0] if isinstance(offer, Vacancy) else 0
            if room < len(alike):
                return f"of {count(len(alike), 'such pod')} {room} fit on the present nodes if no other pod has chips"
        return None

    async def _read(self, pods: Sequence[Pod]) -> list[_Expected]:
        """Read what pods request, job by job; other tasks may run meanwhile.

        Raises:
            Refusal: the request of one is invalid on every node.
        """
        turn = Turn()
        for _ in range(_TRIES):
            version = self._cluster.labels.version
            found = await turn.share_between(self._reading(pods))
            if version == self._cluster.labels.version:
                return found
        return at_once(self._reading(pods))

    def _reading(self, pods: Sequence[Pod]) -> Steps[list[_Expected]]:
        cluster = copy(self._cluster)
        cluster.jobs = cluster.jobs.without_pods()
        for pod in pods:
            cluster.jobs.pod_applied(pod)
            yield
        reader = RequestReader(cluster, self._ledger, self._engine.defaults)
        planner = Planner(cluster, self._ledger, lambda pod: reader.read(pod).chips, reader.policy, lambda: 0.0)
        found = []
        for job in cluster.jobs:
            yield from job.assign_ranks()
            members = []
            for rank, pod in job.by_rank():
                only = yield from self._only(pod)
                members.append(Member(pod.uid, pod.key, rank, reader.read(pod).chips, only))
                yield
            first = next(iter(job.pods.values()))
            yield from reader.policy(first).read(self._cluster)
            found.append(_Expected(planner.request(members, first, job), first, planner, reader))
        return found

    async def _keep(self, pods: _Expected, ttl_s: float) -> None:
        """Reserve seats for the pods of a job, as ``GradualPlans`` does: those of a large one piece by piece.

        Raises:
            Refusal: not all of them fit.
        """
        turn = Turn()
        for _ in range(_TRIES if pods.is_large else 0):
            if await self._reserve(pods, await self._search(pods, turn), ttl_s, turn):
                return
        self._ledger.expire_reserved()
        self._engine.gangs.prune()
        self._ledger.reserve_ahead(pods.plan, at_once(self._searching(pods, copied=False)), ttl_s=ttl_s)

    async def _search(self, pods: _Expected, turn: Turn) -> list[Seat]:
        self._ledger.expire_reserved()
        self._engine.gangs.prune()
        steps = self._searching(pods, copied=pods.is_large)
        return await turn.share_between(steps) if pods.is_large else at_once(steps)

    def _searching(self, pods: _Expected, *, copied: bool) -> Steps[list[Seat]]:
        """Find seats; with pauses only on a copy of what the nodes have left.

        Raises:
            Refusal: not all of them fit.
        """
        members, found = pods.gang.members, Refusal(Reason.GANG_DOES_NOT_FIT, "")
        for without in (AS_IT_IS, Without.of(pods.first)):
            index = self._cluster.view(without)
            if copied:
                index = yield from index.copy(list(self._cluster.nodes))
            seats = yield from pods.planner.search.seats(pods.gang, len(members), index)
            if not isinstance(seats, Refusal):
                return seats
            found = seats
        if len(members) == 1:  # the sentence of a pod that is placed alone
            request = pods.reader.read(pods.first)
            found = Choice(self._cluster).refusal(pods.first, request, members[0].candidates)
        raise found

    async def _reserve(self, pods: _Expected, seats: Sequence[Seat], ttl_s: float, turn: Turn) -> bool:
        """Reserve seats that were found on a copy; False, and none is left, if some are not free any more."""
        requests = {member.uid: member.request for member in pods.gang.members}
        for first in range(0, len(seats), _STEP):
            await turn.share()
            self._engine.gangs.prune()
            some = seats[first : first + _STEP]
            was_dropped = first > 0 and pods.plan not in self._ledger.plans
            if was_dropped or not self._engine.plans.are_free(some, requests, pods.plan):
                self.release((pods.plan,))
                return False
            self._ledger.reserve_ahead(pods.plan, some, ttl_s=ttl_s)
        return True

    def _only(self, pod: Pod) -> Steps[frozenset[str] | None]:
        """The nodes that ``_candidates`` finds, None for all; kept until labels or taints of a node change."""
        version, spec = self._cluster.labels.version, (pod.spec.node_requirements, pod.spec.tolerations)
        if self._known[0] != version or len(self._known[1]) >= _MOST_KNOWN:
            self._known = version, {}
        known = self._known[1]
        if spec not in known:
            names = frozenset((yield from self._candidates(pod)))
            known[spec] = names if len(names) < len(self._cluster.index.entries) else None
        return known[spec]

    def _candidates(self, pod: Pod) -> Steps[list[str]]:
        """The nodes that a pod's scheduler would offer, as far as selector, affinity and taints say."""
        found = []
        for number, name in enumerate(list(self._cluster.nodes), start=1):
            if self._cluster.labels.admits(name, pod.spec) and not self._is_repelled(pod, name):
                found.append(name)
            if not number % _STEP:
                yield
        return found

    def _is_repelled(self, pod: Pod, name: str) -> bool:
        record = self._cluster.nodes.get(name)
        taints = record.node.spec.taints if record is not None and record.node is not None else ()
        return bool(taints) and untolerated(taints, pod.spec.tolerations) is not None
