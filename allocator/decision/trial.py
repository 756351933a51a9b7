"""The cluster without some pods of lower priority: an index of its own, in which pods come and go.

Pods that end together are one unit: the pods of a gang, because a gang that loses more pods than its minimum allows
can't work; else a pod alone.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable

import msgspec
from msgspec import structs

from allocator.decision.occupants import Occupants
from allocator.gangs.policy import Policy
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.rules.victims import Occupant, Work, select_victims
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Offer, unknown_node
from allocator.state.view import Without
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Turn


class Unit(msgspec.Struct, eq=False, gc=False):
    """Pods that end together.

    Attributes:
        work: the work of all of them, also of those on other nodes.
        uids: the uids of all of them.
        occupants: those on the examined nodes, by node.
        ended: those of them that have ended, by uid.
        ended_size: the work of these alone.
    """

    work: Work
    uids: Collection[str]
    occupants: dict[str, tuple[Occupant, ...]] = {}
    ended: dict[str, Occupant] = {}
    ended_size: int = 0

    @property
    def pods(self) -> list[Occupant]:
        """Those on the examined nodes."""
        return [pod for here in self.occupants.values() for pod in here]

    @property
    def is_over(self) -> bool:
        """Whether so many have ended that the others can't go on."""
        return len(self.ended) > self.work.spare

    @property
    def loss(self) -> tuple[int, int]:
        """The work that has ended, and the number of pods."""
        return (self.work.size, self.work.pods) if self.is_over else (self.ended_size, len(self.ended))

    @property
    def left(self) -> Work:
        """The work that has not ended."""
        if not self.ended:
            return self.work
        (size, pods), spare = self.loss, max(0, self.work.spare - len(self.ended))
        return Work(self.work.priority, self.work.size - size, self.work.pods - pods, spare)

    def running_on(self, node: str) -> list[Occupant]:
        """Those on a node that have not ended."""
        return [pod for pod in self.occupants.get(node, ()) if pod.uid not in self.ended]

    def ending_with(self, pods: Collection[Occupant]) -> Collection[Occupant]:
        """The pods that end with some pods: only these, or all if the rest can't go on."""
        if len(self.ended) + len(pods) <= self.work.spare:
            return pods
        return [pod for pod in self.pods if pod.uid not in self.ended]


