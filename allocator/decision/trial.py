"""The cluster as it would be without some pods of lower priority: an index of its own, in which they come and go.

Pods that end together are one unit: the pods of a gang, because a gang that loses a pod can't work; else a pod alone.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec

from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy, capacity
from allocator.rules.victims import Occupant
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Offer
from allocator.state.offers import assess
from allocator.state.switches import SwitchUse
from ascend.cores import Cut
from ascend.kube.objects import Pod
from ascend.turn import Turn
from ascend.vnpus import Vnpu


class Unit(msgspec.Struct, eq=False, gc=False):
    """Pods that end together.

    Attributes:
        key: the job of a gang, or the uid of a pod alone.
        pods: how many end: all placed pods of a gang, also those on other nodes.
        priority: the highest of theirs.
        total: the sum of theirs.
        since: when the first one was created.
        uids: the uids of all that end.
        occupants: those on the examined nodes, by node.
    """

    key: str
    pods: int
    priority: int
    total: int
    since: str
    uids: frozenset[str]
    occupants: dict[str, tuple[Occupant, ...]] = {}


class Trial:
    """What nodes have left without some pods.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        owner: the uid or plan of the preemptor.
        priority: the preemptor's; only pods of lower priority may end.
        terminating_only: no pod may end but those that are terminating.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, *, owner: str, priority: int, terminating_only: bool = False
    ) -> None:
        self.index = NodeIndex(cluster.index.topology.copy())
        self.turn = Turn()
        self.units: dict[str, Unit] = {}
        self._cluster = cluster
        self._ledger = ledger
        self._owner = owner
        self._priority = priority
        self._terminating_only = terminating_only
        self._terminating: defaultdict[str, list[Occupant]] = defaultdict(list)
        self._on: defaultdict[str, set[str]] = defaultdict(set)
        self._gone: set[str] = set()

    async def read(self, nodes: Collection[str]) -> None:
        """Read the cluster; pods may end on these nodes, and terminating ones on all. Other tasks may run meanwhile."""
        for name in list(self._cluster.nodes):
            record = self._cluster.nodes.get(name)
            if record is not None:
                self._read_pods(record, may_end=name in nodes)
                self.index.put(name, self._offer(record))
            await self.turn.share()

    @property
    def gone(self) -> list[Unit]:
        """The units that have ended."""
        return [self.units[key] for key in self._gone]

    def switch_uses(self, job: JobKey) -> dict[int, SwitchUse]:
        """How other jobs than this one use the leaf switches."""
        ended = frozenset(uid for unit in self.gone for uid in unit.uids)
        return self._cluster.switches.uses_after(ended, job)

    def is_gone(self, unit: Unit) -> bool:
        """Whether a unit has ended."""
        return unit.key in self._gone

    async def end(self, units: Iterable[Unit]) -> None:
        """Let units end; other tasks may run meanwhile."""
        ending = list(units)
        await self.turn.share()
        self._gone.update(unit.key for unit in ending)
        await self._renew(ending)

    async def restore(self, units: Iterable[Unit]) -> None:
        """Undo the end of units; other tasks may run meanwhile."""
        staying = list(units)
        await self.turn.share()
        self._gone.difference_update(unit.key for unit in staying)
        await self._renew(staying)

    def units_on(self, node: str) -> list[Unit]:
        """The units with pods on a node."""
        return [self.units[key] for key in self._on.get(node, ())]

    def nodes_of(self, units: Iterable[Unit]) -> set[str]:
        """The examined nodes with pods of these units."""
        return {node for unit in units for node in unit.occupants}

    def capacity(self, node: str, request: ChipRequest, without: Collection[Unit] = ()) -> int:
        """How many pods with this request fit on a node, if these units end as well."""
        record = self._cluster.nodes.get(node)
        if record is None:
            return 0
        offer = self._offer(record, {each.uid for unit in without for each in unit.occupants.get(node, ())})
        return capacity(offer, request)[0] if isinstance(offer, Vacancy) else 0

    def ended_on(self, node: str) -> list[Occupant]:
        """The pods on a node that are terminating or have ended."""
        gone = (self.units[key] for key in self._on.get(node, ()) if key in self._gone)
        return [*self._terminating.get(node, ()), *(each for unit in gone for each in unit.occupants.get(node, ()))]

    def offer(self, node: str, staying: Collection[str] = ()) -> Offer | None:
        """What a node has left now, if these of the ended pods stay; None if it is gone."""
        record = self._cluster.nodes.get(node)
        if record is None:
            return None
        gone = {each.uid for each in self.ended_on(node)}.difference(staying)
        return self._without(record, gone)

    def _offer(self, record: NodeRecord, more: Collection[str] = ()) -> Offer:
        ended = self.ended_on(record.name)
        if not (ended or more or self._ledger.promises) and record.offer is not None:
            return record.offer
        return self._without(record, {each.uid for each in ended}.union(more))

    def _without(self, record: NodeRecord, gone: Collection[str]) -> Offer:
        return offer_without(record, gone, self._ledger, (self._owner,), self._priority)

    async def _renew(self, units: Iterable[Unit]) -> None:
        await self.turn.share()
        for node in self.nodes_of(units):
            await self.turn.share()
            record = self._cluster.nodes.get(node)
            if record is not None:
                self.index.put(node, self._offer(record))

    def _read_pods(self, record: NodeRecord, *, may_end: bool) -> None:
        for uid, holding in record.holdings.items():
            pod = self._cluster.pods.get(uid)
            if pod is None or holding.unreadable is not None or not holding.chips:
                continue  # without a pod: deleted by force, and its chips are still held
            if pod.is_terminating:
                self._terminating[record.name].append(Occupant.of(pod, holding.chips, holding.counted))
            elif may_end and not self._terminating_only and pod.priority < self._priority:
                unit = self._unit_of(pod)
                if unit.priority < self._priority:
                    here = unit.occupants.get(record.name, ())
                    unit.occupants[record.name] = (*here, Occupant.of(pod, holding.chips, holding.counted))
                    self._on[record.name].add(unit.key)

    def _unit_of(self, pod: Pod) -> Unit:
        job = self._cluster.jobs.job_of(pod)
        peers = [job.pods[uid] for uid in job.placed] if job.is_gang else []
        key = job.key.plan if peers else pod.uid
        unit = self.units.get(key)
        if unit is None:
            pods = peers or [pod]
            priorities = [each.priority for each in pods]
            uids = frozenset(each.uid for each in pods)
            since = min(each.metadata.creation_timestamp or "" for each in pods)
            unit = self.units[key] = Unit(key, len(pods), max(priorities), sum(priorities), since, uids)
        return unit


def offer_without(
    record: NodeRecord, gone: Collection[str], ledger: Ledger, owners: Collection[str], priority: int
) -> Offer:
    """What a node would have left for a preemptor without these pods, or why it can't be used.

    Args:
        record: the node.
        gone: the uids of the pods.
        ledger: the reservations and promises.
        owners: the preemptor's uid or the plan of its gang, and whoever else's promises it may use: what is promised to
            these, or reserved for them, does not count.
        priority: the preemptor's; it may take what was promised to lower priorities.
    """
    promised, parts = 0, list[Vnpu | Cut]()
    for promise in ledger.promises.owners_on(record.name) if ledger.promises else ():
        if promise.owner not in owners and promise.priority >= priority:
            promised |= promise.chips[record.name]
            parts += [promise.part] if promise.part is not None else []
    reserved = ledger.on(record.name)
    if gone:
        staying = {uid: holding for uid, holding in record.holdings.items() if uid not in gone}
        record = replace(record, holdings=staying)
    if not reserved.keys().isdisjoint(owners):
        reserved = {uid: take for uid, take in reserved.items() if uid not in owners}
    return assess(record, reserved, promised, parts=parts)
