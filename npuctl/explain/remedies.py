"""Finds changes that make a pod fit on a node: each change is made to the node's objects, which are then judged again.

No placement rule is repeated here.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec
from msgspec import structs

from ascend.annotations import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import MAX_CHIP_ID, RESOURCE, ChipSet, chip_ids, chip_name
from ascend.cores import read_kind
from ascend.deviceinfo import DEVICE_INFO, MANUALLY_SEPARATED, DeviceReport, decode_report, encode_report
from ascend.errors import InvalidReport, InvalidValue
from ascend.faults import read_pre_separate
from ascend.kube.objects import Condition, ConfigMap, Node, Pod, whole_number
from ascend.templates import RESOURCE_CORES
from npuctl.reading.objects import ClusterObjects

MOST_PODS: Final = 3
"""A remedy consists of the end of this many pods at most."""

_ALL_CHIPS: Final = (1 << MAX_CHIP_ID + 1) - 1

Kind: TypeAlias = Literal["uncordon", "ready", "report", "offer", "end", "repair"]

_SENTENCES: Final[dict[Kind, str]] = {
    "uncordon": "it is uncordoned",
    "ready": "it is Ready",
    "report": "its device plugin writes a fresh, valid report",
    "offer": "its device plugin offers its chips to the kubelet",
}


class Remedy(msgspec.Struct, frozen=True):
    """A change after which the pod would fit on the node.

    Attributes:
        kind: the kind of change.
        node: the node.
        targets: pods that end (``namespace/name``) or chips that recover; empty if the node itself changes.
    """

    kind: Kind
    node: str
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the condition after "on node n, once …"."""
        targets, one = " and ".join(self.targets), len(self.targets) == 1
        if self.kind == "end":
            return f"{targets} {'ends' if one else 'end'}"
        if self.kind == "repair":
            return f"{targets} {'recovers' if one else 'recover'}"
        return _SENTENCES[self.kind]


@dataclass(frozen=True, slots=True)
class Scene:
    """A node, its report and its pods: everything that decides whether a pod fits on it.

    Attributes:
        node: the node.
        report: what its device plugin reports; None without a report.
        pods: the live pods on it.
        peers: the uids of those of them that are of the pod's job, and must not end.
    """

    node: Node
    report: ConfigMap | None
    pods: tuple[Pod, ...]
    peers: frozenset[str] = frozenset()

    @property
    def holders(self) -> list[Pod]:
        """The pods whose end could make room."""
        return [pod for pod in self.pods if pod.requests_chips and pod.uid not in self.peers]

    def without(self, gone: Sequence[Pod]) -> "Scene":
        """Return the scene after pods have ended."""
        uids = {pod.uid for pod in gone}
        return replace(self, pods=tuple(pod for pod in self.pods if pod.uid not in uids))

    def objects(self) -> ClusterObjects:
        """Return the objects."""
        return ClusterObjects.of([self.node, *self.pods, *([self.report] if self.report is not None else [])])


def remedies(scene: Scene, fits: Callable[[Scene], bool], now_s: int) -> list[Remedy]:
    """Return every single change that makes a pod fit on a node, on which it does not fit as it is, at a Unix time."""
    name = scene.node.name
    found = [Remedy(kind, name) for kind, changed in _node_changes(scene, now_s) if fits(changed)]
    found += [Remedy("end", name, (pod.key,)) for pod in scene.holders if fits(scene.without((pod,)))]
    unhealthy = _unhealthy(scene)
    found += [
        Remedy("repair", name, (chip_name(chip),)) for chip in chip_ids(unhealthy) if fits(_recovered(scene, 1 << chip))
    ]
    if not found and unhealthy.bit_count() > 1 and fits(_recovered(scene, unhealthy)):
        found.append(Remedy("repair", name, tuple(map(chip_name, chip_ids(unhealthy)))))
    return found


