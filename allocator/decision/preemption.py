"""Preemption: selects the node, and its victims, that make room for a pod of higher priority. No I/O.

Only pods of lower priority than the preemptor are preempted. Victims that hold chips are selected by ``rules.victims``,
for the pods of a gang by ``gang_preemption.py``; victims without chips, which a scheduler selects for other reasons,
stay on its list. The chips of the answer, or the part of one, are promised to the pod (``state/promises.py``).

A pod that requests a vNPU preempts one that has a vNPU of the same size; one that requests AI cores, the least
important pods that make room. The pods of a gang with vNPUs preempt none.

kube-scheduler counts what pods request that are nominated for a node, for every pod of no higher priority. So each has
to be promised something of its own: of two that counted on the same victim, neither would ever fit.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.decision.gang_preemption import GangPreemption
from allocator.decision.occupants import Occupants
from allocator.decision.trial import ending_on
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.rules.victims import (
    NEVER,
    Occupant,
    Suggestion,
    VictimSet,
    cost,
    least_important_first,
    reprieved,
    select_victims,
)
from allocator.state.cluster import Cluster
from allocator.state.holding import Holding
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Offer, unknown_node
from allocator.state.promises import Promise
from allocator.state.view import Without
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category, Reason
from ascend.takes import Take
from ascend.turn import Turn

DEFAULT_KEEP_S: Final = 60.0

_DEFAULT_GRACE_S: Final = 30
"""The API server's default of terminationGracePeriodSeconds."""

_MOST_GRACE_S: Final = 3600
"""The longest grace period for which chips stay promised."""


