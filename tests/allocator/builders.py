"""Objects for tests of the allocator, and a small cluster with an engine."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Final

import pytest
from msgspec.structs import replace

from allocator.decision.engine import DecisionEngine
from allocator.rules.asked import (
    DEFAULT_SUPER_PODS,
    DEFAULT_SWITCHES,
    DEFAULT_VNPUS_PER_JOB,
    JobDefaults,
    SuperPodLimits,
    SwitchLimits,
)
from allocator.rules.vacancy import Vacancy
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from ascend.annotations import Grant
from ascend.base_device_infos import BASE_DEVICE_INFOS, ChipAddress, write_base_device_infos
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import LABELS, NAMESPACE, OUR_PLUGIN, WRITTEN_BY, DeviceReport, config_map_name, encode_report
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import (
    Condition,
    ConfigMap,
    Metadata,
    Node,
    NodeSpec,
    NodeStatus,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    SchedulingGate,
)
from ascend.kube.workloads import PodGroup, PodGroupSpec, StatefulSet, StatefulSetSpec

GROUP: Final = "scheduling.k8s.io/group-name"
"""The annotation that names a pod's PodGroup of Volcano."""
TYPE: Final = "accelerator-type"
"""The label of nodes, and the node selector of pods, that names a product."""


def container(name: str, count: int | str | None) -> Container:
    """A container that requests chips; None for one without the resource."""
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
    terminating: bool = False,
    preemption_policy: str = "",
    labels: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    tolerations: str | None = None,
    requirements: int = 0,
) -> Pod:
    """A pod that requests ``count`` chips, with ``chips`` written on it if any."""
    written = Grant(tuple(chips), time).annotations() if chips is not None else {}
    return Pod(
        metadata=Metadata(
            name=name,
            namespace="default",
            uid=f"uid-{name}",
            creation_timestamp=since,
            deletion_timestamp=since if terminating else None,
            labels=dict(labels or {}),
            annotations={**written, **(annotations or {})},
        ),
        spec=PodSpec(
            node_name=node,
            scheduler_name="default-scheduler",  # as the API server writes it
            node_selector=dict(selector or {}),
            priority=priority,
            preemption_policy=preemption_policy,
            containers=tuple(containers) if containers is not None else (container("main", count),),
            init_containers=tuple(init_containers or ()),
            tolerations=tolerations,
            requirements=requirements,
        ),
        status=PodStatus(phase=phase),
    )


def owned_by(each: Pod, kind: str, api_version: str = "", *, name: str = "train") -> Pod:
    """The pod with a controller."""
    owner = OwnerReference(api_version=api_version, kind=kind, name=name, uid="u", controller=True)
    return replace(each, metadata=replace(each.metadata, owner_references=[owner]))


def gated(each: Pod, *gates: str) -> Pod:
    """The pod with these scheduling gates."""
    return replace(each, spec=replace(each.spec, scheduling_gates=[SchedulingGate(gate) for gate in gates]))


def selecting(each: Pod, labels: Mapping[str, str]) -> Pod:
    """The pod with a node selector."""
    return replace(each, spec=replace(each.spec, node_selector=dict(labels)))


def requiring(each: Pod, *terms: Mapping[str, object]) -> Pod:
    """The pod with a required node affinity of these terms, which are alternatives."""
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return replace(each, spec=replace(each.spec, affinity={"nodeAffinity": required}))


def term(key: str, operator: str, *values: str, field: str = "matchExpressions") -> dict[str, object]:
    """A term of a node affinity with one requirement."""
    return {field: [{"key": key, "operator": operator, "values": list(values)}]}


def pod_group(minimum: int | None = None, *, name: str = "train") -> PodGroup:
    """A PodGroup with this ``minMember``; None for one without a spec."""
    metadata = Metadata(name=name, namespace="default")
    return PodGroup(metadata=metadata) if minimum is None else PodGroup(metadata=metadata, spec=PodGroupSpec(minimum))