def pods_to_end(scene: Scene, fits: Callable[[Scene], bool]) -> Remedy | None:
    """Return the fewest pods, two or three, whose end makes a pod fit on a node; None if there are none."""
    holders = scene.holders
    for count in range(2, MOST_PODS + 1):
        for gone in itertools.combinations(holders, count):
            if fits(scene.without(gone)):
                return Remedy("end", scene.node.name, tuple(pod.key for pod in gone))
    return None


def _node_changes(scene: Scene, now_s: int) -> Iterator[tuple[Kind, Scene]]:
    node, report = scene.node, scene.report
    if node.spec.unschedulable:
        spec = structs.replace(node.spec, unschedulable=False)
        yield "uncordon", replace(scene, node=structs.replace(node, spec=spec))
    if not node.is_ready:
        others = [each for each in node.status.conditions if each.type != "Ready"]
        status = structs.replace(node.status, conditions=[*others, Condition("Ready", "True")])
        yield "ready", replace(scene, node=structs.replace(node, status=status))
    if not node.allocatable_chips and not node.allocatable_cores:
        yield "offer", replace(scene, node=_offering(node, _ALL_CHIPS))
    if report is not None:
        try:
            fresh = replace(decode_report(report.data), update_time_s=now_s)
            yield "report", replace(scene, report=_rewritten(report, fresh))
        except InvalidReport:
            yield "report", replace(scene, report=None)


def _unhealthy(scene: Scene) -> ChipSet:
    if scene.report is None:
        return 0
    try:
        report = decode_report(scene.report.data)
        separating = read_pre_separate(report.faults)
    except InvalidReport:
        return 0
    return separating | report.unhealthy | report.network_unhealthy | report.recovering | report.manually_separated


def _recovered(scene: Scene, chips: ChipSet) -> Scene:
    if scene.report is None:
        return scene
    report = decode_report(scene.report.data)
    unhealthy = report.unhealthy | report.recovering | report.manually_separated
    recovered = replace(
        report,
        unhealthy=report.unhealthy & ~chips,
        network_unhealthy=report.network_unhealthy & ~chips,
        recovering=report.recovering & ~chips,
        manually_separated=report.manually_separated & ~chips,
        faults=tuple(fault for fault in report.faults if fault.npu_name not in set(map(chip_name, chip_ids(chips)))),
    )
    # The kubelet counts a chip as allocatable again as soon as it is healthy.
    return replace(scene, report=_rewritten(scene.report, recovered), node=_offering(scene.node, unhealthy & chips))


def _rewritten(report: ConfigMap, content: DeviceReport) -> ConfigMap:
    written = {key: text for key, text in encode_report(content).items() if key in {DEVICE_INFO, MANUALLY_SEPARATED}}
    return structs.replace(report, data=report.data | written)


def _offering(node: Node, chips: ChipSet) -> Node:
    """The node if its kubelet has these chips as well, their vNPUs or their AI cores; never more than there are."""
    there, allocatable = _resources(node, _ALL_CHIPS), node.status.allocatable.copy()
    for resource, more in _resources(node, chips).items():
        offered = whole_number(allocatable.get(resource)) or 0
        allocatable[resource] = str(max(min(offered + more, there[resource]), offered))
    return structs.replace(node, status=structs.replace(node.status, allocatable=allocatable))


def _resources(node: Node, chips: ChipSet) -> dict[str, int]:
    """By resource, how many devices of a node are on these chips."""
    try:
        infos = read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, ""))
    except InvalidValue:  # it is not known which chips it has
        return {RESOURCE: chips.bit_count()}
    number, kind = (infos.chips & chips).bit_count(), read_kind(node.metadata.labels)
    if kind is not None and node.allocatable_cores is not None and not node.allocatable_chips:
        return {RESOURCE_CORES: number * kind.cores}
    return {RESOURCE: number, **Counter(each.resource for each in infos.vnpus if chips >> each.chip & 1)}
