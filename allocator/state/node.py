"""The vacancy of a node, by its object, report and pods, or why the node can't be used.

Free = reported - unhealthy - PreSeparateNPU - held by live pods - reserved (docs/spec/scheduling.md#free-list). If
something can't be read with certainty, the node is unusable and its chips don't count as free: a chip must never be
assigned twice.
"""

import functools
import operator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import msgspec

from allocator.rules.vacancy import Vacancy
from allocator.state.holding import Holding
from allocator.state.report import HEALTH_ANNOTATION, NO_REPORT, NodeHealth, NodeReport, read_health
from allocator.state.swaps import Partners, Swaps
from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import RESOURCE, ChipSet
from ascend.cores import CHIP_MEMORY, SERVER_TYPE, read_kind
from ascend.errors import InvalidValue, Refusal
from ascend.grammar import count
from ascend.kube.objects import Node
from ascend.products import Product
from ascend.reasons import Reason
from ascend.rules.identity import chip_model, identify
from ascend.templates import RESOURCE_CORES, Divisible
from ascend.vnpus import Vnpu, suffix_of

_MOST_NAMED: Final = 3
"""Names of foreign devices, or of resources, in a sentence."""

_RESOURCES: Final = {RESOURCE, RESOURCE_CORES}
"""The resources of whole chips, as such and as AI cores."""


class Server(msgspec.Struct, frozen=True, gc=False):
    """The chips of a node according to its object.

    Attributes:
        product: the product of the server.
        reported: the chips that pods can get, healthy or not.
        allocatable: the number of allocatable chips.
        health: the health of the node as a whole, from its annotation.
        vnpus: its vNPUs, healthy or not.
        allocatable_vnpus: by size, the number of allocatable ones.
        kind: the kind of its chips, if they are cut while pods run; else None.
        allocatable_cores: the number of allocatable AI cores then.
        model: the model of its chips; empty if it is unknown.
    """

    product: Product
    reported: ChipSet
    allocatable: int
    health: NodeHealth = NodeHealth.HEALTHY
    vnpus: tuple[Vnpu, ...] = ()
    allocatable_vnpus: dict[str, int] = {}
    kind: Divisible | None = None
    allocatable_cores: int = 0
    model: str = ""