def stateful_set(replicas: int, *, name: str = "train") -> StatefulSet:
    """A StatefulSet of so many pods."""
    return StatefulSet(metadata=Metadata(name=name, namespace="default"), spec=StatefulSetSpec(replicas, "Parallel"))


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
    """A 910A server; by default with all chips and Ready."""
    text = infos if infos is not None else write_base_device_infos({chip: ChipAddress() for chip in chips})
    return Node(
        metadata=Metadata(name=name, annotations={BASE_DEVICE_INFOS: text}, labels=dict(labels or {})),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(
            allocatable={} if allocatable is None else {RESOURCE: str(allocatable)},
            conditions=(Condition("Ready", "True" if ready else "False"),),
        ),
    )


def report(
    name: str,
    *,
    free: Iterable[int] = range(8),
    unhealthy: Iterable[int] = (),
    data: Mapping[str, str] | None = None,
    ours: bool = False,
) -> ConfigMap:
    """The device-info ConfigMap of a node, written by this project's device plugin or by another one."""
    bad = chip_set(unhealthy)
    written = encode_report(
        DeviceReport(free=chip_set(free) & ~bad, unhealthy=bad, network_unhealthy=0, update_time_s=1)
    )
    return ConfigMap(
        metadata=Metadata(
            name=config_map_name(name),
            namespace=NAMESPACE,
            labels=LABELS,
            annotations={WRITTEN_BY: OUR_PLUGIN} if ours else {},
        ),
        data=dict(data) if data is not None else written,
    )


def noded_says(content: object) -> str:
    """What MindCluster's NodeD reports of a node, with its hash."""
    info = json.dumps(content, separators=(",", ":"))
    return f'{{"NodeInfo":{info},"CheckCode":"{hashlib.sha256(info.encode()).hexdigest()}"}}'


class World:
    """A cluster, a ledger and an engine, on a clock that the test sets."""

    def __init__(
        self,
        *,
        ttl_s: float = 30.0,
        default_product: str = "",
        sharing_products: tuple[str, ...] = (),
        super_pods: SuperPodLimits = DEFAULT_SUPER_PODS,
        earmark_share: float = 0.0,
        vnpus_per_job: int = DEFAULT_VNPUS_PER_JOB,
        switches: SwitchLimits = DEFAULT_SWITCHES,
    ) -> None:
        self.now_s = 100.0
        self.ledger = Ledger(ttl_s=ttl_s, monotonic=lambda: self.now_s)
        self.cluster = Cluster(self.ledger, clock=lambda: self.now_s)
        self.engine = DecisionEngine(
            self.cluster,
            self.ledger,
            defaults=JobDefaults(default_product, sharing_products, super_pods, vnpus_per_job, switches),
            earmark_share=earmark_share,
            now_s=lambda: self.now_s,
        )

    def add(self, *objects: Node | Pod | ConfigMap) -> None:
        """Show objects to the cluster, as the informers do."""
        for each in objects:
            if isinstance(each, Node):
                self.cluster.node_applied(each)
            elif isinstance(each, Pod):
                self.cluster.pod_applied(each)
            else:
                self.cluster.reports.apply(each)

    def occupy(self, name: str, free: Iterable[int], *, healthy: int = 8) -> None:
        """Add a node with exactly these free chips, and so many healthy ones."""
        idle = set(free)
        held = [chip for chip in range(8) if chip not in idle]
        bad, held = held[: 8 - healthy], held[8 - healthy :]
        self.add(node(name, allocatable=healthy), report(name, unhealthy=bad))
        self.add(*(pod(f"{name}-holds-{chip}", 1, node=name, chips=[chip], phase="Running") for chip in held))

    def fill(self, name: str, chips: Iterable[int] = range(8)) -> None:
        """Have a running pod hold chips of a node."""
        held = list(chips)
        self.add(pod(f"on-{name}", len(held), node=name, chips=held, phase="Running"))

    def vacancy(self, name: str = "n1") -> Vacancy:
        """What a node has left; it must be usable."""
        offer = self.cluster.nodes[name].offer
        assert isinstance(offer, Vacancy), offer
        return offer

    def node_refusal(self, name: str = "n1") -> Refusal:
        """Why a node can't be used; it must not be usable."""
        offer = self.cluster.nodes[name].offer
        assert isinstance(offer, Refusal), offer
        return offer

    def refusal(self, each: Pod, candidates: list[str] | None = None) -> Refusal:
        """The refusal to place a pod."""
        with pytest.raises(Refusal) as refused:
            self.engine.place(each, candidates)
        return refused.value
