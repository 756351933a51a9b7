"""The allocator's view of nodes and chips as plain values: health, holders and links of each chip."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
from msgspec import structs

from allocator.rules.cores import cores_left
from allocator.rules.vacancy import Vacancy
from allocator.settings import Settings
from allocator.state.node import NodeRecord, Offer, Server, read_server
from allocator.state.report import NO_REPORT
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_name, chip_set
from ascend.cordons import Cordon
from ascend.deviceinfo import DeviceReport
from ascend.errors import Refusal
from ascend.kube.objects import Condition, Node
from ascend.reasons import Category, Reason
from ascend.rules.families import RULES
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects


@dataclass(frozen=True, slots=True)
class VnpuView:
    """A vNPU of a chip that is cut.

    Attributes:
        name: its name, as in ``Ascend910-2c-100-0``.
        size: its size, as in the name of its resource.
        vdev_id: the driver's id of it.
        holders: the pods (``namespace/name``) that hold it.
        unknown: why it is unknown whether it is free, and no pod gets it, a sentence; empty if it is known.
    """

    name: str
    size: str
    vdev_id: int
    holders: tuple[str, ...]
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class SliceView:
    """A vNPU that was cut out of a chip for a pod.

    Attributes:
        name: as in ``0-vir05_1c_16g``.
        template: its template.
        holders: the pod (``namespace/name``) that has it.
    """

    name: str
    template: str
    holders: tuple[str]


@dataclass(frozen=True, slots=True)
class ChipView:
    """A chip.

    Attributes:
        name: its name, as in ``Ascend910-0``.
        ring: the number of the group of linked chips that it belongs to.
        healthy: it can be allocated.
        holders: the pods (``namespace/name``) that hold it.
        health: ``healthy``, ``unhealthy``, ``recovering`` (being reset), ``separated`` (removed from use),
            ``separating`` (only the pod that holds it may use it) or ``network-unhealthy`` (not for distributed jobs).
        faults: its fault codes.
        vnpus: the vNPUs into which it is cut; none for a whole chip.
        slices: the vNPUs that were cut out of it for pods.
        free_cores: its free AI cores, if it can be cut while pods run; else None.
        cordon: who has taken it out of use, when and why, a sentence; empty if nobody has said so.
    """

    name: str
    ring: int
    healthy: bool
    holders: tuple[str, ...]
    health: str = "healthy"
    faults: tuple[str, ...] = ()
    vnpus: tuple[VnpuView, ...] = ()
    slices: tuple[SliceView, ...] = ()
    free_cores: int | None = None
    cordon: str = ""

    @property
    def is_free(self) -> bool:
        """It can be allocated as a whole, and no pod holds it."""
        return self.healthy and not self.holders and not self.vnpus and not self.slices

    @property
    def devices(self) -> tuple["ChipView | VnpuView | SliceView", ...]:
        """The chip and its vNPUs."""
        return self, *self.vnpus, *self.slices

    @property
    def free_vnpus(self) -> int:
        """The number of allocatable vNPUs without a holder."""
        usable = self.healthy and not self.holders
        return sum(not vnpu.holders and not vnpu.unknown for vnpu in self.vnpus) if usable else 0


class NodeView(msgspec.Struct, frozen=True):
    """A node.

    Attributes:
        node: its name.
        product: the product of the server; empty if it is unknown.
        chips: its chips by number.
        reason: why no pod can be placed on it; None if pods can.
        message: the same as a sentence.
        group: the noun for a group of linked chips, as ``ring``; empty if all chips are alike.
        jobs: the job (``namespace/name``) of each pod that holds chips of it.
        free: the number of healthy chips that no pod holds, whether the node can be used or not.
        unhealthy: the number of chips that can't be allocated because of their health.
        largest: the most free chips in one group, as a ring or mesh; all that are free if a pod may have several cards.
    """

    node: str
    product: str
    chips: tuple[ChipView, ...]
    reason: Reason | None
    message: str | None
    group: str = ""
    jobs: dict[str, str] = {}
    free: int = 0
    unhealthy: int = 0
    largest: int = 0

    def __post_init__(self) -> None:
        structs.force_setattr(self, "free", sum(chip.is_free for chip in self.chips))
        structs.force_setattr(self, "unhealthy", sum(not chip.healthy for chip in self.chips))
        linked = self.groups.values() if self.group not in {"", "card"} else [self.chips]
        largest = max((sum(chip.is_free for chip in chips) for chips in linked), default=0)
        structs.force_setattr(self, "largest", largest)

    @property
    def groups(self) -> dict[int, list[ChipView]]:
        """The chips by the number of their group."""
        groups: dict[int, list[ChipView]] = {}
        for chip in self.chips:
            groups.setdefault(chip.ring, []).append(chip)
        return dict(sorted(groups.items()))

    @property
    def vnpus(self) -> int:
        """The number of its vNPUs."""
        return sum(len(chip.vnpus) for chip in self.chips)

    @property
    def free_vnpus(self) -> int:
        """The number of its vNPUs on healthy chips that no pod holds."""
        return sum(chip.free_vnpus for chip in self.chips)

    @property
    def free_cores(self) -> int | None:
        """The number of its free AI cores; None if its chips are not cut while pods run."""
        found = [chip.free_cores for chip in self.chips if chip.free_cores is not None]
        return sum(found) if found else None

    @property
    def is_npu(self) -> bool:
        """Whether it is a node with NPUs."""
        return self.reason is None or self.reason.category is not Category.NOT_NPU

    @property
    def is_broken_up(self) -> bool:
        """Whether it can be used, and some of its chips are free, but not all."""
        return self.reason is None and 0 < self.free < len(self.chips)


def node_views(objects: ClusterObjects, settings: Settings, now_ns: int) -> list[NodeView]:
    """Return the NPU nodes of a cluster by name, as an allocator reads them at a time in Unix nanoseconds."""
    allocator = OfflineAllocator(objects, settings, now_ns)
    cordons = objects.cordons
    reports = objects.valid_reports  # for the others, the reason of the node says what is wrong
    jobs: dict[str, dict[str, str]] = {}
    for pod in objects.pods:
        if pod.spec.node_name and pod.is_live and pod.requests_chips:
            jobs.setdefault(pod.spec.node_name, {})[pod.key] = str(allocator.job_of(pod).key)
    views = [
        node_view(record, reports.get(name), jobs.get(name, {}), cordons.get(name, {}))
        for name, record in sorted(allocator.cluster.nodes.items())
    ]
    return [view for view in views if view.is_npu]


def _as_usable(node: Node) -> Node:
    """The node as if it was usable, because chips of unusable nodes are shown too."""
    offered = {RESOURCE: "1"} if not node.allocatable_cores else {}
    status = structs.replace(
        node.status,
        conditions=[Condition("Ready", "True")],
        allocatable=node.status.allocatable | offered,
        capacity={},
    )
    return structs.replace(node, spec=structs.replace(node.spec, unschedulable=False), status=status)


def node_view(
    record: NodeRecord, report: DeviceReport | None, jobs: dict[str, str], cordons: Mapping[int, Cordon]
) -> NodeView:
    """Return a node as an allocator reads it; ``report`` is valid, and ``jobs`` has the job of each pod there."""
    offer = record.offer
    closed = _closed(offer)
    reason, message = (closed.reason, closed.message) if closed is not None else (None, None)
    server = None if record.node is None else read_server(_as_usable(record.node), record.report, record.held)
    if not isinstance(server, Server):
        return NodeView(record.name, "", (), reason, message)
    reported = NO_REPORT if isinstance(record.report, Refusal) else record.report
    unusable = reported.unhealthy | reported.pre_separate
    chips = []
    sizes = offer.vnpus.sizes if isinstance(offer, Vacancy) and offer.vnpus is not None else ()
    unknown = {size.suffix: size.unknown for size in sizes}
    parts: dict[int, list[VnpuView]] = {}
    for vnpu in server.vnpus:
        # By vdev id, which is the device: the driver uses it again after a chip was cut anew.
        holders = tuple(
            sorted(
                holding.pod
                for holding in record.holdings.values()
                if any(held.vdev_id == vnpu.vdev_id for held in holding.vnpus)
            )
        )
        view = VnpuView(vnpu.name, vnpu.suffix, vnpu.vdev_id, holders, unknown.get(vnpu.suffix, ""))
        parts.setdefault(vnpu.chip, []).append(view)
    slices: dict[int, list[SliceView]] = {}
    for holding in sorted(record.holdings.values(), key=lambda holding: holding.pod):
        for cut in holding.cuts:
            slices.setdefault(cut.chip, []).append(SliceView(cut.name, cut.template, (holding.pod,)))
    cores = _free_cores(record, server, unusable)
    for chip_id in chip_ids(server.reported | chip_set(parts)):
        chip, name = chip_set((chip_id,)), chip_name(chip_id)
        ring = next(number for number, ring in enumerate(server.product.rings) if ring & chip)
        holders = tuple(sorted(holding.pod for holding in record.holdings.values() if holding.chips & chip))
        # ClusterD may know more than the node's own report.
        known = "unhealthy" if reported.unhealthy & chip else "healthy"
        health, faults = _health(chip, report, reported.pre_separate, known), _faults(name, report)
        vnpus = tuple(parts.get(chip_id, ()))
        cut_off = tuple(slices.get(chip_id, ()))
        usable = not unusable & chip
        cordon = str(cordons[chip_id]) if chip_id in cordons else ""
        free = cores.get(chip_id)
        chips.append(ChipView(name, ring, usable, holders, health, faults, vnpus, cut_off, free, cordon))
    group = RULES[server.product.family].group
    return NodeView(record.name, server.product.name, tuple(chips), reason, message, group, jobs)


def _closed(offer: Offer | None) -> Refusal | None:
    """Why no pod can be placed on a node; None if some can."""
    if isinstance(offer, Vacancy):
        return offer.cores.closed if offer.cores is not None else None
    return offer


def _free_cores(record: NodeRecord, server: Server, unusable: ChipSet) -> dict[int, int]:
    """The free AI cores of each chip; empty if the chips are not cut while pods run."""
    if server.kind is None:
        return {}
    holdings = record.holdings.values()
    cuts = [cut for holding in holdings for cut in holding.cuts]
    left = cores_left(server.kind, cuts, excluded=unusable | record.held, counted=0, allocatable=0)
    free = server.reported & ~unusable & ~chip_set(cut.chip for cut in cuts) & ~record.held
    found = {chip: left.left_of(chip, free) for chip in chip_ids(server.reported)}
    return {chip: chip_left.cores if chip_left is not None else 0 for chip, chip_left in found.items()}


def _health(chip: ChipSet, report: DeviceReport | None, separating: ChipSet, known: str) -> str:
    if report is None:
        return known
    worst_first = {
        "separated": report.manually_separated,
        "recovering": report.recovering,
        "unhealthy": report.unhealthy,
        "separating": separating,
        "network-unhealthy": report.network_unhealthy,
    }
    return next((health for health, chips in worst_first.items() if chips & chip), known)


def _faults(name: str, report: DeviceReport | None) -> tuple[str, ...]:
    codes = (fault.fault_code.split(",") for fault in report.faults if fault.npu_name == name) if report else ()
    return tuple(code for some in codes for code in some if code)
