"""Slim types for Kubernetes objects, with only the fields that the programs read.

Decoding into them is about a hundred times faster than into the client library's models
(docs/spec/kube-api.md#client-cost). The fields they leave out can't be lost, because the programs never write a whole
object back. Of pods, whose authors share the memory of the programs, only so much is kept as ``ascend.kube.kept`` says.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from ascend.annotations import PLACEMENT_GATE
from ascend.chips import RESOURCE
from ascend.kube.containers import Container, Volume, first_containers, whole_number
from ascend.kube.kept import (
    LONGEST,
    LONGEST_NAME,
    MOST_CONTAINERS,
    MOST_ENTRIES,
    kept_annotations,
    kept_labels,
    kept_selector,
    short,
    short_json,
)
from ascend.kube.requirements import requirements_of
from ascend.slices import ContainerKind, ContainerRequest
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of

T = TypeVar("T", bound="KubeObject")
_Read = TypeVar("_Read")


def _keep(struct: msgspec.Struct, field: str, value: object) -> None:
    """Set a field of a new object, unless it has this value."""
    if getattr(struct, field) is not value:
        msgspec.structs.force_setattr(struct, field, value)


class OwnerReference(msgspec.Struct, rename="camel", frozen=True, gc=False, omit_defaults=True):
    """An owner reference with all fields, so that it can be copied to another object."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    block_owner_deletion: bool = False

    @property
    def kept(self) -> "OwnerReference":
        """The same with names of limited length: the API server does not limit them."""
        if len(self.api_version) + len(self.kind) + len(self.name) + len(self.uid) <= LONGEST_NAME:
            return self
        return OwnerReference(
            short(self.api_version),
            short(self.kind),
            short(self.name),
            short(self.uid),
            self.controller,
            self.block_owner_deletion,
        )


