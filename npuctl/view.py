"""Who holds which chip of which node: the allocator's own view of a cluster, as plain values."""

from collections.abc import Iterable
from dataclasses import dataclass

from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord, Server
from ascend.chips import ChipSet, chip_ids, chip_name, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap, Node, Pod


@dataclass(frozen=True, slots=True)
class ChipView:
    """A chip: its name, its ring's number, its health, and the pods (``namespace/name``) that hold it."""

    name: str
    ring: int
    healthy: bool
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node: its product, its chips, and why it can't be used (reason and sentence), if it can't."""

    node: str
    product: str
    chips: tuple[ChipView, ...]
    reason: str | None
    message: str | None


def node_views(nodes: Iterable[Node], pods: Iterable[Pod], reports: Iterable[ConfigMap]) -> list[NodeView]:
    """The NPU nodes of a cluster by name, read by the same code the allocator decides with."""
    cluster = Cluster(Ledger(ttl_s=0.0, monotonic=lambda: 0.0))
    for node in nodes:
        cluster.node_applied(node)
    for report in reports:
        cluster.report_applied(report)
    for pod in pods:
        cluster.pod_applied(pod)
    views = [_view(record) for _, record in sorted(cluster.nodes.items())]
    return [view for view in views if view.reason not in {"NotAnNpuNode", "UnknownNode"}]


def _view(record: NodeRecord) -> NodeView:
    server, offer = record.server, record.offer
    reason, message = (offer.reason, offer.message) if isinstance(offer, Refusal) else (None, None)
    if not isinstance(server, Server):
        return NodeView(record.name, "", (), reason, message)
    unhealthy: ChipSet = record.unhealthy if isinstance(record.unhealthy, int) else 0
    chips = []
    for chip_id in chip_ids(server.reported):
        chip = chip_set((chip_id,))
        ring = next(number for number, ring in enumerate(server.product.rings) if ring & chip)
        holders = tuple(sorted(each.pod for each in record.holdings.values() if each.chips & chip))
        chips.append(ChipView(chip_name(chip_id), ring, not unhealthy & chip, holders))
    return NodeView(record.name, server.product.name, tuple(chips), reason, message)
