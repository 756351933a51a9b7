"""The pods of this node in the order of their arrival, with the facts that the plugin needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ascend.annotations import CLAIMED, KUBELET_IDS, Grant, read_predicate_time
from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.errors import InvalidValue
from ascend.job_files import job_name
from ascend.kube.containers import Container, whole_number
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.slices import ContainerRequest, effective_request
from ascend.vnpus import Vnpu
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType, type_of
from device_plugin.ledger.pod_annotations import (
    Given,
    foreign_keys,
    most_devices,
    read_core_grant,
    read_grant,
    read_real,
    read_real_cores,
)

CONFIG_SOURCE = "kubernetes.io/config.source"
"""An annotation that the kubelet sets in its own list: ``api``, or where a static pod comes from."""
CONFIG_MIRROR = "kubernetes.io/config.mirror"
"""An annotation of the object in the API server that shows a static pod. The kubelet does not admit that object."""

NOT_PLACED = (
    "the pod was not placed by the allocator; most likely its scheduler does not call it (docs/kube-scheduler.md), "
    "or its node was set by hand"
)
"""Why a pod has no annotation with its chips: the likeliest cause first."""

REMEMBERED = 1024
"""How many deleted pods are remembered: more than a kubelet can still list."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node, as far as one type of devices is concerned; these are called chips here, whole or not.

    Attributes:
        uid: the pod's uid.
        namespace: its namespace.
        name: its name.
        order: its position in the order of arrival.
        container_requests: what its containers request, in the order the kubelet admits them; empty for a pod without
            chips.
        count: how many chips it requests in total; 0 for a pod without chips.
        grant: what the allocator wrote on it; None if nothing, or nothing readable.
        problem: why it can't get the chips written on it, as a refusal's reason and sentence; None if it can.
        held: the chips it holds according to its annotations: those claimed, else those of the grant, else of
            AscendReal; a list of more chips than it requests is none. An allocation is the truth, if it has one.
        real: the chips of its AscendReal annotation.
        claimed: whether it has our claim; AscendReal alone can also be from Volcano or from the pod's author.
        live: neither Succeeded nor Failed.
        past_admission: whether the kubelet has admitted it, so that it has containers.
        is_mirror: whether it only shows a static pod, so that it is never under admission itself.
        job_name: the name that MindCluster's ConfigMaps for its job contain; empty if it has none.
        device_type: the type of devices that all of this is about.
        template: for AI cores, the template by which the chip of the grant is to be cut; empty for whole chips. What it
            holds are chips then, not cores.
        given: for AI cores, what its AscendReal annotation says.
        placed: whether it has the annotation of the grant, readable or not.
        counted: the text of its annotation kltDev.
        foreign: its annotations that name devices of other types, as a grant would.
    """

    uid: str
    namespace: str
    name: str
    order: int
    container_requests: tuple[ContainerRequest, ...]
    count: int
    grant: Grant | None
    problem: tuple[Reason, str] | None
    held: ChipSet
    real: ChipSet
    claimed: bool
    live: bool
    past_admission: bool
    is_mirror: bool
    job_name: str
    device_type: DeviceType = WHOLE_CHIPS
    template: str = ""
    given: Given | None = None
    placed: bool = False
    counted: str = ""
    foreign: frozenset[str] = frozenset()

    @property
    def claimed_vnpu(self) -> Vnpu | None:
        """The vNPU of the pod's claim, unless the pod has ended."""
        return self.given.vnpu if self.live and self.count and self.claimed and self.given is not None else None

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_pod(pod: Pod, order: int, device_type: DeviceType = WHOLE_CHIPS) -> NodePod:
    """Read a pod; never raises, because invalid content goes into ``problem``.

    Args:
        pod: the pod.
        order: its position in the order of arrival.
        device_type: the type of devices whose requests and annotations are read.
    """
    annotations = pod.metadata.annotations
    requests: tuple[ContainerRequest, ...] = ()
    grant, problem, template = None, None, ""
    try:
        requests = _requests(pod, device_type)
    except InvalidValue as error:
        problem = (Reason.INVALID_REQUEST, error.message)
    count = effective_request(requests)
    if problem is None and count and (sentence := _not_supported(pod, requests, count, device_type)) is not None:
        problem = (Reason.INVALID_REQUEST, sentence)
    try:
        if device_type == CORES:
            grant, template = read_core_grant(annotations)
        else:
            grant = read_grant(annotations, device_type)
    except InvalidValue as error:
        problem = problem or (Reason.MALFORMED_ANNOTATION, error.message)
    if problem is None and grant is not None and device_type != CORES and len(grant.chips) != count:
        named = device_type.count(len(grant.chips))
        problem = (Reason.WRONG_COUNT, f"annotation {device_type.resource} names {named}, the pod requests {count}")
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    # The plugin writes AscendReal: if another client makes it unreadable, the pod still gets its chips.
    real = read_real(annotations, device_type)
    claimed = bool(real) and read_predicate_time(annotations) == CLAIMED
    lists = [grant.chip_set if grant is not None else 0, real]
    most = most_devices(count, device_type)
    held = next((chips for chips in (reversed(lists) if claimed else lists) if 0 < chips.bit_count() <= most), 0)
    return NodePod(
        uid=pod.uid,
        namespace=pod.metadata.namespace,
        name=pod.name,
        order=order,
        container_requests=requests,
        count=count,
        grant=grant,
        problem=problem,
        held=held,
        real=real,
        claimed=claimed,
        live=pod.is_live,
        past_admission=bool(statuses) or pod.status.phase == "Running",
        is_mirror=CONFIG_MIRROR in annotations,
        job_name=job_name(pod.metadata.labels),
        device_type=device_type,
        template=template,
        given=read_real_cores(annotations) if device_type == CORES else None,
        placed=device_type.resource in annotations,
        counted=annotations.get(KUBELET_IDS, ""),
        foreign=foreign_keys(annotations, device_type),
    )


