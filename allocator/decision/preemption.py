"""Preemption: selects the node, and its victims, that make room for a pod of higher priority. No I/O.

Only pods of lower priority than the preemptor are preempted. Victims that hold chips are selected by ``rules.victims``;
victims without chips, which a scheduler selects for other reasons, stay on its list.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from allocator.decision.engine import DecisionEngine
from allocator.rules.request import ChipRequest
from allocator.rules.victims import Cost, Occupant, cost, least_important_first, select_victims
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Offer, assess, unknown_node
from allocator.state.plain_pods import PlainPod
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category

NEVER = "Never"

_YIELD_EVERY: Final = 16
"""The number of nodes after which other tasks may run; one node may take some milliseconds."""


@dataclass(frozen=True, slots=True)
class VictimSet:
    """The pods that make room on a node.

    Attributes:
        node: the node.
        victims: the most important first; empty if the pod fits without preemption.
        pdb_violations: the number of violated PodDisruptionBudgets, as counted by the scheduler.
    """

    node: str
    victims: tuple[Occupant, ...]
    pdb_violations: int = 0

    @property
    def order(self) -> tuple[int, Cost, str]:
        """The sort key, smaller is better; by name of the node among equals, so that the answer is deterministic."""
        return self.pdb_violations, cost(self.victims), self.node


@dataclass(frozen=True, slots=True)
class Suggestion:
    """The victims that a scheduler selected on a node by counting chips.

    Attributes:
        uids: the uids of the pods.
        pdb_violations: the number of PodDisruptionBudgets that this violates.
    """

    uids: tuple[str, ...]
    pdb_violations: int


class Preemption:
    """Selects victims.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        engine: reads what pods request.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, engine: DecisionEngine) -> None:
        self._cluster = cluster
        self._engine = engine
        self._ledger = ledger

    def victims(self, pod: Pod, node: str) -> VictimSet | Refusal:
        """The pods that a pod preempts on a node; a refusal if preemption would not help there.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        return self._victims(pod, node, self._engine.request_of(pod))

    async def victim_sets(self, pod: Pod, nodes: Iterable[str]) -> AsyncIterator[VictimSet]:
        """Yield the victims on each of these nodes on which preemption helps; other tasks may run in between.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        request = self._engine.request_of(pod)
        for number, node in enumerate(nodes, start=1):
            found = self._victims(pod, node, request)
            if isinstance(found, VictimSet):
                yield found
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def improve(self, pod: Pod, suggested: Mapping[str, Suggestion]) -> VictimSet | None:
        """The best node of those a scheduler suggests, with its victims; None if preemption helps on none of them.

        A node on which the pod fits without victims is skipped: the scheduler has not seen yet that pods are gone, and
        need not preempt any.

        Raises:
            Refusal: the pod's request is invalid on every node.
        """
        found: list[VictimSet] = []
        async for own in self.victim_sets(pod, suggested):
            if not own.victims:
                continue
            held, suggestion = self._cluster.nodes[own.node].holdings, suggested[own.node]
            others = self._pods(uid for uid in suggestion.uids if uid not in held)
            victims = tuple(reversed(least_important_first((*own.victims, *others))))
            found.append(VictimSet(own.node, victims, suggestion.pdb_violations))
        return min(found, key=lambda each: each.order, default=None)

    def waiting(self, pod: Pod, refused: Mapping[str, Refusal]) -> Collection[str]:
        """The nominated node of a pod, if it refuses the pod now and the pod fits once its victims have terminated.

        kube-scheduler would otherwise preempt further pods, on another node (k/k:…/defaultpreemption,
        PodEligibleToPreemptOthers).
        """
        node = pod.status.nominated_node_name
        if node not in refused or refused[node].reason.category is not Category.OCCUPIED:
            return ()
        request = self._engine.request_of(pod)
        victims = self._select(self._cluster.nodes[node], pod, request, terminating_only=True)
        return () if isinstance(victims, Refusal) else (node,)

    def without(self, record: NodeRecord, gone: Collection[str]) -> Offer:
        """What a node would have left without these pods; a refusal if it can't be used."""
        staying = {uid: holding for uid, holding in record.holdings.items() if uid not in gone}
        return assess(replace(record, holdings=staying), self._ledger.on(record.name))

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
            each
            for each in self._occupants(record)
            if each.terminating or (each.priority < pod.priority and not terminating_only)
        ]
        with self._ledger.suspended(pod.uid):
            empty = self.without(record, {each.uid for each in occupants})
        return empty if isinstance(empty, Refusal) else select_victims(empty, request, occupants)

    def _occupants(self, record: NodeRecord) -> Iterator[Occupant]:
        for uid, holding in record.holdings.items():
            pod = self._cluster.pods[uid]
            if holding.unreadable is None:
                yield _occupant(pod, holding.chips, holding.counted)

    def _pods(self, uids: Iterable[str]) -> Iterator[Occupant]:
        for uid in uids:
            pod = self._cluster.pods.get(uid)
            if pod is not None:
                yield _occupant(pod, 0, 0)
            else:
                # Without priority and age: the informers have not seen it yet.
                plain = self._cluster.plain.get(uid) or PlainPod(0, "", terminating=False)
                yield Occupant(uid, "", *plain, 0, 0)


def _occupant(pod: Pod, chips: int, counted: int) -> Occupant:
    since = pod.metadata.creation_timestamp or ""
    return Occupant(pod.uid, pod.key, pod.priority, since, pod.is_terminating, chips, counted)
