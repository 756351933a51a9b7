"""The cluster as the API server has it, kept up to date object by object, each in constant time."""

import heapq
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.rules.vacancy import Fit, Vacancy, judge
from allocator.state.changes import Changes
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.jobs import Jobs
from allocator.state.ledger import Ledger
from allocator.state.node import (
    NodeRecord,
    assess,
    judge_freshness,
    read_holding,
    read_server,
    unknown_node,
)
from allocator.state.peers import Peers
from allocator.state.pools import NodePools
from allocator.state.previous import PreviousNodes
from allocator.state.report import NO_REPORT, Vitality, node_of_health, read_node_health, read_report
from allocator.state.reservation import Reservation
from ascend.annotations import CLAIMED, read_predicate_time
from ascend.deviceinfo import node_name
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.products import Product

REMEMBERED_GONE = 10_000
"""So many of the pods that went last are known to be gone: more than a scheduler may still be asking about."""


class Cluster:
    """Nodes, their reports and the pods on them, with the ledger's reservations taken off.

    It also ends reservations: a pod seen bound holds its chips itself, one that is finished or gone needs none.

    Args:
        ledger: the reservations.
        now_s: wall clock, Unix seconds.
        max_report_age_s: how old a node's report may be.
        previous: remembers where pods are; None where nobody wants to know later.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        now_s: Callable[[], float] = lambda: 0.0,
        max_report_age_s: float = math.inf,
        previous: PreviousNodes | None = None,
    ) -> None:
        self.previous = previous
        self._ledger = ledger
        self._now_s = now_s
        self._max_report_age_s = max_report_age_s
        self._ageing: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._records: dict[str, NodeRecord] = {}
        self._pods: dict[str, Pod] = {}
        self._gone: dict[str, None] = {}
        self._products: Counter[Product] = Counter()
        self.index = NodeIndex()
        self.pools = NodePools(self._records)
        self.changes = Changes()
        self.jobs = Jobs()
        self._peers = Peers(self._pods, self._records, self.jobs, ledger)
        ledger.subscribe(self._reserved)

    def twin(self) -> "Cluster":
        """An empty cluster with the same clock and limits and no reservations: to see whether this one is true."""
        ledger = Ledger(ttl_s=math.inf, monotonic=lambda: 0.0)
        return Cluster(ledger, now_s=self._now_s, max_report_age_s=self._max_report_age_s)

    @property
    def nodes(self) -> Mapping[str, NodeRecord]:
        """Every node, by name."""
        return self._records

    @property
    def pods(self) -> Mapping[str, Pod]:
        """Every pod, by uid."""
        return self._pods

    @property
    def peers(self) -> Peers:
        """What kind of servers the pods of each job are on."""
        return self._peers

    @property
    def is_mixed(self) -> bool:
        """Whether there are servers of several products."""
        return len(self._products) > 1

    def peer_products(self, job: Job, uid: str) -> frozenset[str] | None:
        """The products that a pod's peers have places on; None where none has, and where there is only one anyway."""
        return self._peers.products(job.key, uid) if self.is_mixed else None

    def suits(self, held: Reservation, ask: Ask) -> bool:
        """Whether the chips kept for a pod would still do if it asked now."""
        record = self._records.get(held.node)
        if record is None or len(held.chips) != ask.chips:
            return False
        others = {uid: chips for uid, chips in self._ledger.on(held.node).items() if uid != held.uid}
        left = assess(record, others)
        return isinstance(left, Vacancy) and isinstance(judge(left, ask), Fit) and not held.taken & ~left.usable(ask)

    def is_gone(self, uid: str) -> bool:
        """Whether a pod was seen to go, of late; one that was never seen may be too new for that."""
        return uid in self._gone

    def predicate_times(self) -> list[int]:
        """The times of the decisions written on live bound pods that the device plugin has not claimed yet."""
        bound = (pod for pod in self._pods.values() if pod.is_live and pod.spec.node_name)
        times = (read_predicate_time(pod.metadata.annotations) for pod in bound)
        return [time for time in times if time is not None and time != CLAIMED]

    def node_applied(self, node: Node) -> None:
        """A node is new or has changed."""
        record = self._record(node.name)
        if record.node is None or record.node.metadata.labels != node.metadata.labels:
            self.pools.forget()
            self.index.version += 1  # a gang goes by labels, too
        record.node, record.server = node, read_server(node)
        self._refresh(node.name)

    def node_deleted(self, node: Node) -> None:
        """A node is gone; what its pods hold is remembered for the case that it comes back."""
        record = self._record(node.name)
        record.node, record.server = None, unknown_node(node.name)
        self._identified(record, None)
        self.pools.forget()
        self._tidy(node.name)

    def report_applied(self, report: ConfigMap) -> None:
        """A node's report is new or has changed; ConfigMaps that are none are ignored."""
        name = node_name(report.name)
        if name is not None:
            record = self._record(name)
            record.report = read_report(report)
            self._judge_report(record)
            self._refresh(name)

    def report_deleted(self, report: ConfigMap) -> None:
        """A node's report is gone: its annotation alone counts, if it has one."""
        name = node_name(report.name)
        if name is not None:
            record = self._record(name)
            record.report, record.stale = NO_REPORT, None
            self._tidy(name)

    def health_applied(self, config_map: ConfigMap) -> None:
        """What a node's agent says of it is new or has changed; ConfigMaps that are none are ignored."""
        name = node_of_health(config_map.name)
        if name is not None:
            self._record(name).vitality = read_node_health(config_map)
            self._refresh(name)

    def health_deleted(self, config_map: ConfigMap) -> None:
        """A node's agent says nothing of it any more."""
        name = node_of_health(config_map.name)
        if name is not None:
            self._record(name).vitality = Vitality.HEALTHY
            self._tidy(name)

    def age_reports(self) -> list[str]:
        """Stop believing reports that have grown too old; the nodes they are of. To be called now and then."""
        now_s = self._now_s()
        aged: list[str] = []
        while self._ageing and self._ageing[0][0] < now_s:
            due_s, name = heapq.heappop(self._ageing)
            if self._due.get(name) != due_s:
                continue  # an earlier one has taken its place
            del self._due[name]
            record = self._records.get(name)
            if record is not None and record.stale is None and record.updated_s is not None:
                self._judge_report(record)
                if record.stale is not None:
                    self._refresh(record.name)
                    aged.append(record.name)
        return aged

    def _judge_report(self, record: NodeRecord) -> None:
        record.stale = None
        if record.updated_s is None:
            return
        record.stale = judge_freshness(record.name, record.updated_s, self._now_s(), self._max_report_age_s)
        expires_s = record.updated_s + self._max_report_age_s
        # One entry a node is enough: where its report was renewed meanwhile, it is entered again when its turn comes.
        # It may have been renewed with an earlier time, by a clock that has been put right.
        if record.stale is None and expires_s < self._due.get(record.name, math.inf):
            heapq.heappush(self._ageing, (expires_s, record.name))
            self._due[record.name] = expires_s

    def pod_applied(self, pod: Pod) -> None:
        """A pod is new or has changed."""
        old = self._pods.get(pod.uid)
        self._pods[pod.uid] = pod
        self._gone.pop(pod.uid, None)
        self._deserted(self.jobs.pod_applied(pod))
        self._peers.pod_changed(pod.uid)
        if old is not None and old.spec.node_name != pod.spec.node_name:
            self._unhold(old)
        holding = read_holding(pod) if pod.is_live and pod.spec.node_name else None
        if holding is not None:
            if self.previous is not None and (old is None or not old.spec.node_name):
                job = self.jobs.job_of(pod)
                self.previous.remember(job.key, job.rank_of(pod), pod.spec.node_name, self._now_s())
            self._record(pod.spec.node_name).holdings[pod.uid] = holding
            self._refresh(pod.spec.node_name)
        else:
            self._unhold(pod)
        # Only now, so that the chips are never free in between.
        if pod.spec.node_name:
            self._ledger.release(pod.uid)
        elif not pod.is_live:
            self._ledger.vacate(pod.uid)

    def pod_deleted(self, pod: Pod) -> None:
        """A pod is gone, and its containers with it."""
        self._pods.pop(pod.uid, None)
        self._gone[pod.uid] = None
        if len(self._gone) > REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]
        self._unhold(pod)
        self._ledger.vacate(pod.uid)
        self._deserted(self.jobs.pod_deleted(pod))
        self._peers.pod_changed(pod.uid)

    def _deserted(self, job: JobKey | None) -> None:
        if job is not None:
            # Nobody is left to take the seats of its plan.
            self._ledger.drop_plan(job.plan)

    def _unhold(self, pod: Pod) -> None:
        record = self._records.get(pod.spec.node_name)
        if record is not None and record.holdings.pop(pod.uid, None) is not None:
            self._tidy(record.name)

    def _identified(self, record: NodeRecord, product: Product | None) -> None:
        old, record.product = record.product, product
        if old is product:
            return
        self.index.version += 1  # a job goes by what its pods are on, even where nobody else can be placed
        self.pools.forget()
        if product is not None:
            self._products[product] += 1
        if old is not None:
            self._products[old] -= 1
            if not self._products[old]:
                del self._products[old]
        self._peers.product_changed(record.name)

    def _record(self, name: str) -> NodeRecord:
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = NodeRecord(name, unknown_node(name))
        return record

    def _reserved(self, name: str, uids: Iterable[str]) -> None:
        for uid in uids:
            self._peers.pod_changed(uid)
        record = self._records.get(name)
        if record is not None:
            self._offer(record)

    def _refresh(self, name: str) -> None:
        record = self._records.get(name)
        if record is None:
            return
        record.reread()
        self._identified(record, record.identify())
        self._offer(record)

    def _offer(self, record: NodeRecord) -> None:
        self.changes.note(record.name)
        offer = assess(record, self._ledger.on(record.name))
        if offer != record.offer:
            record.offer = offer
            self.index.put(record.name, offer)

    def _tidy(self, name: str) -> None:
        # A node of which nothing is left is forgotten; otherwise the names of a lively cluster would pile up.
        record = self._records[name]
        known = not isinstance(record.server, Refusal) or record.server.reason != "UnknownNode"
        reported = record.report is not NO_REPORT or record.vitality is not Vitality.HEALTHY
        if known or record.holdings or reported:
            self._refresh(name)
        else:
            del self._records[name]
            self.index.drop(name)
            self.changes.note(name)
