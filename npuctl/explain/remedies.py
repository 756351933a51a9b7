"""Finds changes that make a pod fit on a node: each change is made to the node's objects, which are then judged again.

No placement rule is repeated here.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

import msgspec

from allocator.rules.request import ChipRequest
from allocator.settings import Settings
from ascend.chips import ChipSet, chip_ids, chip_name
from ascend.deviceinfo import decode_report
from ascend.errors import InvalidReport
from ascend.faults import read_pre_separate
from ascend.kube.objects import ConfigMap, Node, Pod
from ascend.reasons import Category
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.changed import ALL_CHIPS, cordoned, offering, ready, recovered, rewritten
from npuctl.reading.objects import ClusterObjects
from npuctl.refusals import NodeRefusal

MOST_PODS: Final = 3
"""A remedy consists of the end of this many pods at most."""

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
    """A node, the node's report and pods: everything on which a fit depends.

    Attributes:
        node: the node.
        report: what its device plugin reports; None without a report.
        pods: the live pods on it.
        peers: the uids of those of them that are of the pod's job, and must not end.
        refused: the category of the reason for which the node refuses the pod.
    """

    node: Node
    report: ConfigMap | None
    pods: tuple[Pod, ...]
    peers: frozenset[str] = frozenset()
    refused: Category = Category.NODE

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


def find_remedies(
    objects: ClusterObjects,
    settings: Settings,
    now_ns: int,
    request: ChipRequest,
    nodes: Mapping[str, NodeRefusal],
    *,
    peers: frozenset[str],
) -> list[Remedy]:
    """Try changes on single nodes; return the remedies, the smallest changes first. Peers of the pod must not end.

    ``nodes`` has why each of them refuses the pod.
    """
    pods: dict[str, list[Pod]] = {}
    for pod in objects.pods:
        if pod.spec.node_name and pod.is_live:
            pods.setdefault(pod.spec.node_name, []).append(pod)
    known, reports = {node.name: node for node in objects.nodes}, objects.reports

    def fits(scene: Scene) -> bool:
        alone = OfflineAllocator(scene.objects(), settings, now_ns)
        return alone.cluster.index.best(request) is not None

    scenes = [
        Scene(known[name], reports.get(name), tuple(pods.get(name, ())), peers, refusal.reason.category)
        for name, refusal in nodes.items()
        if name in known
    ]
    # If a node fits as it is, the obstacle is not on the node, and any change would seem to help.
    scenes = [scene for scene in scenes if not fits(scene)]
    found = [remedy for scene in scenes for remedy in remedies(scene, fits, now_ns // 10**9)]
    if not found:
        found = [remedy for scene in scenes if (remedy := pods_to_end(scene, fits)) is not None]
    return sorted(found, key=lambda remedy: (len(remedy.targets), remedy.node, remedy.kind, remedy.targets))


def remedies(scene: Scene, fits: Callable[[Scene], bool], now_s: int) -> list[Remedy]:
    """Return every single change by which a pod would fit on an unfit node, at a Unix time."""
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
        yield "uncordon", replace(scene, node=cordoned(node, is_cordoned=False))
    if not node.is_ready:
        yield "ready", replace(scene, node=ready(node, is_ready=True))
    if not node.allocatable_chips and not node.allocatable_cores:
        yield "offer", replace(scene, node=offering(node, ALL_CHIPS))
    if report is not None and scene.refused is Category.NODE:
        try:
            fresh = replace(decode_report(report.data), update_time_s=now_s)
            yield "report", replace(scene, report=rewritten(report, fresh))
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
    # The kubelet counts a chip as allocatable again as soon as it is healthy.
    node = offering(scene.node, unhealthy & chips)
    return replace(scene, report=rewritten(scene.report, recovered(report, chips)), node=node)
