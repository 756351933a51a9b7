"""What one node offers, read from its object, its report and the pods on it: a vacancy, or why it can't be used.

Free = reported - unhealthy - left to their pods - held by live pods - reserved (spec/scheduling.md §2.2). Whatever
can't be read with certainty makes the node unusable rather than its chips free: a chip must never be given twice.
"""

import functools
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from allocator.rules.identity import identify
from allocator.rules.request import counted_chips
from allocator.rules.vacancy import Vacancy
from allocator.state.report import HEALTH_ANNOTATION, NO_REPORT, NodeHealth, NodeReport, read_health
from ascend.annotations import (
    BASE_DEVICE_INFOS,
    CLAIMED,
    held_chips,
    read_base_device_infos,
    read_grant,
    read_predicate_time,
)
from ascend.chips import RESOURCE, ChipSet, chip_set
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Node, Pod
from ascend.products import Product
from ascend.reasons import Reason


class Server(msgspec.Struct, frozen=True):
    """What a node's object says of its chips.

    Attributes:
        product: the kind of server.
        reported: the chips it has.
        allocatable: how many the kubelet offers.
        health: what its annotation says of the node as a whole.
    """

    product: Product
    reported: ChipSet
    allocatable: int
    health: NodeHealth = NodeHealth.HEALTHY


class Holding(msgspec.Struct, frozen=True):
    """What a live pod bound to a node takes of it.

    Attributes:
        pod: ``namespace/name``.
        chips: the chips it holds.
        counted: how many the kubelet counts for it.
        unreadable: why its list of chips can't be read, a sentence; None where it can.
    """

    pod: str
    chips: ChipSet
    counted: int
    unreadable: str | None = None


@dataclass(slots=True)
class NodeRecord:
    """All that is known of a node; made by whichever object of it is seen first.

    Attributes:
        name: the node's name.
        server: read from the Node, with report and pods where it names no chips; a refusal where the object is missing
            or of no use.
        report: what its device plugin says; NO_REPORT where there is none, a refusal where it can't be trusted.
        health: what its node agent (NodeD) says, a refusal where it can't be read.
        stale: why the report is no longer believed; None where it is.
        holdings: by pod uid.
        offer: what follows from all of it and from the ledger.
        node: the object as last seen; None where there is none.
        product: the kind of server it is, also where it can't be used now; None where that can't be told.
    """

    name: str
    server: "Server | Refusal"
    report: "NodeReport | Refusal" = NO_REPORT
    health: "NodeHealth | Refusal" = NodeHealth.HEALTHY
    stale: "Refusal | None" = None
    holdings: dict[str, Holding] = field(default_factory=dict)
    offer: "Offer | None" = None
    node: "Node | None" = None
    product: Product | None = None

    @property
    def unhealthy(self) -> ChipSet | Refusal:
        """The chips its report forbids; a refusal where the report can't be trusted."""
        return self.report if isinstance(self.report, Refusal) else self.report.unhealthy

    @property
    def held(self) -> ChipSet:
        """The chips of the pods on it."""
        return functools.reduce(operator.or_, (each.chips for each in self.holdings.values()), 0)

    @property
    def updated_s(self) -> int | None:
        """When its report was made, Unix seconds; None where there is none that can be read."""
        return None if isinstance(self.report, Refusal) else self.report.updated_s

    def reread(self) -> None:
        """Read a Node again that names no chips: its report and its pods do, and may have changed."""
        if self.node is not None and BASE_DEVICE_INFOS not in self.node.metadata.annotations:
            self.server = read_server(self.node, self.report, self.held)

    def identify(self) -> Product | None:
        """Read what kind of server it is."""
        if isinstance(self.server, Server):
            return self.server.product
        return _read_product(self.node, self.report, self.held) if self.node is not None else None


Offer: TypeAlias = Vacancy | Refusal


def unknown_node(name: str) -> Refusal:
    """The refusal of a node that has no object."""
    return Refusal(Reason.UNKNOWN_NODE, f"node {name} is not known")


def read_server(node: Node, report: NodeReport | Refusal = NO_REPORT, held: ChipSet = 0) -> Server | Refusal:
    """What a Node says of its chips, or why no pod that asks for chips may be placed there.

    Args:
        node: the node.
        report: what its device plugin says of them; counts where the Node names none.
        held: the chips of the pods on it; likewise.
    """
    try:
        reported = _read_chips(node, report, held)
        product = identify(node.name, node.metadata.labels, node.metadata.annotations, reported)
        health = read_health(node.metadata.annotations.get(HEALTH_ANNOTATION, ""))
        return Server(product, reported, _read_allocatable(node), health)
    except Refusal as refusal:
        return refusal.with_traceback(None)  # it is kept


def _read_product(node: Node, report: NodeReport | Refusal, held: ChipSet) -> Product | None:
    try:
        reported = _read_chips(node, report, held)
        return identify(node.name, node.metadata.labels, node.metadata.annotations, reported)
    except Refusal:
        return None


def _read_chips(node: Node, report: NodeReport | Refusal, held: ChipSet) -> ChipSet:
    text = node.metadata.annotations.get(BASE_DEVICE_INFOS)
    if text is None:
        return _chips_named_elsewhere(node, report, held)
    try:
        return chip_set(read_base_device_infos(text))
    except InvalidValue as error:
        raise Refusal(Reason.INVALID_REPORT, f"node {node.name}: {error}") from None