def _requests(pod: Pod, device_type: DeviceType) -> tuple[ContainerRequest, ...]:
    """Return what the containers of a pod request of a type, in the order the kubelet admits them.

    Raises:
        InvalidValue: a quantity is not a whole number.
    """
    return tuple(
        ContainerRequest(container.name, kind, number)
        for container, kind in pod.ordered_containers
        if (number := _requested(container, device_type))
    )


def _requested(container: Container, device_type: DeviceType) -> int:
    resource, resources = device_type.resource, container.resources
    text = resources.limits.get(resource) or resources.requests.get(resource) or "0"
    number = whole_number(text)
    if number is None:
        raise InvalidValue(
            f"container {container.name}: {resource}: {text[:40]!r} is not a whole number of {device_type.nouns}"
        )
    return number


def requested_types(pod: Pod) -> set[DeviceType]:
    """Return the types of devices that the containers of a pod request."""
    found = set()
    for container, _ in pod.ordered_containers:
        quantities = container.resources.requests | container.resources.limits
        for resource in (resource for resource, quantity in quantities.items() if quantity != "0"):
            if (device_type := type_of(resource)) is not None:
                found.add(device_type)
    return found


def _not_supported(pod: Pod, requests: tuple[ContainerRequest, ...], count: int, device_type: DeviceType) -> str | None:
    """Return why a pod with such requests gets no devices; None if it may get some."""
    if len(types := requested_types(pod)) > 1:
        resources = ", ".join(kind.resource for kind in sorted(types, key=lambda kind: kind.resource))
        return f"the pod requests devices of several types ({resources}); it can have those of one type only"
    if device_type.suffix and count > 1:
        return f"the pod requests {device_type.count(count)}; it can have one vNPU only"
    if device_type == CORES and len(requests) > 1:
        return f"{len(requests)} containers of the pod request AI cores; one can have some"
    return None


def is_static(listed: Pod) -> bool:
    """Return whether a pod of the kubelet's list is a static pod; elsewhere an author can forge the mark."""
    return listed.metadata.annotations.get(CONFIG_SOURCE, "api") != "api"


class NodePods:
    """The pods of this node; a handler for the reflector that watches them.

    Args:
        on_gone: receives the uid of a pod whose containers can't run any more.
        device_type: the type of devices whose requests and annotations are read.
        changes: what is set on every change; None for one of its own.
    """

    def __init__(
        self,
        on_gone: Callable[[str], None],
        device_type: DeviceType = WHOLE_CHIPS,
        changes: Observable[None] | None = None,
    ) -> None:
        self._on_gone = on_gone
        self.device_type = device_type
        self._pods: dict[str, NodePod] = {}
        self._deleted: dict[str, NodePod | None] = {}
        self._next_order = 0
        self.changes: Observable[None] = changes if changes is not None else Observable(None)
        """Set on every change."""

    def __iter__(self) -> Iterator[NodePod]:
        return iter(self._pods.values())

    @property
    def next_order(self) -> int:
        """The position of a pod that is not known yet."""
        return self._next_order + 1

    def get(self, uid: str) -> NodePod | None:
        """Return the pod with this uid."""
        return self._pods.get(uid)

    def read(self, obj: Pod, order: int) -> NodePod:
        """Read a pod without taking it over."""
        return read_pod(obj, order, self.device_type)

    def has_moved_on(self, uid: str) -> bool:
        """Return whether the watch showed the pod as admitted, ended or deleted; a list that differs is outdated."""
        pod = self._pods.get(uid)
        return uid in self._deleted if pod is None else pod.past_admission or not pod.live

    def deleted_early(self, uid: str) -> NodePod | None:
        """Return a pod deleted before its admission was seen: the kubelet may still be admitting it."""
        return self._deleted.get(uid)

    def ended_unseen(self, pod: NodePod) -> None:
        """Note that the API server no longer has a pod, which only the kubelet has shown."""
        if pod.uid not in self._pods:
            self._note_deleted(pod.uid, pod)

    def on_apply(self, obj: Pod) -> None:
        """Take over a pod that is new or has changed."""
        known = self._pods.get(obj.uid)
        if known is None:
            self._next_order += 1
        self._pods[obj.uid] = self.read(obj, known.order if known is not None else self._next_order)
        if not obj.is_live:
            self._on_gone(obj.uid)
        self.changes.set(None)

    def on_delete(self, obj: Pod) -> None:
        """Remove a pod."""
        known = self._pods.pop(obj.uid, None)
        self._note_deleted(obj.uid, known if known is not None and known.live and not known.past_admission else None)
        self._on_gone(obj.uid)
        self.changes.set(None)

    def _note_deleted(self, uid: str, early: NodePod | None) -> None:
        self._deleted[uid] = early
        if len(self._deleted) > REMEMBERED:
            del self._deleted[next(iter(self._deleted))]