class Metadata(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The metadata every object has."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages the object."""
        for owner in self.owner_references:  # evaluated a dozen times for each decision, so without a generator
            if owner.controller:
                return owner
        return None


def unix_seconds(timestamp: str | None) -> float | None:
    """A time of the API as Unix seconds; None if it is missing or can't be read."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except ValueError:
        return None


class KubeObject(msgspec.Struct, rename="camel", frozen=True, gc=False, kw_only=True):
    """Base of all objects."""

    metadata: Metadata = Metadata()

    @property
    def name(self) -> str:
        """The object's name."""
        return self.metadata.name

    @property
    def uid(self) -> str:
        """The object's uid, which differs if the object was recreated under the same name."""
        return self.metadata.uid

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone for cluster-scoped objects."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.metadata.namespace else self.metadata.name


class SchedulingGate(msgspec.Struct, frozen=True, gc=False):
    """A gate of a pod: schedulers ignore the pod while it has any."""

    name: str = ""


class SchedulingGroup(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The pod group of a pod, as Kubernetes itself has it."""

    pod_group_name: str = ""

    def __post_init__(self) -> None:
        _keep(self, "pod_group_name", short(self.pod_group_name))


NodeRequirements: TypeAlias = tuple[frozenset[tuple[str, str]], str | None]
"""Node selector and affinity of a pod."""


class PodSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod's spec; the name of the scheduler is kept once for all pods, to save memory.

    Affinity and tolerations are kept as JSON, one string for all equal ones: few pods are told apart by them.
    ``requirements`` is the number of all that a scheduler may ask of a node (``ascend.kube.requirements``); 0 for pods
    that are bound or request no chips.
    """

    node_name: str = ""
    scheduler_name: str = ""
    node_selector: dict[str, str] = {}
    priority: int | None = None
    preemption_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    scheduling_group: SchedulingGroup | None = None
    volumes: tuple[Volume, ...] = ()
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    affinity: Any = None
    tolerations: Any = None
    requirements: int = 0

    def __post_init__(self) -> None:
        for field, value in (("affinity", self.affinity), ("tolerations", self.tolerations)):
            if value is not None and not isinstance(value, str):
                text = short_json(msgspec.json.encode(value).decode(), is_list=field == "tolerations")
                msgspec.structs.force_setattr(self, field, sys.intern(text))
        if self.scheduler_name:
            msgspec.structs.force_setattr(self, "scheduler_name", sys.intern(short(self.scheduler_name)))
        if self.volumes:
            claimed = [volume for volume in self.volumes if volume.claim("")]
            msgspec.structs.force_setattr(self, "volumes", tuple(claimed[:MOST_ENTRIES]))
        if self.node_selector:
            _keep(self, "node_selector", kept_selector(self.node_selector))
        if len(self.scheduling_gates) > MOST_ENTRIES:
            # Another gate is enough to know; the allocator's own is looked for.
            gates = sorted(self.scheduling_gates, key=lambda gate: gate.name != PLACEMENT_GATE)
            msgspec.structs.force_setattr(self, "scheduling_gates", tuple(gates[:MOST_ENTRIES]))
        if len(self.containers) + len(self.init_containers) > MOST_CONTAINERS:
            msgspec.structs.force_setattr(self, "containers", first_containers(self.containers))
            msgspec.structs.force_setattr(self, "init_containers", first_containers(self.init_containers))

    @property
    def restricts_nodes(self) -> bool:
        """Whether its node selector or its node affinity may exclude nodes; an affinity may name pods only."""
        return bool(self.node_selector) or self.affinity is not None

    @property
    def node_requirements(self) -> NodeRequirements:
        """Node selector and affinity: equal for pods with the same eligible nodes."""
        return frozenset(self.node_selector.items()), self.affinity


class ContainerStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The status of a container."""

    name: str = ""


class Condition(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A condition of an object's status."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""

    def __post_init__(self) -> None:
        if len(self.message) > LONGEST or len(self.reason) > LONGEST or len(self.type) + len(self.status) > LONGEST:
            for field in ("type", "status", "reason", "message"):
                _keep(self, field, short(getattr(self, field), LONGEST))


class PodStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A pod's status."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    nominated_node_name: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()

    def __post_init__(self) -> None:
        written = len(self.phase) + len(self.reason) + len(self.message) + len(self.nominated_node_name)
        if written > LONGEST:
            for field in ("phase", "reason", "message", "nominated_node_name"):
                _keep(self, field, short(getattr(self, field), LONGEST_NAME))
        entries = len(self.conditions) + len(self.container_statuses) + len(self.init_container_statuses)
        if entries > MOST_ENTRIES:
            for field in ("conditions", "container_statuses", "init_container_statuses"):
                msgspec.structs.force_setattr(self, field, getattr(self, field)[:MOST_ENTRIES])


class Pod(KubeObject, frozen=True, kw_only=True):
    """A pod; of its labels, annotations and owners only what is read (``ascend.kube.kept``)."""

    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def __post_init__(self) -> None:
        metadata = self.metadata
        labels, annotations = kept_labels(metadata.labels), kept_annotations(metadata.annotations)
        written = owners = metadata.owner_references
        if written and (len(written) > 1 or written[0].kept is not written[0]):
            owners = (controller.kept,) if (controller := metadata.controller) is not None else ()
        if labels is not metadata.labels or annotations is not metadata.annotations or owners is not written:
            kept = msgspec.structs.replace(metadata, labels=labels, annotations=annotations, owner_references=owners)
            msgspec.structs.force_setattr(self, "metadata", kept)

    @property
    def is_live(self) -> bool:
        """Whether the pod is not finished: containers may run, so it keeps its chips.

        See docs/spec/affinity-rules.md#free-chips.
        """
        return self.status.phase not in {"Succeeded", "Failed"}

    @property
    def is_gated(self) -> bool:
        """Whether the pod has scheduling gates beside the allocator's own: no scheduler considers it yet."""
        gates = self.spec.scheduling_gates
        return bool(gates) and any(gate.name != PLACEMENT_GATE for gate in gates)

    @property
    def waits_for_chips(self) -> bool:
        """Whether it requests chips or a vNPU, and is neither bound, finished nor gated."""
        return self.requests_chips and not self.spec.node_name and self.is_live and not self.is_gated

    @property
    def is_terminating(self) -> bool:
        """Whether it was deleted, but its containers may still run."""
        return bool(self.metadata.deletion_timestamp)

    @property
    def priority(self) -> int:
        """Its priority; the API server writes one on every pod."""
        return self.spec.priority or 0

    @property
    def container_requests(self) -> tuple[ContainerRequest, ...]:
        """The requests of its containers, in the order the kubelet admits them, without containers that request none.

        Raises:
            InvalidValue: a quantity is not a whole number.
        """
        return tuple(
            ContainerRequest(container.name, kind, chips)
            for container, kind in self.ordered_containers
            if (chips := container.chips)
        )

    @property
    def only_container(self) -> Container | None:
        """The container of a pod with a single container and no init containers; None for other pods."""
        return self.spec.containers[0] if len(self.spec.containers) == 1 and not self.spec.init_containers else None

    @property
    def ordered_containers(self) -> Iterator[tuple[Container, ContainerKind]]:
        """Its containers in the order the kubelet admits them, with their kinds."""
        for container in self.spec.init_containers:
            yield container, "sidecar" if container.restart_policy == "Always" else "init"
        for container in self.spec.containers:
            yield container, "app"

    @property
    def names_parts(self) -> bool:
        """Whether any container names a resource of the maker other than chips, as vNPUs and AI cores are."""
        for containers in (self.spec.containers, self.spec.init_containers):
            for container in containers:
                limits, requests = container.resources.limits, container.resources.requests
                if len(limits) > (RESOURCE in limits) or len(requests) > (RESOURCE in requests):
                    return True
        return False

    @property
    def requests_chips(self) -> bool:
        """Whether any container requests chips or vNPUs; a request of 0 does not count."""
        # Evaluated a dozen times for each decision, so without a generator.
        for containers in (self.spec.containers, self.spec.init_containers):
            for container in containers:
                if container.requests_chips:
                    return True
        return False


def read_object(raw: bytes | msgspec.Raw, kind: type[_Read]) -> _Read:
    """Read an object from JSON; other values as well.

    Raises:
        msgspec.MsgspecError: it can't be decoded.
    """
    read = msgspec.json.decode(raw, type=kind)
    if isinstance(read, Pod) and not read.spec.node_name and read.requests_chips:
        msgspec.structs.force_setattr(read.spec, "requirements", requirements_of(raw))
    return read


def kept_length(pod: Pod) -> int:
    """About how much text is kept of a pod, in characters; what all pods have is left out."""
    metadata, spec = pod.metadata, pod.spec
    texts = (*metadata.labels.items(), *metadata.annotations.items(), *spec.node_selector.items())
    conditions = sum(len(condition.message) for condition in pod.status.conditions)
    affinity = len(spec.affinity or "") + len(spec.tolerations or "")
    return sum(len(key) + len(value) for key, value in texts) + conditions + affinity + len(pod.status.message)


class Taint(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A taint of a node."""

    key: str = ""
    effect: str = ""
    value: str = ""


class NodeSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node's spec."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An address of a node."""

    type: str = ""
    address: str = ""


class NodeStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node's status."""

    allocatable: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(KubeObject, frozen=True, kw_only=True):
    """A node."""

    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Whether its condition Ready is True."""
        return any(condition.type == "Ready" and condition.status == "True" for condition in self.status.conditions)

    @property
    def internal_ip(self) -> str:
        """Its first InternalIP; empty if it has none."""
        return next((address.address for address in self.status.addresses if address.type == "InternalIP"), "")

    @property
    def allocatable_chips(self) -> int | None:
        """The number of allocatable chips; None if the resource is not registered: pods would run without chips."""
        return whole_number(self.status.allocatable.get(RESOURCE))

    @property
    def capacity_chips(self) -> int | None:
        """The capacity in chips, allocatable or not; None if the resource is not registered."""
        return whole_number(self.status.capacity.get(RESOURCE))

    @property
    def allocatable_cores(self) -> int | None:
        """The number of allocatable AI cores; None if the resource is not registered."""
        return whole_number(self.status.allocatable.get(RESOURCE_CORES))

    @property
    def allocatable_vnpus(self) -> dict[str, int]:
        """By size, the number of allocatable vNPUs, without sizes of which there are none."""
        found = ((suffix_of(name), whole_number(text)) for name, text in self.status.allocatable.items())
        return {suffix: number for suffix, number in found if suffix is not None and number}


class ConfigMap(KubeObject, frozen=True, kw_only=True):
    """A ConfigMap; short texts are kept once for all, to save memory: those of nodes say much the same."""

    data: dict[str, str] = {}

    def __post_init__(self) -> None:
        for key, text in self.data.items():
            if len(text) <= LONGEST_NAME:
                self.data[key] = sys.intern(text)


class LeaseSpec(msgspec.Struct, rename="camel", frozen=True):
    """A lease's spec."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(KubeObject, frozen=True, kw_only=True):
    """A lease."""

    spec: LeaseSpec = LeaseSpec()


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """A kind of object and its path in the API.

    Attributes:
        type: the type for decoding.
        kind: the kind in manifests.
        prefix: ``api/v1`` or ``apis/<group>/<version>``.
        plural: the name in paths.
        namespaced: whether objects are namespaced.
    """

    type: type[T]
    kind: str
    prefix: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The apiVersion in manifests: ``v1`` or ``<group>/<version>``."""
        return self.prefix.split("/", 1)[1]

    def path(self, *, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of a collection, an object or a subresource; no namespace means all of them.

        Names are quoted: they may come from other programs, and must not change the path.
        """
        parts = ["", self.prefix]
        if namespace and self.namespaced:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


PODS = Resource(Pod, "Pod", "api/v1", "pods")
NODES = Resource(Node, "Node", "api/v1", "nodes", namespaced=False)
CONFIG_MAPS = Resource(ConfigMap, "ConfigMap", "api/v1", "configmaps")
SERVICES = Resource(KubeObject, "Service", "api/v1", "services")
ENDPOINT_SLICES = Resource(KubeObject, "EndpointSlice", "apis/discovery.k8s.io/v1", "endpointslices")
LEADERS = Resource(KubeObject, "Leader", "apis/ascend-affinity.io/v1alpha1", "leaders")
EXPLANATIONS = Resource(KubeObject, "PodExplanation", "apis/ascend-affinity.io/v1alpha1", "podexplanations")
EVENTS = Resource(KubeObject, "Event", "apis/events.k8s.io/v1", "events")
CORE_EVENTS = Resource(KubeObject, "Event", "api/v1", "events")
LEASES = Resource(Lease, "Lease", "apis/coordination.k8s.io/v1", "leases")

JsonObject = dict[str, Any]
"""An object as sent to the API server."""


def is_newer(version: str, known: str) -> bool:
    """Return whether a resourceVersion is later than another; if they can't be compared, it counts as later."""
    # Kubernetes documents since 1.35 that these are growing numbers; they always were.
    return not (version.isdigit() and known.isdigit()) or int(version) > int(known)