def _chips_named_elsewhere(node: Node, report: NodeReport | Refusal, held: ChipSet) -> ChipSet:
    if report is NO_REPORT:
        raise Refusal(
            Reason.NOT_AN_NPU_NODE, f"node {node.name} has neither annotation {BASE_DEVICE_INFOS} nor device report"
        )
    if isinstance(report, Refusal):
        raise report
    chips = report.named | held
    known = max(node.capacity_chips or 0, node.allocatable_chips or 0)
    if chips.bit_count() < known:
        # The report leaves out chips in use, and which server it is depends on all of them.
        sentence = f"its report and its pods name {chips.bit_count()} chips, while the kubelet knows {known}"
        raise Refusal(
            Reason.NO_BASE_DEVICE_INFOS, f"node {node.name} has no annotation {BASE_DEVICE_INFOS}: {sentence}"
        )
    return chips


def _read_allocatable(node: Node) -> int:
    if not node.is_ready:
        raise Refusal(Reason.NODE_NOT_READY, f"node {node.name} is not Ready")
    if node.spec.unschedulable:
        raise Refusal(Reason.NODE_CORDONED, f"node {node.name} is cordoned")
    if not node.allocatable_chips:
        # The kubelet would start the pod without any chip while the resource is not registered.
        raise Refusal(Reason.RESOURCE_NOT_OFFERED, f"the kubelet of node {node.name} offers no {RESOURCE} now")
    capacity = node.capacity_chips
    if capacity is not None and node.allocatable_chips > capacity:
        offered = f"allocatable {node.allocatable_chips} of {RESOURCE}, capacity {capacity}"
        raise Refusal(Reason.INCONSISTENT_CAPACITY, f"the kubelet of node {node.name} contradicts itself: {offered}")
    return node.allocatable_chips


def judge_freshness(node: str, updated_s: int, now_s: float, max_age_s: float) -> Refusal | None:
    """Why a report is not to be believed any more; None where it is.

    Args:
        node: the node's name.
        updated_s: when the report was made, Unix seconds; 0: its plugin has said that it ends.
        now_s: the present, Unix seconds.
        max_age_s: how old it may be; a plugin makes it anew every five minutes (spec/node-agent.md §0.6).
    """
    if updated_s == 0:
        return Refusal(
            Reason.STALE_REPORT, f"the device plugin of node {node} has ended: nobody tells how its chips are"
        )
    if now_s - updated_s <= max_age_s:
        return None
    since = datetime.fromtimestamp(updated_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Refusal(Reason.STALE_REPORT, f"the report of node {node} is of {since}: its device plugin seems to be dead")


def read_holding(pod: Pod) -> Holding | None:
    """What a live bound pod takes of its node; None where it asks for no chips, since the kubelet gives it none.

    AscendReal counts, else the allocator's list (spec/node-agent.md §0.3). Until the device plugin has claimed the
    pod, AscendReal can only be its author's invention, so the allocator's list counts along with it.
    """
    counted = counted_chips(pod)
    if not counted:
        return None
    annotations = pod.metadata.annotations
    try:
        chips = held_chips(annotations)
        if read_predicate_time(annotations) != CLAIMED:
            grant = read_grant(annotations)
            chips |= grant.chip_set if grant is not None else 0
    except InvalidValue as error:
        return Holding(pod.key, 0, counted, f"pod {pod.key}: {error}")
    if not chips:
        sentence = f"pod {pod.key} was bound with {counted} chips, but no annotation says which"
        return Holding(pod.key, 0, counted, sentence)
    return Holding(pod.key, chips, counted)


def assess(record: NodeRecord, reserved: Mapping[str, ChipSet]) -> Offer:
    """What a node has left, or why it can't be used.

    Args:
        record: the node.
        reserved: chips by pod uid, as the ledger has them.
    """
    server, report = record.server, record.report
    if isinstance(server, Refusal):
        return server
    if isinstance(report, Refusal):
        return report
    if record.stale is not None:
        return record.stale
    health = _health(record, server, report)
    if isinstance(health, Refusal):
        return health
    unhealthy = report.unhealthy
    # Without a pod such a chip is unhealthy too, but the report says so a moment later than the pod is seen to end.
    taken, room = unhealthy | report.separating, server.allocatable
    for holding in record.holdings.values():
        if holding.unreadable is not None:
            return Refusal(
                Reason.UNREADABLE_POD, f"which chips of node {record.name} are free is unclear: {holding.unreadable}"
            )
        taken |= holding.chips
        room -= holding.counted
    for uid, chips in reserved.items():
        if uid not in record.holdings:
            taken |= chips
            room -= chips.bit_count()
    healthy = server.reported & ~unhealthy
    free = healthy & ~taken
    return Vacancy(
        server.product,
        healthy.bit_count(),
        free,
        # More room than chips makes no difference; cut off, fewer different vacancies come about.
        room=min(max(room, 0), server.product.chips),
        faulty=(server.reported & unhealthy).bit_count(),
        cut_off=free & report.network_unhealthy,
        sub_healthy=health is NodeHealth.SUB_HEALTHY,
    )


def _health(record: NodeRecord, server: Server, report: NodeReport) -> NodeHealth | Refusal:
    """How the node is as a whole: the worst that anybody says of it (spec/scheduling.md §1.3, §2.3)."""
    if isinstance(record.health, Refusal):
        return record.health
    worst = max(record.health, server.health, report.health)
    if worst is NodeHealth.UNHEALTHY:
        return Refusal(Reason.NODE_UNHEALTHY, f"node {record.name} is reported as unhealthy by {_blame(record, worst)}")
    if worst is NodeHealth.SEPARATING:
        return Refusal(
            Reason.NODE_SEPARATING,
            f"node {record.name} is to be taken out of use, according to {_blame(record, worst)}",
        )
    return worst


def _blame(record: NodeRecord, health: NodeHealth) -> str:
    if isinstance(record.server, Server) and record.server.health is health:
        return f"its annotation {HEALTH_ANNOTATION}"
    return "its node agent" if record.health is health else "its switches, in the device plugin's report"
