"""The pods of this node, in the order they came to it, and what the plugin needs to know about each."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ascend.annotations import ALLOCATED, CLAIMED, REAL, Grant, held_chips, read_grant, read_predicate_time
from ascend.chips import ChipSet, count_chips
from ascend.daemon.observable import Observable
from ascend.errors import InvalidValue
from ascend.job_files import job_name
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.slices import ContainerRequest, effective_request

CONFIG_SOURCE = "kubernetes.io/config.source"
"""An annotation that the kubelet sets in its own list: ``api``, or where a static pod comes from."""
CONFIG_MIRROR = "kubernetes.io/config.mirror"
"""An annotation of the object in the API server that shows a static pod. The kubelet does not admit that object."""

REMEMBERED = 1024
"""How many deleted pods are remembered: more than a kubelet can still list."""


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node.

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
        held: the chips it holds according to its annotations.
        real: the chips of its AscendReal annotation.
        claimed: whether it has our claim; AscendReal alone can also be from Volcano or from the pod's author.
        live: neither Succeeded nor Failed.
        past_admission: whether the kubelet has admitted it, so that it has containers.
        is_mirror: whether it only shows a static pod, so that it is never under admission itself.
        job_name: the name that MindCluster's ConfigMaps for its job contain; empty if it has none.
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

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_pod(pod: Pod, order: int) -> NodePod:
    """Read a pod; never raises, because invalid content goes into ``problem``."""
    annotations = pod.metadata.annotations
    requests: tuple[ContainerRequest, ...] = ()
    grant, held, problem = None, 0, None
    try:
        requests = pod.container_requests
    except InvalidValue as error:
        problem = (Reason.INVALID_REQUEST, error.message)
    count = effective_request(requests)
    try:
        grant = read_grant(annotations)
    except InvalidValue as error:
        problem = (Reason.MALFORMED_ANNOTATION, error.message)
    if problem is None and grant is not None and len(grant.chips) != count:
        named = count_chips(len(grant.chips))
        problem = (Reason.WRONG_COUNT, f"annotation {ALLOCATED} names {named}, the pod requests {count}")
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    real = _real_chips(annotations)
    try:
        held = held_chips(annotations)
    except InvalidValue:
        # The plugin writes AscendReal: if another client makes it unreadable, the pod still gets its chips.
        held = real | (grant.chip_set if grant is not None else 0)
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
        claimed=bool(real) and read_predicate_time(annotations) == CLAIMED,
        live=pod.is_live,
        past_admission=bool(statuses) or pod.status.phase == "Running",
        is_mirror=CONFIG_MIRROR in annotations,
        job_name=job_name(pod.metadata.labels),
    )


def _real_chips(annotations: Mapping[str, str]) -> ChipSet:
    try:
        return held_chips({REAL: annotations.get(REAL, "")})
    except InvalidValue:
        return 0


def is_static(listed: Pod) -> bool:
    """Return whether a pod of the kubelet's own list is a static pod; in other lists its author can forge that."""
    return listed.metadata.annotations.get(CONFIG_SOURCE, "api") != "api"


class NodePods:
    """The pods of this node; a handler for the reflector that watches them.

    Args:
        on_gone: receives the uid of a pod whose containers can't run any more.
    """

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._pods: dict[str, NodePod] = {}
        self._deleted: dict[str, NodePod | None] = {}
        self._next_order = 0
        self.changes: Observable[None] = Observable(None)
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

    def has_moved_on(self, uid: str) -> bool:
        """Return whether the watch showed the pod as admitted, ended or deleted; a list that differs is outdated."""
        pod = self._pods.get(uid)
        return uid in self._deleted if pod is None else pod.past_admission or not pod.live

    def deleted_early(self, uid: str) -> NodePod | None:
        """Return a pod that was deleted before it was seen admitted: the kubelet may still be admitting it."""
        return self._deleted.get(uid)

    def ended_unseen(self, pod: NodePod) -> None:
        """Note that the API server no longer has a pod, which only the kubelet has shown."""
        if pod.uid not in self._pods:
            self._note_deleted(pod.uid, pod)

    def applied(self, obj: Pod) -> None:
        """Take over a pod that is new or has changed."""
        known = self._pods.get(obj.uid)
        if known is None:
            self._next_order += 1
        self._pods[obj.uid] = read_pod(obj, known.order if known is not None else self._next_order)
        if not obj.is_live:
            self._on_gone(obj.uid)
        self.changes.set(None)

    def deleted(self, obj: Pod) -> None:
        """Remove a pod."""
        known = self._pods.pop(obj.uid, None)
        self._note_deleted(obj.uid, known if known is not None and known.live and not known.past_admission else None)
        self._on_gone(obj.uid)
        self.changes.set(None)

    def _note_deleted(self, uid: str, early: NodePod | None) -> None:
        self._deleted[uid] = early
        if len(self._deleted) > REMEMBERED:
            del self._deleted[next(iter(self._deleted))]