class Preemption:
    """Selects victims, and promises their chips.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        engine: reads what pods request.
        keep_s: how long chips stay promised after the grace period of the victims.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, engine: DecisionEngine, *, keep_s: float = DEFAULT_KEEP_S
    ) -> None:
        self._cluster = cluster
        self._engine = engine
        self._ledger = ledger
        self._keep_s = keep_s
        self._occupants = Occupants(cluster, ledger)
        self._gangs = GangPreemption(cluster, ledger, engine.gangs, self._occupants, self._due_s)

    def victims(self, pod: Pod, node: str) -> VictimSet | Refusal:
        """The pods that a pod preempts on a node, alone; a refusal if preemption would not help there.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        return self._victims(pod, node, self._engine.request_of(pod))

    async def victim_sets(self, pod: Pod, nodes: Collection[str], limit: int) -> list[VictimSet]:
        """The victims on each of the nodes where preemption helps, the best first; other tasks may run meanwhile.

        At most ``limit``. If it is only one, as always for a pod of a gang, its chips are promised to the pod.

        Raises:
            Refusal: the pod's request is invalid on every node, or its gang would not fit.
        """
        request = self._engine.request_of(pod)
        gang = self._engine.gang_of(pod)
        if gang is not None:
            chosen = await self._improve_gang(pod, request, gang, dict.fromkeys(nodes, Suggestion()))
            return [chosen] if chosen is not None else []
        self._promise_nominated(pod, frozenset(nodes))
        found = sorted(
            [victims async for victims in self._each(pod, nodes, request)], key=lambda victims: victims.order
        )[:limit]
        if len(found) == 1 and found[0].victims:
            self._promise(pod, found[0], request)
        return found

    async def improve(self, pod: Pod, suggested: Mapping[str, Suggestion]) -> VictimSet | None:
        """The best node of those a scheduler suggests, with its victims; None if preemption helps on none of them.

        A node on which the pod fits without victims is skipped, unless pods without chips have to end there: the
        scheduler has not seen yet that pods are gone, and need not preempt any. The chips on the chosen node are
        promised to the pod.

        Raises:
            Refusal: the pod's request is invalid on every node, or its gang would not fit.
        """
        self._engine.gangs.obstacles.on_request(pod)
        request = self._engine.request_of(pod)
        gang = self._engine.gang_of(pod)
        if gang is not None:
            return await self._improve_gang(pod, request, gang, suggested)
        self._promise_nominated(pod, suggested)
        if (promised := self._promised_victims(pod, request)) is not None:
            is_due = promised.node in suggested and self._needs_room(promised, suggested, request)
            return self._complete(promised, suggested, request) if is_due else None
        orders = [
            self._complete(own, suggested, request).order
            async for own in self._each(pod, suggested, request)
            if self._needs_room(own, suggested, request)
        ]
        for *_, node in sorted(orders):
            # Another pod may have been promised the chips meanwhile.
            again = self._victims(pod, node, request)
            if isinstance(again, VictimSet) and self._needs_room(again, suggested, request):
                self._promise(pod, again, request)
                return self._complete(again, suggested, request)
        return None

    def on_filter(self, pod: Pod, nodes: Collection[str]) -> None:
        """A pod that fits on no node was filtered on these nodes."""
        gang = self._engine.gang_of(pod)
        if gang is not None and self._engine.request_of(pod).is_for_chips:
            self._gangs.on_filter(pod, gang, nodes)

    def unanswered_peers(self, pod: Pod) -> list[Pod]:
        """The peers of a pod of a gang that should be scheduled again now: victims were chosen for them as well."""
        gang = self._engine.gang_of(pod)
        return self._gangs.unanswered_peers(gang) if gang is not None else []

    def waiting(self, pod: Pod, refused: Mapping[str, Refusal]) -> Collection[str]:
        """The nominated node of a pod, if it refuses the pod now and the pod fits once its victims have terminated.

        kube-scheduler would otherwise preempt further pods, on another node (k/k:…/defaultpreemption,
        PodEligibleToPreemptOthers).
        """
        node = pod.status.nominated_node_name
        if node not in refused:
            return ()
        if refused[node].reason is Reason.GANG_DOES_NOT_FIT:
            promise = self._ledger.promises.get(self._cluster.jobs.job_of(pod).key.plan)
            return (node,) if promise is not None and not promise.drains and node in promise.chips else ()
        if refused[node].reason.category is not Category.OCCUPIED:
            return ()
        return (node,) if self._settles(pod, self._engine.request_of(pod), node) else ()

    def awaits(self, pod: Pod) -> bool:
        """Whether a pod waits, on its nominated node, for chips of pods that end or have ended.

        Nobody else need end for it then. A scheduler that counts chips sees them free as soon as the pods are gone.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        request, promise = self._engine.request_of(pod), self._promise_of(pod)
        nodes = {pod.status.nominated_node_name, *(promise.chips if promise is not None else ())}
        fitting = (node for node in nodes if self._settles(pod, request, node))
        return any(not self._fits(self._cluster.nodes[node], (), pod, request) for node in fitting)

    def _settles(self, pod: Pod, request: ChipRequest, node: str) -> bool:
        """Whether a pod fits on a node once the pods that terminate there are gone.

        Chips that were promised to it may be in doubt (``state/swaps.py``), which no promise outlasts.
        """
        record, promise = self._cluster.nodes.get(node), self._promise_of(pod)
        if record is None:
            return False
        if promise is not None and node in promise.chips:
            record = replace(record, swaps={})
        return self._fits(record, ending_on(record, self._cluster), pod, request)

    def _fits(self, record: NodeRecord, gone: Collection[str], pod: Pod, request: ChipRequest) -> bool:
        plan = self._cluster.jobs.job_of(pod).key.plan
        return isinstance(_judge(self._without(record, gone, pod, (plan,)), request), Fit)

    def _promise_of(self, pod: Pod) -> Promise | None:
        """The promise to a pod or its gang of chips of pods that end."""
        promises = self._ledger.promises
        promise = promises.get(pod.uid) or promises.get(self._cluster.jobs.job_of(pod).key.plan)
        return promise if promise is not None and not promise.drains else None

    def on_nomination(self, pod: Pod, *, free_as_well: bool = False) -> None:
        """Promise chips of its node to a nominated pod that has no promise and no reservation.

        Its victims were chosen by another leader, or its scheduler chose one of several answers.

        Args:
            pod: the pod.
            free_as_well: promise it also what is free, if it waits for no victims.
        """
        node, promises = pod.status.nominated_node_name, self._ledger.promises
        record = self._cluster.nodes.get(node)
        if record is None or not pod.waits_for_chips or self._ledger.get(pod.uid) is not None:
            return
        try:
            request, gang = self._engine.request_of(pod), self._engine.gang_of(pod)
        except Refusal:
            return
        promise = promises.get(pod.uid)
        if gang is not None or (promise is not None and not promise.drains):
            return
        for terminating_only in (True, False):
            victims = self._select(record, pod, request, terminating_only=terminating_only)
            if not isinstance(victims, Refusal):
                if victims or free_as_well:
                    self._promise(pod, VictimSet(node, victims), request)
                return

    def resume(self) -> None:
        """Promise the nominated pods of the cluster their chips again after the leader has changed; then later ones."""
        waiting = [pod for pod in self._cluster.waiting if pod.status.nominated_node_name and pod.waits_for_chips]
        waiting.sort(key=_first_nominated)
        self._cluster.nominated = self.on_nomination
        for pod in waiting:
            self.on_nomination(pod)
        of_gangs = [(job, pod) for pod in waiting if (job := self._engine.gang_of(pod)) is not None]
        for job, pairs in groupby(sorted(of_gangs, key=lambda pair: pair[0].key), key=lambda pair: pair[0]):
            self._resume_gang(job, [pod for _, pod in pairs if self._ledger.get(pod.uid) is None])

    def _without(self, record: NodeRecord, gone: Collection[str], pod: Pod, plans: Collection[str] = ()) -> Offer:
        """What a node would have left for a pod without others; a refusal if it can't be used.

        Args:
            record: the node.
            gone: the uids of the others.
            pod: the pod: what is reserved for it, or promised to it or to lower priorities, does not count.
            plans: the plans of gangs to which promised chips count as free, too.
        """
        return self._cluster.offer_of(record, Without.of(pod, gone, plans))

    async def _improve_gang(
        self, pod: Pod, request: ChipRequest, gang: Job, suggested: Mapping[str, Suggestion]
    ) -> VictimSet | None:
        if not request.is_for_chips:
            sentence = f"job {gang.key}: pods with vNPUs that start together preempt no others"
            raise Refusal(Reason.GANG_DOES_NOT_FIT, sentence)
        place = await self._gangs.place(pod, request, gang, suggested)
        left = self._gangs.remaining(place) if place is not None else ()
        if place is None or not left:
            return None
        victims = [victim for victim in left if victim.uid not in place.others]
        return self._complete(VictimSet(place.node, tuple(victims)), suggested, request)

    async def _each(self, pod: Pod, nodes: Iterable[str], request: ChipRequest) -> AsyncIterator[VictimSet]:
        turn = Turn()
        for node in nodes:
            found = self._victims(pod, node, request)
            if isinstance(found, VictimSet):
                yield found
            await turn.share()

    def _complete(self, own: VictimSet, suggested: Mapping[str, Suggestion], request: ChipRequest) -> VictimSet:
        """With the victims that have nothing of what is requested, as the scheduler has selected them."""
        others = self._occupants.without_chips(self._without_chips(own.node, suggested, request))
        victims = tuple(reversed(least_important_first((*own.victims, *others))))
        return VictimSet(own.node, victims, suggested[own.node].pdb_violations)

    def _needs_room(self, own: VictimSet, suggested: Mapping[str, Suggestion], request: ChipRequest) -> bool:
        """Whether pods have to end on a node: for chips, or, if they are still there, for CPU and the like."""
        others = self._without_chips(own.node, suggested, request)
        return bool(own.victims) or any(map(self._occupants.exists, others))

    def _without_chips(self, node: str, suggested: Mapping[str, Suggestion], request: ChipRequest) -> list[str]:
        """The uids of a scheduler's victims on a node that have nothing of what is requested."""
        held = self._cluster.nodes[node].holdings
        return [uid for uid in suggested[node].uids if uid not in held or not _has_some(held[uid], request)]

    def _promised_victims(self, pod: Pod, request: ChipRequest) -> VictimSet | None:
        """The node that was promised to a pod, with the victims that have not ended yet, if all are terminating."""
        promise = self._promise_of(pod)
        for node in promise.chips if promise is not None else ():
            own = self._victims(pod, node, request)
            if isinstance(own, VictimSet) and all(victim.terminating for victim in own.victims):
                return own
            if self._settles(pod, request, node):
                return VictimSet(node, ())
        return None

    def _promise(self, pod: Pod, chosen: VictimSet, request: ChipRequest) -> None:
        record = self._cluster.nodes[chosen.node]
        fit = _judge(self._without(record, {victim.uid for victim in chosen.victims}, pod), request)
        if isinstance(fit, Fit):
            due_s, take = self._due_s(victim.uid for victim in chosen.victims), fit.take
            chips, part = {chosen.node: take.chip_set}, take.vnpu or take.cut
            promise = Promise(pod.uid, f"pod {pod.key}", pod.priority, chips, due_s, part=part)
            self._ledger.promises.keep(promise)

    def _promise_nominated(self, pod: Pod, nodes: Collection[str]) -> None:
        """Promise chips to the pods nominated to the nodes that a scheduler counts there against another pod.

        A promise has an end, a nomination has none.
        """
        counted = [
            other
            for other in self._cluster.waiting
            if other.status.nominated_node_name in nodes and other.uid != pod.uid and other.priority >= pod.priority
        ]
        for other in sorted(counted, key=_first_nominated):
            self.on_nomination(other, free_as_well=True)

    def _resume_gang(self, job: Job, pods: list[Pod]) -> None:
        if self._ledger.promises.get(job.key.plan) is not None:
            return
        chips: defaultdict[str, ChipSet] = defaultdict(int)
        victims: set[str] = set()
        for pod in pods:
            node = pod.status.nominated_node_name
            if (record := self._cluster.nodes.get(node)) is None:
                continue
            request = self._engine.request_of(pod)
            occupants = self._on(record, request)
            lower = {other.uid for other in occupants if other.terminating or other.work.priority < pod.priority}
            offer = self._cluster.offer_of(record, Without(lower, (job.key.plan,), pod.priority))
            if isinstance(offer, Vacancy):
                offer = offer.without(Take(chip_set=chips[node]))
            fit = _judge(offer, request)
            if isinstance(fit, Fit) and request.is_for_chips:
                chips[node] |= fit.take.chip_set
                victims |= lower
        if chips:
            priority = min(pod.priority for pod in pods)
            self._ledger.promises.keep(Promise(job.key.plan, f"job {job.key}", priority, chips, self._due_s(victims)))

    def _due_s(self, victims: Iterable[str]) -> float:
        """Until when the chips of victims are promised, if these terminate from now on."""
        pods = [pod for uid in victims if (pod := self._cluster.pods.get(uid)) is not None]
        graces = (pod.spec.termination_grace_period_seconds for pod in pods)
        longest = max((_DEFAULT_GRACE_S if grace is None else grace for grace in graces), default=0)
        return self._ledger.promises.monotonic() + min(longest, _MOST_GRACE_S) + self._keep_s

    def _victims(self, pod: Pod, node: str, request: ChipRequest) -> VictimSet | Refusal:
        record = self._cluster.nodes.get(node)
        if record is None:
            return unknown_node(node)
        never = pod.spec.preemption_policy == NEVER
        victims = self._select(record, pod, request, terminating_only=never)
        return victims if isinstance(victims, Refusal) else VictimSet(node, victims)

    def _select(
        self, record: NodeRecord, pod: Pod, request: ChipRequest, *, terminating_only: bool
    ) -> tuple[Occupant, ...] | Refusal:
        occupants = [
            occupant
            for occupant in self._on(record, request)
            if occupant.terminating or (occupant.work.priority < pod.priority and not terminating_only)
        ]
        if request.vnpu:
            return self._select_one(record, pod, request, occupants)
        if request.cores:
            return self._select_few(record, pod, request, occupants)
        empty = self._without(record, {occupant.uid for occupant in occupants}, pod)
        return empty if isinstance(empty, Refusal) else select_victims(empty, request, occupants)

    def _select_one(
        self, record: NodeRecord, pod: Pod, request: ChipRequest, occupants: Sequence[Occupant]
    ) -> tuple[Occupant, ...] | Refusal:
        """The least costly pod whose vNPU serves the request; none if a vNPU is free."""
        verdict = _judge(self._without(record, (), pod), request)
        if isinstance(verdict, Fit):
            return ()
        for occupant in sorted(least_important_first(occupants), key=lambda occupant: cost([occupant])):
            if isinstance(_judge(self._without(record, {occupant.uid}, pod), request), Fit):
                return (occupant,)
        return verdict

    def _select_few(
        self, record: NodeRecord, pod: Pod, request: ChipRequest, occupants: Sequence[Occupant]
    ) -> tuple[Occupant, ...] | Refusal:
        """The pods without which AI cores fit: of all, the most costly work goes on as far as it can."""

        def verdict(gone: Iterable[Occupant]) -> Fit | Refusal:
            return _judge(self._without(record, {occupant.uid for occupant in gone}, pod), request)

        empty = verdict(occupants)
        if isinstance(empty, Refusal):
            return empty
        victims = reprieved(least_important_first(occupants), lambda gone: isinstance(verdict(gone), Fit))
        return tuple(reversed(victims))

    def _on(self, record: NodeRecord, request: ChipRequest) -> Iterator[Occupant]:
        for uid, holding in record.holdings.items():
            pod = self._cluster.pods.get(uid)  # None if it was deleted by force, and its chips are still held
            if pod is not None and holding.unreadable is None and _has_some(holding, request):
                yield self._occupants.of(pod, record, holding)


def _first_nominated(pod: Pod) -> tuple[int, str, str]:
    """The order in which nominated pods are promised something: the most important first, then the oldest."""
    return -pod.priority, pod.metadata.creation_timestamp or "", pod.key


def _has_some(holding: Holding, request: ChipRequest) -> bool:
    """Whether a pod holds some of what is requested: chips, or a vNPU of that size."""
    if request.vnpu:
        return any(vnpu.suffix == request.vnpu for vnpu in holding.vnpus)
    if request.cores:
        return bool(holding.chips or holding.cuts)
    return bool(holding.chips)


def _judge(offer: Offer, request: ChipRequest) -> Fit | Refusal:
    return offer if isinstance(offer, Refusal) else judge(offer, request)
