"""Judges pods for a scheduler that places several before it binds any: placed pods count as well."""

from collections.abc import Collection, Iterable

from allocator.decision.engine import DecisionEngine
from allocator.decision.occupants import Occupants
from allocator.decision.request import ResolvedRequest
from allocator.decision.trial import ending_on
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge, peer_on_node
from allocator.rules.victims import Occupant, select_victims
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, unknown_node
from allocator.state.view import Without
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.takes import Take


class Tentative:
    """Judges pods beside others that are placed, but not bound.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        engine: reads what pods request.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, engine: DecisionEngine) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._engine = engine
        self._occupants = Occupants(cluster, ledger)

    def fit(
        self, pod: Pod, resolved: ResolvedRequest, node: str, beside: Iterable[Pod], *, once_ended: bool = False
    ) -> Fit:
        """How a pod fits on a node beside pods that are placed there.

        Args:
            pod: the pod.
            resolved: what it requests.
            node: the name of the node.
            beside: pods that are placed there; those that are bound or have a reservation there count anyway.
            once_ended: whether the pods that terminate there count as gone.

        Raises:
            Refusal: it does not fit, or its gang is incomplete and not started.
        """
        request, gang = resolved.chips, resolved.gang
        if gang is not None and (lacking := self._engine.gangs.lacks(gang, pod)) is not None:
            raise lacking
        others, job = [other for other in beside if other.uid != pod.uid], resolved.job
        if request.is_spread and (job.shares(node, pod.uid) or any(other.uid in job.pods for other in others)):
            raise peer_on_node()
        record = self._cluster.nodes.get(node)
        if record is None:
            raise unknown_node(node)
        gone = ending_on(record, self._cluster) if once_ended else set[str]()
        if gang is not None and (vacant := self._engine.gangs.vacant_on(pod, request, gang, node)) is not None:
            gone.add(vacant.uid)
        without = self._without(pod, resolved, gone)
        if gang is not None and resolved.policy.level is not None:
            self._engine.gangs.planner.plan_alone(pod, request, gang, node, without)  # where its block, or switch, is
        verdict = self._judge(record, request, others, without)
        if isinstance(verdict, Refusal):
            raise Refusal(verdict.reason, verdict.message)
        return verdict

    def victims(self, pod: Pod, node: str, candidates: Collection[Pod]) -> list[str]:
        """The uids of the pods to evict on a node for a pod; none if no eviction is needed, or none helps.

        Only for pods with whole chips; nobody is evicted for a part of a chip, nor for a pod that can't use the node
        yet, nor for a job whose nodes depend on each other (blocks, switches). Also none if the scheduler, which evicts
        one after the other until enough chips are free, would stop before the last one: they would not be linked.

        Args:
            pod: the pod.
            node: the name of the node.
            candidates: the pods that may be evicted.

        Raises:
            Refusal: its request is invalid on every node.
        """
        resolved, record = self._engine.resolve(pod), self._cluster.nodes.get(node)
        request = resolved.chips
        if record is None or not request.is_for_chips or self._depends_on_others(pod, node, resolved):
            return []
        occupants = [
            self._occupants.of(candidate, record, held)
            for candidate in candidates
            if (held := record.holdings.get(candidate.uid)) is not None and held.unreadable is None and held.chips
        ]
        gone = {victim.uid for victim in occupants}
        empty = self._cluster.offer_of(record, self._without(pod, resolved, gone))
        if not isinstance(empty, Vacancy) or isinstance(judge(empty, request), Refusal):
            return []
        found = select_victims(empty, request, occupants)
        if isinstance(found, Refusal) or not self._evicts_all(record, request, found):
            return []
        return [victim.uid for victim in found]

    def _without(self, pod: Pod, resolved: ResolvedRequest, gone: Collection[str]) -> Without:
        gang, planner = resolved.gang, self._engine.gangs.planner
        return planner.usable(pod, gang, gone) if gang is not None else Without.of(pod, gone)

    def _depends_on_others(self, pod: Pod, node: str, resolved: ResolvedRequest) -> bool:
        """Whether chips alone don't make a pod fit on a node."""
        if resolved.chips.is_spread and resolved.job.shares(node, pod.uid):
            return True
        gang = resolved.gang
        if gang is None:
            return False
        return self._engine.gangs.lacks(gang, pod) is not None or resolved.policy.level is not None

    def _evicts_all(self, record: NodeRecord, request: ChipRequest, victims: Collection[Occupant]) -> bool:
        """Whether a scheduler that counts chips evicts all of some pods, in whatever order."""
        if not victims or isinstance(record.server, Refusal):
            return False
        # It takes chips for free of pods that terminate, and knows nothing of those deleted by force.
        free = ending_on(record, self._cluster) | (record.holdings.keys() - self._cluster.pods.keys())
        staying = (held.counted for uid, held in record.holdings.items() if uid not in free)
        freed = [victim.counted for victim in victims]
        return record.server.allocatable - sum(staying) + sum(freed) - min(freed) < request.chips

    def _judge(
        self, record: NodeRecord, request: ChipRequest, others: Iterable[Pod], without: Without
    ) -> Fit | Refusal:
        """The verdict on a request beside pods that are placed on a node."""
        known = {*self._ledger.on(record.name), *record.holdings}.difference(without.pods)
        beside = dict[str, Take]()
        for other in sorted(others, key=lambda placed: placed.uid):
            if other.uid in known or not self._engine.handles(other):
                continue
            left = self._cluster.offer_of(record, without, beside)
            try:
                fit = judge(left, self._engine.request_of(other)) if isinstance(left, Vacancy) else left
            except Refusal:
                continue  # it will not be bound
            if isinstance(fit, Fit):
                beside[other.uid] = fit.take
        left = self._cluster.offer_of(record, without, beside)
        return left if isinstance(left, Refusal) else judge(left, request)