@dataclass(slots=True)
class NodeRecord:
    """All that is known about a node; created by the first object seen of it: Node, report, health or pod.

    Attributes:
        name: the node's name.
        server: read from the Node, and from report and pods if it names no chips; a refusal if the object is missing or
            the node is unusable.
        own_report: what its device plugin reports; NO_REPORT if there is no report, a refusal if it is invalid.
        report: the same, with what ClusterD says of the node.
        health: what its node agent (NodeD) reports; a refusal if that is invalid.
        seen: the UpdateTime of the last valid report, and when it was seen first, on the clock of the cluster.
        stale: why the report is too old; None if it is not.
        holdings: what each pod on it holds, by pod uid.
        swaps: the chips of pods that have ended, and that others on it may have.
        partners: which pods on it may have each other's chips.
        offer: what is left according to all of these and the ledger, or why the node can't be used.
        node: the object as last seen; None if there is none.
        product: its product, also while the node can't be used; None if it is unknown.
        ignored: the names in its annotation that are neither chips nor vNPUs.
        idle: what is left beside its pods, without the ledger; None if that has to be read again. Whatever changes the
            record sets it to None.
        room: the number of chips that the kubelet would admit beside its pods, if ``idle`` is a vacancy.
        unexplained: the chips that are in use by its report, and of which no pod is known to have got anything
            (``unexplained.py``).
        closed: those of them of which no pod gets anything.
        arrivals: how many pods were seen to come to it.
    """

    name: str
    server: "Server | Refusal"
    own_report: "NodeReport | Refusal" = NO_REPORT
    report: "NodeReport | Refusal" = NO_REPORT
    health: "NodeHealth | Refusal" = NodeHealth.HEALTHY
    seen: tuple[int, float] | None = None
    stale: "Refusal | None" = None
    holdings: dict[str, Holding] = field(default_factory=dict)
    swaps: Swaps = field(default_factory=dict)
    partners: Partners = field(default_factory=dict)
    offer: "Offer | None" = None
    node: "Node | None" = None
    product: Product | None = None
    ignored: tuple[str, ...] = ()
    unexplained: ChipSet = 0
    closed: ChipSet = 0
    arrivals: int = 0
    idle: "Offer | None" = field(default=None, init=False)
    room: int = field(default=0, init=False)

    @property
    def unhealthy(self) -> ChipSet | Refusal:
        """The chips that its report excludes; a refusal if the report is invalid."""
        return self.report if isinstance(self.report, Refusal) else self.report.unhealthy

    @property
    def held(self) -> ChipSet:
        """The chips of the pods on it."""
        return functools.reduce(operator.or_, (holding.chips for holding in self.holdings.values()), 0)

    @property
    def in_doubt(self) -> ChipSet:
        """The chips of ended pods that others on the node may have."""
        return functools.reduce(operator.or_, (kept.chips for kept in self.swaps.values()), 0)

    @property
    def disputed(self) -> int:
        """The number of chips held beyond the number that the kubelet counts for the node's pods."""
        if not any(holding.disputed for holding in self.holdings.values()):
            return 0
        return max(self.held.bit_count() - sum(holding.counted for holding in self.holdings.values()), 0)

    @property
    def updated_s(self) -> int | None:
        """When its report was written, Unix seconds; None if there is no valid report."""
        return None if isinstance(self.report, Refusal) else self.report.updated_s

    def reread(self) -> None:
        """Read the Node again if it names no chips: then report and pods count, which may have changed."""
        if self.node is not None and BASE_DEVICE_INFOS not in self.node.metadata.annotations:
            self.server = read_server(self.node, self.report, self.held)

    def identify(self) -> Product | None:
        """Read the product of the server."""
        if isinstance(self.server, Server):
            return self.server.product
        return _read_product(self.node, self.report, self.held) if self.node is not None else None


Offer: TypeAlias = Vacancy | Refusal


def unknown_node(name: str) -> Refusal:
    """The refusal of a node that has no object."""
    return Refusal(Reason.UNKNOWN_NODE, f"node {name} is not known")


def read_server(node: Node, report: NodeReport | Refusal = NO_REPORT, held: ChipSet = 0) -> Server | Refusal:
    """Read the chips of a Node; a refusal if no pod that requests chips may be placed there.

    Args:
        node: the node.
        report: what its device plugin reports; used if the Node names no chips.
        held: the chips of the pods on it; used if the Node names no chips.
    """
    try:
        reported, withheld, vnpus = _read_chips(node, report, held)
        product = identify(node.name, node.metadata.labels, node.metadata.annotations, reported | withheld)
        health = read_health(node.metadata.annotations.get(HEALTH_ANNOTATION, ""))
        sizes = node.allocatable_vnpus if vnpus else {}
        cores = node.allocatable_cores or 0
        kind = _read_kind(node) if cores else None
        chips = _read_allocatable(node, has_vnpus=bool(sizes) or kind is not None)
        model = chip_model(node.metadata.labels)
        return Server(product, reported, chips, health, vnpus, sizes, kind, cores, model)
    except Refusal as refusal:
        return refusal.without_frames()  # the refusal is stored


def _read_kind(node: Node) -> Divisible:
    kind = read_kind(node.metadata.labels)
    if kind is None:
        labels, keys = node.metadata.labels, (SERVER_TYPE, CHIP_MEMORY)
        if missing := [key for key in keys if key not in labels]:
            are = "label {} is" if len(missing) == 1 else "labels {} are"
            problem = f"the {are.format(' and '.join(missing))} missing"
        else:
            named = " and ".join(f"{key}={labels[key]}" for key in keys)
            problem = f"no chip that can be cut has the labels {named}"
        raise Refusal(Reason.CHIPS_NOT_DIVISIBLE, f"node {node.name} offers {RESOURCE_CORES}, but {problem}")
    if node.allocatable_chips:
        sentence = f"node {node.name} offers both {RESOURCE} and {RESOURCE_CORES}"
        raise Refusal(Reason.INCONSISTENT_CAPACITY, sentence)
    return kind


