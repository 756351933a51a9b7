"""Who holds which chip of which node, and how it is: the allocator's own view of a cluster, as plain values."""

from dataclasses import dataclass

from msgspec import structs

from allocator.settings import Settings
from allocator.state.node import NodeRecord, Server, read_server
from allocator.state.report import NO_REPORT
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_name, chip_set
from ascend.deviceinfo import NAMESPACE, DeviceReport, decode_report, node_name
from ascend.errors import InvalidReport, Refusal
from ascend.kube.objects import Condition, Node
from ascend.products import Family
from npuctl.snapshot import Allocation, Snapshot

_GROUPS = {
    Family.RINGS: "ring",
    Family.PAIRED_RINGS: "ring",
    Family.DIES: "card",
    Family.MESHES: "mesh",
    Family.POOL: "",
}


@dataclass(frozen=True, slots=True)
class ChipView:
    """A chip.

    Attributes:
        name: on the wire.
        ring: the number of the group of chips that it is linked with.
        healthy: it may be given to pods.
        holders: the pods (``namespace/name``) that hold it.
        health: ``healthy``, ``unhealthy``, ``recovering`` (being reset), ``separated`` (taken out),
            ``separating`` (left to the pod that holds it) or ``network-unhealthy`` (no good for jobs of several pods).
        faults: the codes of its faults.
    """

    name: str
    ring: int
    healthy: bool
    holders: tuple[str, ...]
    health: str = "healthy"
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node.

    Attributes:
        node: its name.
        product: what kind of server it is.
        chips: by number.
        reason: why it can't be used; None where it can.
        message: the same as a sentence.
        group: what a group of its linked chips is called: ``ring``, ``mesh`` or ``card``; empty where chips are alike.
    """

    node: str
    product: str
    chips: tuple[ChipView, ...]
    reason: str | None
    message: str | None
    group: str = ""


def node_views(snapshot: Snapshot, settings: Settings, now_ns: int) -> list[NodeView]:
    """The NPU nodes of a cluster by name, read by the same code the allocator decides with.

    Args:
        snapshot: the objects.
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
    """
    cluster = Allocation.of(snapshot, settings, lambda: now_ns / 1e9).cluster
    reports = _reports(snapshot)
    views = [_view(record, reports.get(name)) for name, record in sorted(cluster.nodes.items())]
    return [view for view in views if view.reason not in {"NotAnNpuNode", "UnknownNode"}]


def _reports(snapshot: Snapshot) -> dict[str, DeviceReport]:
    reports = {}
    for each in snapshot.config_maps:
        name = node_name(each.name)
        if name is not None and each.metadata.namespace == NAMESPACE:
            try:
                reports[name] = decode_report(each.data)
            except InvalidReport:
                continue  # the node's record says what is wrong with it
    return reports


def _in_use(node: Node) -> Node:
    """The node as if it were in use: what chips it has, it has also while it is not."""
    status = structs.replace(
        node.status,
        conditions=[Condition("Ready", "True")],
        allocatable=node.status.allocatable | {RESOURCE: "1"},
        capacity={},
    )
    return structs.replace(node, spec=structs.replace(node.spec, unschedulable=False), status=status)


def _view(record: NodeRecord, report: DeviceReport | None) -> NodeView:
    offer = record.offer
    reason, message = (offer.reason, offer.message) if isinstance(offer, Refusal) else (None, None)
    server = None if record.node is None else read_server(_in_use(record.node), record.report, record.held)
    if not isinstance(server, Server):
        return NodeView(record.name, "", (), reason, message)
    told = NO_REPORT if isinstance(record.report, Refusal) else record.report
    barred = told.unhealthy | told.pre_separate
    chips = []
    for chip_id in chip_ids(server.reported):
        chip, name = chip_set((chip_id,)), chip_name(chip_id)
        ring = next(number for number, ring in enumerate(server.product.rings) if ring & chip)
        holders = tuple(sorted(each.pod for each in record.holdings.values() if each.chips & chip))
        health, faults = _health(chip, report, told.pre_separate), _faults(name, report)
        chips.append(ChipView(name, ring, not barred & chip, holders, health, faults))
    group = _GROUPS[server.product.family]
    return NodeView(record.name, server.product.name, tuple(chips), reason, message, group)


def _health(chip: ChipSet, report: DeviceReport | None, separating: ChipSet) -> str:
    if report is None:
        return "healthy"
    worst_first = {
        "separated": report.manually_separated,
        "recovering": report.recovering,
        "unhealthy": report.unhealthy,
        "separating": separating,
        "network-unhealthy": report.network_unhealthy,
    }
    return next((health for health, chips in worst_first.items() if chips & chip), "healthy")


def _faults(name: str, report: DeviceReport | None) -> tuple[str, ...]:
    codes = (fault.fault_code.split(",") for fault in report.faults if fault.npu_name == name) if report else ()
    return tuple(code for some in codes for code in some if code)
