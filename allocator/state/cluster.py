"""The state of the cluster, kept current object by object, each in constant time."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from allocator.rules.job import JobKey
from allocator.rules.job_settings import with_settings
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import Fit, judge
from allocator.state.changes import Changes
from allocator.state.holding import Holding, read_holding
from allocator.state.hyper_nodes import HYPER_NODE, HyperNodes
from allocator.state.index import NodeIndex
from allocator.state.jobs import Jobs
from allocator.state.ledger import Ledger
from allocator.state.location import NOWHERE, Location, read_location
from allocator.state.node import (
    NodeRecord,
    Offer,
    has_same_infos,
    ignored_devices,
    read_by_schedulers,
    read_server,
    unknown_node,
)
from allocator.state.node_labels import NodeLabels, NodeMarks
from allocator.state.node_reports import NodeReports, ReportAges
from allocator.state.offers import assess
from allocator.state.plain_pods import PlainPods, is_plain
from allocator.state.previous_nodes import BlockRecord, FaultyNodes, PreviousNodes, RankSpot
from allocator.state.report import NO_REPORT, NodeHealth
from allocator.state.reservation import Reservation
from allocator.state.swaps import after_change, after_end, after_report, without_partner
from allocator.state.switches import Switches, asks_for_switches, read_state
from allocator.state.unexplained import UnexplainedChips
from allocator.state.view import AS_IT_IS, WITHOUT_PROMISES, IndexView, Without
from allocator.state.waiting import PodFollowers, WaitingPods
from ascend.annotations import read_block
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.kube.objects import KubeObject, Node, Pod
from ascend.reasons import Reason
from ascend.takes import Take
from ascend.turn import Steps

_MOST_VIEWS = 64
"""The most views of the index that are kept: each may have the names of all nodes."""

REMEMBERED_GONE = 10_000
"""The number of deleted pods remembered: more than schedulers may still have in their queues."""


class Cluster:
    """Nodes, their reports and the pods on them, minus the ledger's reservations.

    It also ends reservations: a pod that is seen bound holds its chips itself, a finished or deleted pod needs none.

    Args:
        ledger: the reservations.
        clock: the clock for the ages of reports and of what ``previous`` remembers, in seconds.
        max_report_age_s: the greatest age of a node's report.
        reported_s: when a report was written that is seen for the first time (``ReportAges``); now if not given.
        previous: remembers the nodes of pods for their successors; None to disable this.
        ignored: called with a node and the names in its annotation that are neither chips nor vNPUs, when these change.

    Attributes:
        nodes: every node, by name.
        pods: every pod except the plain ones, by uid.
        nominated: called with a pod after it was nominated for a node.
        reports: what is reported of the nodes.
        openings: how often nodes may have become eligible for reasons that only schedulers know: a pod has come to a
            node, has ended there or has other labels; a node was added or deleted, has changed in what schedulers read,
            or has more healthy chips.
    """

    def __init__(
        self,
        ledger: Ledger,
        *,
        clock: Callable[[], float] = lambda: 0.0,
        max_report_age_s: float = math.inf,
        reported_s: Callable[[str, int], float] | None = None,
        previous: PreviousNodes | None = None,
        ignored: Callable[[str, tuple[str, ...]], None] | None = None,
    ) -> None:
        self.previous = previous
        self.openings = 0
        self.nominated: Callable[[Pod], None] = lambda _pod: None
        self._ledger = ledger
        self._clock = clock
        self._ignored = ignored
        self._records: dict[str, NodeRecord] = {}
        self._pods: dict[str, Pod] = {}
        self.nodes: Mapping[str, NodeRecord] = self._records
        self.pods: Mapping[str, Pod] = self._pods
        self._gone: dict[str, None] = {}
        self.plain = PlainPods(self._opened)
        self.index = NodeIndex()
        self.labels = NodeLabels(self._records)
        self.changes = Changes()
        self.jobs = Jobs()
        self.blocks = BlockRecord(lambda job: job in self.jobs.by_key)
        self.switches = Switches(
            self.jobs.by_key,
            lambda node: self.index.topology.location(node).spot,
            ledger,
            self.blocks,
            changed=self._switches_changed,
        )
        self.hyper_nodes = HyperNodes(self.labels, changed=self._hyper_nodes_changed)
        self.faulty_nodes = FaultyNodes()
        self.waiting = WaitingPods()
        self.followers = PodFollowers()
        self.reports = NodeReports(
            self._records,
            ReportAges(clock, max_report_age_s, reported_s),
            record=self._record,
            changed=self._refresh,
            removed=self._drop_if_empty,
        )
        self._unexplained = UnexplainedChips(clock)
        self._held_deleted: set[str] = set()
        self._put_off: dict[str, None] | None = None
        # The views of the index in one state.
        self._views: dict[Without, NodeIndex] = {}
        self._views_of = -1
        ledger.subscribe(self._reserved)

    def begin(self) -> None:
        """Put off what nodes have left until ``settle``: the first lists change each node several times."""
        self._put_off = {}

    def settle(self) -> Steps[None]:
        """Read what was put off, node by node; until it has ended, the index lacks nodes."""
        while self._put_off:
            name, _ = self._put_off.popitem()
            self._read(name)
            yield
        self._put_off = None

    def hold_deleted(self, uid: str, node: str, holding: Holding) -> None:
        """Let a deleted pod keep its holding: the containers may still run.

        Args:
            uid: its uid.
            node: its node.
            holding: what it has.
        """
        self._held_deleted.add(uid)
        self._record(node).holdings.setdefault(uid, holding)
        self._refresh(node)

    def close_unexplained(self) -> dict[str, ChipSet]:
        """Give no more of chips that are in use by a report, while no pod is known to have something of them.

        Call it periodically; it returns the chips that are closed now, by node.
        """
        closed: dict[str, ChipSet] = {}
        for name in self._unexplained.due():
            record = self._records.get(name)
            if record is not None:
                before = record.closed
                self._unexplained.note(record)
                if record.closed != before:
                    self._refresh(name)
                    closed[name] = record.closed & ~before
        return closed

    def release_deleted(self, uid: str, node: str) -> None:
        """Free the chips of a deleted pod again."""
        self._held_deleted.discard(uid)
        record = self._records.get(node)
        if record is not None and uid not in self._pods:
            self._opened()
            self._end(record, uid)

    def suits(self, held: Reservation, request: ChipRequest) -> bool:
        """Whether reserved chips still suit a request."""
        record = self._records.get(held.node)
        has_moved = held.part is not None and self.index.topology.has_left(held.node, *held.part.place)
        if record is None or not request.is_for(held.take) or has_moved:
            return False
        left = self.offer_of(record, WITHOUT_PROMISES._replace(pods=(held.uid,)))
        return isinstance(left, Vacancy) and isinstance(judge(left, request), Fit) and left.has(held.take, request)

    def offer_of(
        self, record: NodeRecord, without: Without = AS_IT_IS, beside: Mapping[str, Take] = MappingProxyType({})
    ) -> Offer:
        """What a node would have left, or why it can't be used; changes nothing.

        Args:
            record: the node; it may differ from the one that is known.
            without: what does not count.
            beside: what other pods would take, by uid.
        """
        gone, reserved = without.pods, self._ledger.on(record.name)
        if beside:
            reserved = {**reserved, **beside}
        if not reserved.keys().isdisjoint(gone):
            reserved = {uid: take for uid, take in reserved.items() if uid not in gone}
        if not record.holdings.keys().isdisjoint(gone):
            staying = {uid: holding for uid, holding in record.holdings.items() if uid not in gone}
            record = replace(record, holdings=staying)
        return assess(record, reserved, self._ledger.promises.on(record.name, without.owners, without.priority))

    def view(self, without: Without) -> NodeIndex:
        """The index as it would be; changes nothing. It is valid until anything changes.

        Args:
            without: what does not count: of pods only what is reserved for them.
        """
        ledger, promises, records = self._ledger, self._ledger.promises, self._records
        seats = [held for uid in without.pods if (held := ledger.get(uid)) is not None]
        ignored = promises.ignored(without.owners, without.priority) if promises else ()
        if not seats and not ignored:
            return self.index
        if self._views_of != self.index.version or len(self._views) >= _MOST_VIEWS:
            self._views_of, self._views = self.index.version, {}
        key = Without(frozenset(seat.uid for seat in seats), frozenset(promise.owner for promise in ignored))
        if (view := self._views.get(key)) is None:
            names = {seat.node for seat in seats}.union(*(promise.chips for promise in ignored))
            offers = {name: self.offer_of(records[name], key) for name in names if name in self.index.entries}
            others = {name: offer for name, offer in offers.items() if offer != records[name].offer}
            view = self._views[key] = IndexView(self.index, others) if others else self.index
        return view

    def is_gone(self, uid: str) -> bool:
        """Whether a pod was deleted recently; a pod that was never seen may be new."""
        return uid in self._gone

    def node_applied(self, node: Node) -> None:
        """Add or update a node."""
        record = self._record(node.name)
        before = NodeMarks.of(record)
        self._note_ignored(record, node)
        self.openings += record.node is None or read_by_schedulers(record.node) != read_by_schedulers(node)
        record.node, record.server = node, read_server(node)
        self._marks_changed(record, before)
        self._refresh(node.name)

    def _note_ignored(self, record: NodeRecord, node: Node) -> None:
        if record.node is not None and has_same_infos(record.node, node):
            return
        ignored = ignored_devices(node)
        if ignored and ignored != record.ignored and self._ignored is not None:
            self._ignored(node.name, ignored)
        record.ignored = ignored

    def node_deleted(self, node: Node) -> None:
        """Remove a node; what its pods hold is kept, in case the node is created again."""
        record = self._record(node.name)
        before = NodeMarks.of(record)
        record.node, record.server, record.product = None, unknown_node(node.name), None
        self._opened()  # for pods that are to be spread evenly
        self._marks_changed(record, before)
        self._drop_if_empty(node.name)

    def pod_applied(self, pod: Pod) -> None:
        """Add or update a pod."""
        old = self._pods.get(pod.uid)
        if is_plain(pod):
            self._plain_applied(pod)
            if old is not None:
                self._remove(old)  # its labels or its owner have changed
            return
        self.plain.discard(pod.uid)
        self._pods[pod.uid] = pod
        self._gone.pop(pod.uid, None)
        self._drop_plan(self.jobs.pod_applied(pod))
        self._note_change(old, pod)
        if old is not None and old.spec.node_name != pod.spec.node_name:
            self._unhold(old)
        holding = read_holding(pod) if pod.is_live and pod.spec.node_name else None
        if holding is not None:
            if old is None or not old.spec.node_name:
                self._note_arrival(pod)
                self._remember(pod)
            self._hold(pod, holding)
        else:
            self._unhold(pod)
        # Last, so that the chips are never free in between.
        if pod.spec.node_name:
            self._ledger.release(pod.uid)
        elif not pod.is_live:
            self._ledger.vacate(pod.uid)
        self._note_placed(pod.uid)
        self.waiting.put(pod)
        if self._ledger.promises:
            self._ledger.promises.settle(pod, self.jobs.job_of(pod))
        nominated = pod.status.nominated_node_name
        if nominated and (old is None or old.status.nominated_node_name != nominated):
            self.nominated(pod)
        self.followers.on_pod(pod)

    def _plain_applied(self, pod: Pod) -> None:
        self.plain.put(pod)
        self.openings += not pod.is_live
        if pod.status.phase == "Pending":  # its kubelet has not started it yet
            self._note_arrival(pod)

    def _note_arrival(self, pod: Pod) -> None:
        """Count the pods that come to a node; the reports of a plain pod that does not start may count as well."""
        record = self._records.get(pod.spec.node_name)
        if record is not None:
            record.arrivals += 1
            self._opened()  # for pods with an affinity to it

    def _remember(self, pod: Pod) -> None:
        """Record for its successor where a pod is that was bound."""
        block, job = read_block(pod.metadata.annotations), self.jobs.job_of(pod)
        if block is None and asks_for_switches(with_settings(pod, job.settings)):
            block = 0  # the whole job returns to its servers
        if self.previous is None and block is None:
            return
        now_s = self._clock()
        rank = job.rank_of(pod)
        if self.previous is not None:
            self.previous.remember(job.key, rank, pod.spec.node_name, now_s)
        owner = pod.metadata.controller
        if block is not None and owner is not None:  # nobody makes other pods anew
            spot = RankSpot(pod.spec.node_name, block, owner.uid, read_state(pod))
            self.blocks.remember(job.key, rank, spot, now_s)

    def pod_deleted(self, pod: Pod) -> None:
        """Remove a pod; its containers have ended."""
        if self.plain.discard(pod.uid):
            self.openings += bool(pod.spec.node_name)
            return
        self._gone[pod.uid] = None
        if len(self._gone) > REMEMBERED_GONE:
            del self._gone[next(iter(self._gone))]
        self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        self.waiting.discard(pod.uid)
        self._note_change(self._pods.pop(pod.uid, None))
        self._unhold(pod)
        self._ledger.vacate(pod.uid)
        self._ledger.promises.drop(pod.uid)
        self._drop_plan(self.jobs.pod_deleted(pod))
        self.followers.on_deletion(pod)

    def _opened(self) -> None:
        self.openings += 1

    def _note_change(self, old: Pod | None, new: Pod | None = None) -> None:
        """Count a pod that has ended, left its node or got new labels, whether the pod requests chips or not."""
        where = _occupied(old) if old is not None else ""
        if old is not None and where:
            is_same = new is not None and where == _occupied(new) and old.metadata.labels == new.metadata.labels
            self.openings += not is_same

    def _drop_plan(self, job: JobKey | None) -> None:
        if job is not None:
            if not self._ledger.plans.of(job.plan).is_ahead:  # else it is for pods that replace these
                self._ledger.drop_plan(job.plan)
            self._ledger.promises.drop(job.plan)

    def _hold(self, pod: Pod, holding: Holding) -> None:
        record = self._record(pod.spec.node_name)
        before = record.holdings.get(pod.uid)
        record.holdings[pod.uid] = holding
        record.partners = after_change(record.partners, pod.uid, record.holdings, before)
        if holding.is_reported or (before is not None and holding.is_claimed and not before.is_claimed):
            record.swaps = after_report(record.swaps, pod.uid)
        self._refresh(record.name)

    def _unhold(self, pod: Pod) -> None:
        record = self._records.get(pod.spec.node_name)
        if record is not None and pod.uid not in self._held_deleted:
            self._end(record, pod.uid)

    def _end(self, record: NodeRecord, uid: str) -> None:
        """Take over that a pod holds nothing of a node any more."""
        holding = record.holdings.pop(uid, None)
        if holding is not None:
            record.swaps = after_end(record.swaps, record.partners, uid, holding, record.holdings)
            record.partners = without_partner(record.partners, uid)
            self._drop_if_empty(record.name)

    def _marks_changed(self, record: NodeRecord, before: NodeMarks) -> None:
        now = NodeMarks.of(record)
        if now != before:
            self.labels.on_change(record.name, before, now)
            self.index.version += 1  # requests and gangs depend on labels and products as well

    def _note_placed(self, uid: str) -> None:
        pod = self._pods.get(uid)
        if pod is not None:
            held = self._ledger.get(uid)
            node = pod.spec.node_name or (held.node if held is not None else "")
            self.jobs.set_placed(uid, node)

    def on_unreadable(self, kind: str, obj: KubeObject, why: str) -> None:
        """Record why an object of an optional kind can't be read; empty once it is gone."""
        if kind == HYPER_NODE:
            self.hyper_nodes.on_unreadable(obj, why)
        else:
            self.jobs.on_unreadable(kind, obj, why)

    def on_unserved(self, kind: str, informer: str) -> None:
        """Record that the kind of an informer is no longer served."""
        if kind == HYPER_NODE:
            self.hyper_nodes.clear()
        self.jobs.on_unserved(kind, informer)

    def _hyper_nodes_changed(self) -> None:
        self.index.version += 1

    def _switches_changed(self) -> None:
        if self._put_off is not None:
            self._put_off.update(dict.fromkeys(self._records))
        for record in self._records.values() if self._put_off is None else ():
            self._locate(record.name, read_location(record.node, record.report, self.switches.find(record.node)))
            self.changes.note(record.name)
        self.index.version += 1  # jobs may have waited for any table

    def _record(self, name: str) -> NodeRecord:
        record = self._records.get(name)
        if record is None:
            record = self._records[name] = NodeRecord(name, unknown_node(name))
        return record

    def _reserved(self, name: str, uids: Iterable[str]) -> None:
        self._views.clear()
        for uid in uids:
            self._note_placed(uid)
        record = self._records.get(name)
        if record is not None:
            self._offer(record)

    def _refresh(self, name: str) -> None:
        if self._put_off is None:
            self._read(name)
        else:
            self._put_off[name] = None

    def _read(self, name: str) -> None:
        record = self._records.get(name)
        if record is None:
            return
        healthy, idle, record.idle = _healthy(record.offer), record.idle, None
        record.reread()
        self._unexplained.note(record)
        product, before = record.identify(), NodeMarks.of(record)
        if product is not before.product:
            record.product = product
            self._marks_changed(record, before)
        self._locate(record.name, read_location(record.node, record.report, self.switches.find(record.node)))
        self._offer(record)
        if record.idle != idle:
            self._views.clear()  # what a node has left may be the same all the same
        self.openings += _healthy(record.offer) > healthy

    def _locate(self, name: str, location: Location) -> None:
        if location.switch != self.index.topology.location(name).switch:
            self.switches.on_move()
        self.index.locate(name, location)

    def _offer(self, record: NodeRecord) -> None:
        self.changes.note(record.name)
        offer = assess(record, self._ledger.on(record.name), self._ledger.promises.on(record.name))
        if offer != record.offer:
            record.offer = offer
            self.index.put(record.name, offer)

    def _drop_if_empty(self, name: str) -> None:
        # A record without node, pods and reports is dropped; otherwise names would accumulate.
        record = self._records[name]
        known = not isinstance(record.server, Refusal) or record.server.reason is not Reason.UNKNOWN_NODE
        reported = record.report is not NO_REPORT or record.health is not NodeHealth.HEALTHY
        if known or record.holdings or reported:
            self._refresh(name)
        else:
            del self._records[name]
            self._unexplained.forget(name)
            self.index.drop(name)
            self._locate(name, NOWHERE)
            self.changes.note(name)


def _healthy(offer: Offer | None) -> int:
    return offer.healthy if isinstance(offer, Vacancy) else 0


def _occupied(pod: Pod) -> str:
    """The name of the node whose CPU and host ports a pod keeps from others; empty if it is not bound, or has ended."""
    return pod.spec.node_name if pod.is_live else ""