class Trial:
    """What nodes have left without some pods.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        occupants: reads what pods hold.
        owner: the uid or plan of the preemptor.
        priority: the preemptor's; only pods of lower priority may end.
        terminating_only: no pod may end but those that are terminating.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        occupants: Occupants,
        *,
        owner: str,
        priority: int,
        terminating_only: bool = False,
    ) -> None:
        self.index = NodeIndex(cluster.index.topology.copy())
        self.turn = Turn()
        self.units: dict[Hashable, Unit] = {}
        self._cluster = cluster
        self._ledger = ledger
        self._occupants = occupants
        self._owner = owner
        self._priority = priority
        self._terminating_only = terminating_only
        self._terminating: defaultdict[str, list[Occupant]] = defaultdict(list)
        self._on: defaultdict[str, dict[Hashable, Unit]] = defaultdict(dict)
        self._nodes: dict[str, str] = {}

    async def read(self, names: Iterable[str], nodes: Collection[str]) -> None:
        """Read nodes; other tasks may run meanwhile.

        Args:
            names: their names.
            nodes: the names of those on which pods may end; terminating ones may on all.
        """
        for name in names:
            if (record := self._cluster.nodes.get(name)) is not None:
                self._read_pods(record, may_end=name in nodes)
            self.index.put(name, self.offer(name))
            await self.turn.share()

    async def free(self) -> None:
        """Free units and nodes piece by piece: thousands at once take milliseconds; other tasks run meanwhile."""
        for read in (self.units, self._on, self._terminating, self._nodes):
            while read:
                read.popitem()
                await self.turn.share()

    @property
    def gone(self) -> list[Unit]:
        """The units of which pods have ended."""
        return [unit for unit in self.units.values() if unit.ended]

    def policy_view(self, job: Job, policy: Policy) -> object:
        """What the policy of a job sees of the cluster besides the index."""
        ended = frozenset(uid for unit in self.gone for uid in (unit.uids if unit.is_over else unit.ended))
        return policy.sees(self._cluster, job, ended)

    async def end(self, pods: Collection[Occupant]) -> None:
        """Let pods end that have not ended; other tasks may run meanwhile."""
        await self.turn.share()
        for pod in pods:
            unit = self.units[pod.group]
            unit.ended[pod.uid] = pod
            unit.ended_size += pod.size
            await self.turn.share()
        await self._renew(pods)

    async def restore(self, pods: Collection[Occupant]) -> None:
        """Undo the end of pods; other tasks may run meanwhile."""
        await self.turn.share()
        for pod in pods:
            unit = self.units[pod.group]
            del unit.ended[pod.uid]
            unit.ended_size -= pod.size
            await self.turn.share()
        await self._renew(pods)

    def units_on(self, node: str) -> Collection[Unit]:
        """The units with pods on a node."""
        return self._on[node].values() if node in self._on else ()

    def nodes_of(self, pods: Iterable[Occupant]) -> set[str]:
        """The examined nodes of these pods."""
        return {self._nodes[pod.uid] for pod in pods}

    def ending_with(self, pods: Iterable[Occupant]) -> list[Occupant]:
        """The pods that end with some pods: also the peers of their units that can't go on."""
        by_unit: defaultdict[Hashable, list[Occupant]] = defaultdict(list)
        for pod in pods:
            by_unit[pod.group].append(pod)
        return [pod for group, here in by_unit.items() for pod in self.units[group].ending_with(here)]

    def capacity(self, node: str, request: ChipRequest, without: Iterable[Occupant] = ()) -> int:
        """How many pods with this request fit on a node, if these pods end as well."""
        offer = self.offer(node, ending={pod.uid for pod in without})
        return capacity(offer, request)[0] if isinstance(offer, Vacancy) else 0

    def cheapest(self, node: str, request: ChipRequest, units: Collection[Unit]) -> list[Occupant]:
        """The pods of units on a node without which one more pod with this request fits there; none if it never does.

        Their work is what has not ended.
        """
        running = list[Occupant]()
        for unit in self.units_on(node):
            if unit in units:
                here = unit.running_on(node)
                running += [structs.replace(pod, work=unit.left) for pod in here] if unit.ended else here
        if not running:
            return []
        empty = self.offer(node, ending={pod.uid for pod in running})
        if isinstance(empty, Refusal):
            return []
        found = select_victims(empty, request, running, pods=self.capacity(node, request) + 1)
        return [] if isinstance(found, Refusal) else list(found)

    def ended_on(self, node: str) -> list[Occupant]:
        """The pods on a node that are terminating or have ended."""
        ended = (pod for unit in self.units_on(node) for pod in unit.occupants[node] if pod.uid in unit.ended)
        return [*self._terminating.get(node, ()), *ended]

    def offer(self, node: str, *, ending: Collection[str] = (), staying: Collection[str] = ()) -> Offer:
        """A node's vacancy now, if some more pods end, and some of the ended pods stay."""
        record = self._cluster.nodes.get(node)
        if record is None:
            return unknown_node(node)
        gone = {pod.uid for pod in self.ended_on(node)}.union(ending).difference(staying)
        return self._cluster.offer_of(record, Without(gone, (self._owner,), self._priority))

    async def _renew(self, pods: Iterable[Occupant]) -> None:
        await self.turn.share()
        for node in self.nodes_of(pods):
            await self.turn.share()
            self.index.put(node, self.offer(node))

    def _read_pods(self, record: NodeRecord, *, may_end: bool) -> None:
        for uid, holding in record.holdings.items():
            pod = self._cluster.pods.get(uid)
            if pod is None or holding.unreadable is not None or not holding.chips:
                continue  # without a pod: deleted by force, and its chips are still held
            if pod.is_terminating:
                self._terminating[record.name].append(self._occupants.of(pod, record, holding))
            elif may_end and not self._terminating_only and pod.priority < self._priority:
                occupant = self._occupants.of(pod, record, holding)
                if occupant.work.priority < self._priority:
                    self._put(record.name, occupant, pod)

    def _put(self, node: str, occupant: Occupant, pod: Pod) -> None:
        unit = self.units.get(occupant.group)
        if unit is None:
            uids = (pod.uid,) if occupant.group == pod.uid else tuple(self._cluster.jobs.job_of(pod).placed)
            unit = self.units[occupant.group] = Unit(occupant.work, uids)
        unit.occupants[node] = (*unit.occupants.get(node, ()), occupant)
        self._on[node][occupant.group] = unit
        self._nodes[occupant.uid] = node


def ending_on(record: NodeRecord, cluster: Cluster) -> set[str]:
    """The uids of the pods on a node that terminate."""
    return {uid for uid in record.holdings if (pod := cluster.pods.get(uid)) is not None and pod.is_terminating}
