"""Values for tests of the allocator, and a small world to decide in."""

import hashlib
import json
from collections.abc import Iterable, Mapping

from allocator.decision.engine import DecisionEngine
from allocator.state.audit import Difference, compare_by_parts
from allocator.state.cluster import Cluster
from allocator.state.kinds import KINDS, fill
from allocator.state.ledger import Ledger
from ascend.annotations import BASE_DEVICE_INFOS, ChipAddress, Grant, write_base_device_infos
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.kube.objects import (
    Condition,
    ConfigMap,
    Container,
    KubeObject,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
)


def container(name: str, count: int | str | None) -> Container:
    """A container that asks for chips, or names the resource not at all."""
    return Container(name, Resources(limits={RESOURCE: str(count)}) if count is not None else Resources())


def pod(
    name: str,
    count: int | None = 1,
    *,
    node: str = "",
    chips: Iterable[int] | None = None,
    time: int | None = 7,
    phase: str = "Pending",
    annotations: Mapping[str, str] | None = None,
    containers: list[Container] | None = None,
    init_containers: list[Container] | None = None,
    priority: int = 0,
    since: str = "2026-01-01T00:00:00Z",
    leaving: bool = False,
    preemption_policy: str = "",
) -> Pod:
    """A pod that asks for ``count`` chips, with ``chips`` written on it if any."""
    written = Grant(tuple(chips), time).annotations() if chips is not None else {}
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            creation_timestamp=since,
            deletion_timestamp=since if leaving else None,
            annotations={**written, **(annotations or {})},
        ),
        spec=PodSpec(
            node_name=node,
            priority=priority,
            preemption_policy=preemption_policy,
            containers=containers if containers is not None else [container("main", count)],
            init_containers=init_containers or [],
        ),
        status=PodStatus(phase=phase),
    )


def node(
    name: str,
    *,
    chips: Iterable[int] = range(8),
    allocatable: int | None = 8,
    ready: bool = True,
    cordoned: bool = False,
    labels: Mapping[str, str] | None = None,
    infos: str | None = None,
) -> Node:
    """A 910A server, whole and Ready unless said otherwise."""
    text = infos if infos is not None else write_base_device_infos({chip: ChipAddress() for chip in chips})
    return Node(
        metadata=Metadata(name=name, annotations={BASE_DEVICE_INFOS: text}, labels=dict(labels or {})),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(
            allocatable={} if allocatable is None else {RESOURCE: str(allocatable)},
            conditions=[Condition("Ready", "True" if ready else "False")],
        ),
    )


def report(name: str, *, unhealthy: Iterable[int] = (), data: Mapping[str, str] | None = None) -> ConfigMap:
    """The device-info ConfigMap of a node."""
    sick = chip_set(unhealthy)
    written = encode_report(DeviceReport(free=0xFF & ~sick, unhealthy=sick, network_unhealthy=0, update_time_s=1))
    return ConfigMap(
        metadata=Metadata(name=config_map_name(name), namespace=NAMESPACE, labels=LABELS),
        data=dict(data) if data is not None else written,
    )


def noded_says(content: object) -> str:
    """What MindCluster's NodeD writes of a node: its findings, and the hash of them."""
    told = json.dumps(content, separators=(",", ":"))
    return f'{{"NodeInfo":{told},"CheckCode":"{hashlib.sha256(told.encode()).hexdigest()}"}}'


def by_kind(*objects: KubeObject) -> dict[str, list[KubeObject]]:
    """Objects by the name of their watched kind; ConfigMaps are both kinds of report."""
    return {
        kind.name: [each for each in objects if isinstance(each, kind.resource.type)] for kind in KINDS[:5] + KINDS[-1:]
    }


def audit(cluster: Cluster, ledger: Ledger, objects: Mapping[str, Iterable[KubeObject]]) -> list[Difference]:
    """The differences between a cluster and one rebuilt from objects, by name of their kind; sorted."""
    parts = compare_by_parts(cluster, ledger, fill(cluster.twin(), objects))
    return sorted(each for part in parts for each in part)


class World:
    """A cluster, a ledger and an engine on a clock that stands still until told otherwise."""

    def __init__(self, *, ttl_s: float = 30.0, default_product: str = "") -> None:
        self.now_s = 100.0
        self.ledger = Ledger(ttl_s=ttl_s, monotonic=lambda: self.now_s)
        self.cluster = Cluster(self.ledger)
        self.engine = DecisionEngine(self.cluster, self.ledger, default_product=default_product)

    def add(self, *objects: Node | Pod | ConfigMap) -> None:
        """The watch shows these."""
        for each in objects:
            if isinstance(each, Node):
                self.cluster.node_applied(each)
            elif isinstance(each, Pod):
                self.cluster.pod_applied(each)
            else:
                self.cluster.report_applied(each)

    def occupy(self, name: str, free: Iterable[int], *, healthy: int = 8) -> None:
        """A node of which exactly these chips are free, and so many healthy."""
        idle = set(free)
        held = [chip for chip in range(8) if chip not in idle]
        sick, held = held[: 8 - healthy], held[8 - healthy :]
        self.add(node(name, allocatable=healthy), report(name, unhealthy=sick))
        self.add(*(pod(f"{name}-holds-{chip}", 1, node=name, chips=[chip], phase="Running") for chip in held))