def _read_product(node: Node, report: NodeReport | Refusal, held: ChipSet) -> Product | None:
    try:
        reported, withheld, _ = _read_chips(node, report, held)
        return identify(node.name, node.metadata.labels, node.metadata.annotations, reported | withheld)
    except Refusal:
        return None


def has_same_infos(one: Node, other: Node) -> bool:
    """Whether two versions of a Node name the same chips."""
    named = one.metadata.annotations.get(BASE_DEVICE_INFOS)
    return named == other.metadata.annotations.get(BASE_DEVICE_INFOS)


def read_by_schedulers(node: Node) -> tuple[object, ...]:
    """What the filters of schedulers read of a Node."""
    return node.metadata.labels, node.spec, node.status.allocatable


def ignored_devices(node: Node) -> tuple[str, ...]:
    """The names in a Node's annotation that are neither chips nor vNPUs; none if it is missing or malformed."""
    try:
        return read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, "{}")).ignored
    except InvalidValue:
        return ()


def _read_chips(node: Node, report: NodeReport | Refusal, held: ChipSet) -> tuple[ChipSet, ChipSet, tuple[Vnpu, ...]]:
    """The chips that pods can get, the chips withheld, and the vNPUs cut out of these."""
    text = node.metadata.annotations.get(BASE_DEVICE_INFOS)
    if text is None:
        return _read_chips_without_annotation(node, report, held), 0, ()
    try:
        infos = read_base_device_infos(text)
    except InvalidValue as error:
        raise Refusal(Reason.INVALID_REPORT, f"node {node.name}: {error}") from None
    if infos.ignored and not infos.chips | infos.withheld:
        shown = ", ".join(infos.ignored[:_MOST_NAMED])
        raise Refusal(
            Reason.NOT_AN_NPU_NODE, f"node {node.name}: annotation {BASE_DEVICE_INFOS} names no Ascend910 chip: {shown}"
        )
    return infos.chips, infos.withheld, infos.vnpus


def _read_chips_without_annotation(node: Node, report: NodeReport | Refusal, held: ChipSet) -> ChipSet:
    if report is NO_REPORT:
        raise Refusal(
            Reason.NOT_AN_NPU_NODE, f"node {node.name} has neither annotation {BASE_DEVICE_INFOS} nor device report"
        )
    if isinstance(report, Refusal):
        raise report
    chips = report.listed | held
    known = max(node.capacity_chips or 0, node.allocatable_chips or 0)
    if chips.bit_count() < known:
        # The report omits chips in use, and the product depends on all chips.
        named = count(chips.bit_count(), "chip")
        sentence = f"its report and its pods name {named}, the kubelet has {known}"
        raise Refusal(
            Reason.NO_BASE_DEVICE_INFOS, f"node {node.name} has no annotation {BASE_DEVICE_INFOS}: {sentence}"
        )
    return chips


def _read_allocatable(node: Node, *, has_vnpus: bool) -> int:
    if not node.is_ready:
        raise Refusal(Reason.NODE_NOT_READY, f"node {node.name} is not Ready")
    if node.spec.unschedulable:
        raise Refusal(Reason.NODE_CORDONED, f"node {node.name} is cordoned")
    if not node.allocatable_chips:
        if has_vnpus:
            return 0  # all of its chips are cut, or will be
        # While the resource is not registered, the kubelet would start the pod without any chip.
        known = [name for name in sorted(node.status.allocatable) if name in _RESOURCES or suffix_of(name) is not None]
        sentence = f"node {node.name} has no allocatable {' or '.join(known[:_MOST_NAMED] or [RESOURCE])} now"
        raise Refusal(Reason.RESOURCE_NOT_OFFERED, sentence)
    capacity = node.capacity_chips
    if capacity is not None and node.allocatable_chips > capacity:
        raise Refusal(
            Reason.INCONSISTENT_CAPACITY,
            f"node {node.name} has {node.allocatable_chips} allocatable {RESOURCE}, more than its capacity {capacity}",
        )
    return node.allocatable_chips
