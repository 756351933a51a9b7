"""Plans large gangs piece by piece, so that other calls are answered in between.

A plan for a thousand pods takes tens of milliseconds: reading what each of them requests, finding seats, reserving
them. Other calls are answered between the pieces, and nodes, pods and reservations change. The result is nevertheless
a plan as if it had been made at once, or none:

* The seats are searched for on a copy of what the nodes have left, which does not change. That there are none is known
  for as long as gang and nodes are as they were when the search began.
* Each seat is checked against what its node has left in the piece in which it is reserved: another pod may have got its
  chips, a report may exclude them.
* If the gang changes in between (its pods, its group, the labels of nodes), its version does.
* If a node with seats that are reserved already becomes unusable, ``Gangs.prune`` drops the plan.

In each of these cases what was reserved is released, and the plan begun anew; after a few times it is made at once. One
gang is planned at a time: two that both take chips piece by piece would be in each other's way. Calls for the other
pods of the gang wait until it is done.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import islice
from typing import Final
from weakref import ReferenceType, ref

from msgspec.structs import replace

from allocator.gangs.gangs import Gangs
from allocator.gangs.planning import Scope
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Seat
from allocator.state.view import AS_IT_IS, Without
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Turn

MANY: Final = 64
"""Gangs of which more pods need a seat are planned piece by piece; others take a few milliseconds."""
MANY_NODES: Final = 8_192
"""Gangs for which more nodes are named or selected are planned like that, too: reading these takes milliseconds."""
TRIES: Final = 3
"""After so many plans that became outdated one is made at once."""
_STEP: Final = 32
"""After so many nodes or seats there may be a pause."""
_NAMES: Final = 4_096
"""So many names are read in a millisecond."""


class GradualPlans:
    """Plans large gangs.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gangs: the plans.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, gangs: Gangs) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._lock = asyncio.Lock()
        self._named: ReferenceType[frozenset[str]] | None = None  # as long as anything was found for them

    async def make(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> Collection[str] | None:
        """Plan the gang of a pod if it is large and has no plan; then ``Gangs.place`` finds the pod's seat.

        Without a plan ``Gangs.place`` makes one, or says why there is none.

        Args:
            pod: the pod being scheduled.
            job: its job, a gang.
            candidates: names of the only nodes it may be on; None for every node.

        Returns:
            The candidates for ``Gangs.place``, as a set if they were made one: for thousands that takes milliseconds.
        """
        if not self._is_wanted(pod, job, candidates):
            return candidates
        async with self._lock:
            turn = Turn()
            several = await self._as_set(candidates, turn)
            for _ in range(TRIES):
                if not self._is_wanted(pod, job, several) or await self._try(pod, job, several, turn):
                    break
        await asyncio.sleep(0)  # the decision has a turn of its own
        return several

    async def may_fit(self, pod: Pod, job: Job) -> bool:
        """Whether a large gang could be planned now, on any node; reserves nothing."""
        if not self._is_wanted(pod, job, None) or self._gangs.left_to_others(job):
            return self._gangs.may_fit(pod, job)  # it may have to wait for a turn, on the nodes left to others
        async with self._lock:
            found = await self._search(pod, job, None, Turn())
        if isinstance(found, Refusal) and self._ledger.promises.ignored((), pod.priority):
            return self._gangs.may_fit(pod, job)  # with what is promised to others
        return not isinstance(found, Refusal)

    async def preview(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> str | None:
        """The node of a pod in a plan for its large gang; reserves nothing.

        None if there is a plan, or none can be made: ``Gangs.preview`` finds the pod's seat, or says why there is none.
        """
        if not self._is_wanted(pod, job, candidates):
            return None
        async with self._lock:
            turn = Turn()
            found = await self._search(pod, job, await self._as_set(candidates, turn), turn)
        await asyncio.sleep(0)  # the answer has a turn of its own
        seats = () if found is None or isinstance(found, Refusal) else found[0]
        return next((seat.node for seat in seats if seat.uid == pod.uid), None)

    async def _as_set(self, candidates: Collection[str] | None, turn: Turn) -> frozenset[str] | None:
        """The names as a set, the same object as the last time if they are the same: it is compared again and again."""
        if candidates is None:
            return None
        names = iter(candidates)  # many are decoded only now
        last = self._named() if self._named is not None else None
        several, are_known = set[str](), last is not None
        while piece := list(islice(names, _NAMES)):
            await turn.share()
            several.update(piece)
            are_known = are_known and last is not None and last.issuperset(piece)
        await turn.share()
        if last is None or not are_known or len(several) != len(last):
            last = frozenset(several)
            self._named = ref(last)
            await turn.share()
        return last

    def _is_wanted(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> bool:
        if self._ledger.get(pod.uid) is not None:
            return False
        if candidates is not None and len(candidates) == 1:
            return False
        nodes = self._gangs.planner.common(pod, candidates)
        if job.size - job.placed_beside("") <= MANY and (nodes is None or len(nodes) <= MANY_NODES):
            return False
        plan = job.key.plan
        return not (
            pod.is_gated
            or self._ledger.plans.of(plan).unused
            or self._ledger.plans.of(plan).held
            or self._gangs.queue.get(job) is not None
            or self._gangs.obstacles.refusal(job) is not None
            or self._gangs.incomplete(job, pod) is not None
        )

    async def _try(self, pod: Pod, job: Job, candidates: Collection[str] | None, turn: Turn) -> bool:
        """Plan once; returns whether the plan was made, or can't be."""
        version = self._version(job)
        found = await self._search(pod, job, candidates, turn)
        if found is None or isinstance(found, Refusal):
            return found is not None
        try:
            return await self._reserve(job, *found, version, turn)
        except asyncio.CancelledError:
            self._gangs.release_unused(job)
            raise

    async def _search(
        self, pod: Pod, job: Job, candidates: Collection[str] | None, turn: Turn
    ) -> tuple[list[Seat], dict[str, ChipRequest]] | Refusal | None:
        """Seats, and what their pods request; or why there are none; None if the gang has changed meanwhile."""
        planner, before = self._gangs.planner, (self._version(job), self._cluster.index.version)
        if await turn.share_between(planner.pending.read(job)) is None:
            return None
        try:
            request = self._gangs.request_of(pod)
            gang, needed = await turn.share_between(planner.gang_request(pod, request, job, candidates))
            planner.require_ended(gang, job)
        except Refusal as refusal:
            return refusal.without_frames()
        left = frozenset[str]().union(*self._gangs.left_to_others(job).values())
        await turn.share_between(self._cluster.index.count(gang.candidates))  # for the decision right after this
        gang, names = gang.by_nodes()  # the copy has no others
        await turn.share()
        own = self._cluster.view(Without(owners=(job.key.plan,)))  # what is promised to it counts as free
        index = await turn.share_between(own.copy(list(self._cluster.nodes if names is None else names)))
        found = await turn.share_between(
            planner.search.seats(replace(gang, limits=dict.fromkeys(left, 0)), needed, index)
        )
        await turn.share()
        del index  # releasing a copy of thousands of nodes takes milliseconds
        await turn.share()
        if isinstance(found, Refusal):
            if gang.policy.level is None and before == (self._version(job), self._cluster.index.version):
                planner.note_refusal(found, pod, request, job, Scope(candidates, AS_IT_IS, left))
            return found
        return found, {member.uid: member.request for member in gang.members}

    async def _reserve(
        self, job: Job, seats: Sequence[Seat], requests: Mapping[str, ChipRequest], version: object, turn: Turn
    ) -> bool:
        for first in range(0, len(seats), _STEP):
            await turn.share()
            self._gangs.prune()
            some = seats[first : first + _STEP]
            if self._version(job) != version or not self.are_free(some, requests, job.key.plan):
                if self._ledger.get(some[0].uid) is None:  # else a call that did not wait has planned the rest
                    self._gangs.release_unused(job)
                return False
            self._gangs.reserve(job, some)
            version = self._version(job)
        return True

    def _version(self, job: Job) -> object:
        """What changes with the gang; also when a seat of it is reserved or released."""
        is_known = self._cluster.jobs.by_key.get(job.key) is job
        return is_known, job.version, self._cluster.labels.version

    def are_free(self, seats: Sequence[Seat], requests: Mapping[str, ChipRequest], plan: str) -> bool:
        """Whether the chips of seats can be reserved now."""
        by_node: defaultdict[str, list[Seat]] = defaultdict(list)
        for seat in seats:
            by_node[seat.node].append(seat)
        for node, here in by_node.items():
            record = self._cluster.nodes.get(node)
            left = self._cluster.offer_of(record, Without(owners=(plan,))) if record is not None else None
            for seat in here:
                request = requests[seat.uid]
                if not isinstance(left, Vacancy) or not left.has(seat.take, request):
                    return False
                if not isinstance(judge(left, request), Fit):
                    return False
                left = left.without(seat.take)
        return True


async def resume_gangs(cluster: Cluster, ledger: Ledger, gangs: Gangs, plans: GradualPlans) -> list[Job]:
    """Plan for a new leader the rest of every gang that has both bound and waiting pods, before any call is answered.

    Returns:
        The gangs whose rest does not fit.
    """
    turn = Turn()
    stuck = []
    for job in cluster.jobs:
        await turn.share()
        if not job.is_gang:
            continue
        waiting = [pod for pod in job.pods.values() if pod.waits_for_chips]
        if not waiting or len(waiting) == job.size:
            continue
        waiting.sort(key=lambda pod: (job.rank_of(pod), pod.name))
        for pod in waiting:
            if ledger.get(pod.uid) is not None:
                continue
            try:
                request = gangs.request_of(pod)
            except Refusal:
                continue  # an invalid pod does not keep the others from their seats
            await plans.make(pod, job, None)
            gangs.prune()
            try:
                gangs.place(pod, request, job, None)
            except Refusal:
                stuck.append(job)
            break
    return stuck
