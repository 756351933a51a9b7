"""Preemption: on which node the least important pods make room for a pod, and who they are. No I/O.

Only pods of lower priority than the preemptor's are displaced. Those who hold chips are chosen by
``rules.victims``; pods without chips that a scheduler wants gone for other reasons stay on its list.
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
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Category

NEVER = "Never"

_BREATH: Final = 16
"""After so many nodes others have a turn on the loop; one may take a millisecond, or a few."""


@dataclass(frozen=True, slots=True)
class VictimSet:
    """The pods that make room on a node.

    Attributes:
        node: the node.
        victims: the most important first; empty where the pod fits beside all of them.
        pdb_violations: how many budgets are violated, as far as the scheduler has counted them.
    """

    node: str
    victims: tuple[Occupant, ...]
    pdb_violations: int = 0

    @property
    def order(self) -> tuple[int, Cost, str]:
        """The smaller, the better; equally bad ones by name, so that the answer is always the same."""
        return self.pdb_violations, cost(self.victims), self.node


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Whom a scheduler would displace from a node, by counting.

    Attributes:
        uids: of the pods.
        pdb_violations: how many budgets that violates.
    """

    uids: tuple[str, ...]
    pdb_violations: int


class Preemption:
    """Chooses victims.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        engine: knows what pods request for.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, engine: DecisionEngine) -> None:
        self._cluster = cluster
        self._engine = engine
        self._ledger = ledger

    def victims(self, pod: Pod, node: str) -> VictimSet | Refusal:
        """Whom a pod displaces from a node, or why that would not help.

        Raises:
            Refusal: the pod's request makes no sense on any node.
        """
        return self._victims(pod, node, self._engine.request_of(pod))

    async def victim_sets(self, pod: Pod, nodes: Iterable[str]) -> AsyncIterator[VictimSet]:
        """Whom a pod displaces from each of these nodes where that helps; others have turns on the loop meanwhile.

        Raises:
            Refusal: the pod's request makes no sense on any node.
        """
        request = self._engine.request_of(pod)
        for number, node in enumerate(nodes, start=1):
            found = self._victims(pod, node, request)
            if isinstance(found, VictimSet):
                yield found
            if number % _BREATH == 0:
                await asyncio.sleep(0)

    async def improve(self, pod: Pod, suggested: Mapping[str, Suggestion]) -> VictimSet | None:
        """The best node of those a scheduler suggests, with the victims that make the pod fit there; None: none does.

        Where the pod fits without victims the scheduler has not seen yet who is gone; it need not displace anybody.

        Raises:
            Refusal: the pod's request makes no sense on any node.
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
        """Of the nodes that refuse a pod, the one it has preempted pods on, if it fits there once they have ended.

        kube-scheduler would otherwise displace further pods, on another node (k/k:…/defaultpreemption,
        PodEligibleToPreemptOthers).
        """
        node = pod.status.nominated_node_name
        if node not in refused or refused[node].reason.category is not Category.OCCUPIED:
            return ()
        request = self._engine.request_of(pod)
        victims = self._select(self._cluster.nodes[node], pod, request, leaving_only=True)
        return () if isinstance(victims, Refusal) else (node,)

    def without(self, record: NodeRecord, gone: Collection[str]) -> Offer:
        """What a node would have left without these pods, or why it can't be used."""
        staying = {uid: holding for uid, holding in record.holdings.items() if uid not in gone}
        return assess(replace(record, holdings=staying), self._ledger.on(record.name))

    def _victims(self, pod: Pod, node: str, request: ChipRequest) -> VictimSet | Refusal:
        record = self._cluster.nodes.get(node)
        if record is None:
            return unknown_node(node)
        never = pod.spec.preemption_policy == NEVER
        victims = self._select(record, pod, request, leaving_only=never)
        return victims if isinstance(victims, Refusal) else VictimSet(node, victims)

    def _select(
        self, record: NodeRecord, pod: Pod, request: ChipRequest, *, leaving_only: bool
    ) -> tuple[Occupant, ...] | Refusal:
        occupants = [
            each
            for each in self._occupants(record)
            if each.leaving or (each.priority < pod.priority and not leaving_only)
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
            # A pod our watch has not shown yet is the scheduler's to judge.
            yield _occupant(pod, 0, 0) if pod is not None else Occupant(uid, "", 0, "", False, 0, 0)  # noqa: FBT003


def _occupant(pod: Pod, chips: int, counted: int) -> Occupant:
    since = pod.metadata.creation_timestamp or ""
    return Occupant(pod.uid, pod.key, pod.priority, since, pod.is_terminating, chips, counted)
