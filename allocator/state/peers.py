"""What kind of servers the pods of a job are on: those still to come have to join them, so the first chooses for all.

Pods that talk to each other are of no use on servers of different products: their chips differ in speed, memory and
network. The reference never mixes them, since there a job has one rule (spec/scheduling.md §3.3).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.rules.vacancy import capacity
from allocator.state.index import NodeIndex
from allocator.state.jobs import Jobs
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS

_VERSIONS: Final = itertools.count(1)


class Place(NamedTuple):
    """Where a pod counts for its peers.

    Attributes:
        job: theirs.
        node: the one it is bound to, or has its reservation on.
        product: the name of that server's product; None where it tells none.
    """

    job: JobKey
    node: str
    product: str | None


class Peers:
    """How many pods of each job have a place on servers of which product; told of every change, each in constant time.

    Args:
        pods: every pod, by uid.
        nodes: every node, by name.
        jobs: which pods belong together.
        ledger: what is decided.
    """

    def __init__(self, pods: Mapping[str, Pod], nodes: Mapping[str, NodeRecord], jobs: Jobs, ledger: Ledger) -> None:
        self._pods = pods
        self._nodes = nodes
        self._jobs = jobs
        self._ledger = ledger
        self._places: dict[str, Place] = {}
        self._on: defaultdict[str, set[str]] = defaultdict(set)
        self._counts: defaultdict[JobKey, Counter[str]] = defaultdict(Counter)
        self._placed: Counter[JobKey] = Counter()
        self._versions: dict[JobKey, int] = {}

    @property
    def counts(self) -> Mapping[JobKey, Mapping[str, int]]:
        """How many pods of each job that has any are on servers of which product."""
        return MappingProxyType(self._counts)

    def place(self, uid: str) -> Place | None:
        """Where a pod counts for its peers; None where it does not."""
        return self._places.get(uid)

    def placed(self, job: JobKey, uid: str) -> int:
        """How many of the other pods of a job have a place; those that have ended need none, and don't count."""
        own = self._places.get(uid)
        return self._placed[job] - (own is not None and own.job == job)

    def version(self, job: JobKey) -> int:
        """Another one after every change of the places of a job's pods; the same wherever none has any."""
        return self._versions.get(job, 0)

    def products(self, job: JobKey, uid: str) -> frozenset[str] | None:
        """The names of the products that the other pods of a job are on, or have their places on.

        A node that is cordoned or not Ready still counts. One that is unknown, or says nothing of use of its chips,
        tells no product: its pods keep nobody from any server. Peers that are on several products already were bound by
        others: any of these will do then, since keeping a pod from them all would not put the job right.

        Args:
            job: the job.
            uid: of the pod whose peers are meant.

        Returns:
            None where nobody has a place yet, or nobody knows on what.
        """
        counts = self._counts.get(job)
        if counts is None:
            return None
        own = self._places.get(uid)
        mine = own.product if own is not None and own.job == job else None
        return frozenset(name for name, count in counts.items() if count > (name == mine)) or None

    def pod_changed(self, uid: str) -> None:
        """A pod is new, has changed or is gone, or its reservation."""
        old, new = self._places.get(uid), self._find(uid)
        if new == old:
            return
        if old is not None:
            self._leave(uid, old)
        if new is not None:
            self._places[uid] = new
            self._on[new.node].add(uid)
            self._placed[new.job] += 1
            self._versions[new.job] = next(_VERSIONS)
            if new.product is not None:
                self._counts[new.job][new.product] += 1

    def product_changed(self, node: str) -> None:
        """A node has become a server of another product, or of none."""
        for uid in tuple(self._on.get(node, ())):
            self.pod_changed(uid)

    def _find(self, uid: str) -> Place | None:
        pod = self._pods.get(uid)
        if pod is None or not pod.asks_for_chips or not pod.is_live:
            return None
        node = pod.spec.node_name
        if not node:
            held = self._ledger.get(uid)
            if held is None:
                return None
            node = held.node
        job = self._jobs.job_of(pod)
        if uid not in job.pods:
            return None
        record = self._nodes.get(node)
        product = record.product if record is not None else None
        return Place(job.key, node, product.name if product is not None else None)

    def _leave(self, uid: str, place: Place) -> None:
        del self._places[uid]
        there = self._on[place.node]
        there.discard(uid)
        if not there:
            del self._on[place.node]
        self._placed[place.job] -= 1
        self._versions[place.job] = next(_VERSIONS)
        if not self._placed[place.job]:
            del self._placed[place.job], self._versions[place.job]
        if place.product is not None:
            counts = self._counts[place.job]
            counts[place.product] -= 1
            if not counts[place.product]:
                del counts[place.product]
                if not counts:
                    del self._counts[place.job]


def product_for_all(count: int, ask: Ask, index: NodeIndex, names: Iterable[str] | None) -> str | None:
    """The first product, in the order of preference, whose servers take all the pods of a job now; None: none does.

    Nothing is kept for those that are still to come. Nodes that have the same left are counted together.

    Args:
        count: how many pods the job has.
        ask: what each of them asks for.
        index: the nodes.
        names: of the only nodes for them; None for all.
    """
    room: Counter[str] = Counter()
    for bucket, nodes in index.buckets_of(names):
        room[bucket.vacancy.product.name] += nodes * capacity(bucket.vacancy, ask)[0]
    return next((name for name in PRODUCTS if room[name] >= count), None)
