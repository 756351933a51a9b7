"""What would make a pod fit on a node: the node's objects are changed one way at a time, and judged again.

Nothing here knows a rule: what would help is found by asking the code that said no.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import msgspec
from msgspec import structs

from ascend.annotations import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_name, chip_set
from ascend.deviceinfo import DEVICE_INFO, MANUALLY_SEPARATED, DeviceReport, decode_report, encode_report
from ascend.errors import InvalidReport, InvalidValue
from ascend.faults import read_pre_separate
from ascend.kube.objects import Condition, ConfigMap, Node, Pod
from npuctl.snapshot import Snapshot

MOST_PODS = 3
"""No more pods than these are told to end for one that waits."""

Kind: TypeAlias = Literal["uncordon", "ready", "report", "offer", "end", "repair"]

_SENTENCES: dict[Kind, str] = {
    "uncordon": "it is uncordoned",
    "ready": "it is Ready",
    "report": "its device plugin writes a report that is fresh and valid",
    "offer": "its device plugin offers its chips to the kubelet",
}


class Remedy(msgspec.Struct, frozen=True):
    """A change after which the pod would fit on the node.

    Attributes:
        kind: what is to be changed.
        node: the node.
        targets: pods that end (``namespace/name``) or chips that recover; empty where it is the node itself.
    """

    kind: Kind
    node: str
    targets: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As the condition after "on node n, once …"."""
        some = " and ".join(self.targets)
        if self.kind == "end":
            return f"{some} {'ends' if len(self.targets) == 1 else 'end'}"
        if self.kind == "repair":
            return f"{some} {'recovers' if len(self.targets) == 1 else 'recover'}"
        return _SENTENCES[self.kind]


@dataclass(frozen=True, slots=True)
class Scene:
    """A node with all that decides on it: its report and the pods on it."""

    node: Node
    report: ConfigMap | None
    pods: tuple[Pod, ...]

    def without(self, gone: Sequence[Pod]) -> "Scene":
        """As it is after pods have ended."""
        uids = {pod.uid for pod in gone}
        return replace(self, pods=tuple(pod for pod in self.pods if pod.uid not in uids))

    def snapshot(self) -> Snapshot:
        """Its objects."""
        return Snapshot((self.node,), self.pods, (self.report,) if self.report is not None else ())


def remedies(scene: Scene, fits: Callable[[Scene], bool], now_s: int) -> list[Remedy]:
    """Every single change that makes a pod fit on a node.

    Args:
        scene: the node as it is, where the pod doesn't fit.
        fits: whether the pod fits there.
        now_s: the present, Unix seconds.
    """
    name = scene.node.name
    found = [Remedy(kind, name) for kind, changed in _of_the_node(scene, now_s) if fits(changed)]
    holders = [pod for pod in scene.pods if pod.requests_chips]
    found += [Remedy("end", name, (pod.key,)) for pod in holders if fits(scene.without((pod,)))]
    sick = _sick(scene)
    found += [Remedy("repair", name, (chip_name(chip),)) for chip in chip_ids(sick) if fits(_cured(scene, 1 << chip))]
    if not found and sick.bit_count() > 1 and fits(_cured(scene, sick)):
        found.append(Remedy("repair", name, tuple(map(chip_name, chip_ids(sick)))))
    return found


def pods_to_end(scene: Scene, fits: Callable[[Scene], bool]) -> Remedy | None:
    """The fewest pods, two or three, whose end makes a pod fit on a node; None where there are none."""
    holders = [pod for pod in scene.pods if pod.requests_chips]
    for count in range(2, MOST_PODS + 1):
        for gone in itertools.combinations(holders, count):
            if fits(scene.without(gone)):
                return Remedy("end", scene.node.name, tuple(pod.key for pod in gone))
    return None


def _of_the_node(scene: Scene, now_s: int) -> Iterator[tuple[Kind, Scene]]:
    node, report = scene.node, scene.report
    if node.spec.unschedulable:
        spec = structs.replace(node.spec, unschedulable=False)
        yield "uncordon", replace(scene, node=structs.replace(node, spec=spec))
    if not node.is_ready:
        others = [each for each in node.status.conditions if each.type != "Ready"]
        status = structs.replace(node.status, conditions=[*others, Condition("Ready", "True")])
        yield "ready", replace(scene, node=structs.replace(node, status=status))
    if not node.allocatable_chips:
        yield "offer", replace(scene, node=_offering(node, _reported(node)))
    if report is not None:
        try:
            fresh = replace(decode_report(report.data), update_time_s=now_s)
            yield "report", replace(scene, report=_rewritten(report, fresh))
        except InvalidReport:
            yield "report", replace(scene, report=None)


def _sick(scene: Scene) -> ChipSet:
    if scene.report is None:
        return 0
    try:
        report = decode_report(scene.report.data)
        separating = read_pre_separate(report.faults)
    except InvalidReport:
        return 0
    return separating | report.unhealthy | report.network_unhealthy | report.recovering | report.manually_separated


def _cured(scene: Scene, chips: ChipSet) -> Scene:
    if scene.report is None:
        return scene
    report = decode_report(scene.report.data)
    unhealthy = report.unhealthy | report.recovering | report.manually_separated
    cured = replace(
        report,
        unhealthy=report.unhealthy & ~chips,
        network_unhealthy=report.network_unhealthy & ~chips,
        recovering=report.recovering & ~chips,
        manually_separated=report.manually_separated & ~chips,
        faults=tuple(fault for fault in report.faults if fault.npu_name not in set(map(chip_name, chip_ids(chips)))),
    )
    # The kubelet offers a chip again as soon as it is healthy.
    offered = (scene.node.allocatable_chips or 0) + (unhealthy & chips).bit_count()
    return replace(scene, report=_rewritten(scene.report, cured), node=_offering(scene.node, offered))


def _rewritten(report: ConfigMap, content: DeviceReport) -> ConfigMap:
    written = {key: text for key, text in encode_report(content).items() if key in {DEVICE_INFO, MANUALLY_SEPARATED}}
    return structs.replace(report, data=report.data | written)


def _offering(node: Node, chips: int) -> Node:
    allocatable = node.status.allocatable | {RESOURCE: str(chips)}
    return structs.replace(node, status=structs.replace(node.status, allocatable=allocatable))


def _reported(node: Node) -> int:
    try:
        return chip_set(read_base_device_infos(node.metadata.annotations.get(BASE_DEVICE_INFOS, ""))).bit_count()
    except InvalidValue:
        return 0
