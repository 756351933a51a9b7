"""What matters about a pod of this node, read from its object."""

from collections.abc import Mapping
from dataclasses import dataclass

from ascend.annotations import ALLOCATED, CLAIMED, REAL, Grant, held_chips, read_grant, read_predicate_time
from ascend.chips import ChipSet
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from ascend.slices import ContainerRequest, effective_request


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node.

    Attributes:
        uid: the pod's uid.
        namespace: its namespace.
        name: its name.
        order: earlier pods have smaller numbers.
        asks: what its containers ask for, in the order the kubelet asks for them; empty for a pod without.
        count: how many chips it needs in all; 0 for a pod without.
        grant: what the allocator wrote on it; None where it wrote nothing, or nothing readable.
        problem: why it can't get the chips written on it, as a refusal's reason and sentence; None where it can.
        held: the chips it holds by its annotations.
        real: the chips of its AscendReal.
        claimed: it carries our claim; AscendReal alone may be there before (Volcano's, or its author's invention).
        live: neither Succeeded nor Failed.
        past_admission: the kubelet has admitted it (it has containers).
    """

    uid: str
    namespace: str
    name: str
    order: int
    container_requests: tuple[ContainerRequest, ...]
    count: int
    grant: Grant | None
    problem: tuple[str, str] | None
    held: ChipSet
    real: ChipSet
    claimed: bool
    live: bool
    past_admission: bool

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_pod(pod: Pod, order: int) -> NodePod:
    """What matters about a pod; never raises, what is wrong goes into ``problem``."""
    annotations = pod.metadata.annotations
    asks: tuple[ContainerRequest, ...] = ()
    grant, held, problem = None, 0, None
    try:
        asks = pod.container_requests
    except InvalidValue as error:
        problem = ("InvalidRequest", error.message)
    count = effective_request(asks)
    try:
        grant = read_grant(annotations)
    except InvalidValue as error:
        problem = ("MalformedAnnotation", error.message)
    if problem is None and grant is not None and len(grant.chips) != count:
        problem = ("WrongCount", f"annotation {ALLOCATED} names {len(grant.chips)} chips, the pod asks for {count}")
    try:
        held = held_chips(annotations)
    except InvalidValue:
        # AscendReal is ours to write: whoever spoils it does not keep the pod from its chips.
        held = grant.chip_set if grant is not None else 0
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    real = _real_chips(annotations)
    return NodePod(
        uid=pod.uid,
        namespace=pod.metadata.namespace,
        name=pod.name,
        order=order,
        container_requests=asks,
        count=count,
        grant=grant,
        problem=problem,
        held=held,
        real=real,
        claimed=bool(real) and read_predicate_time(annotations) == CLAIMED,
        live=pod.is_live,
        past_admission=bool(statuses) or pod.status.phase == "Running",
    )


def _real_chips(annotations: Mapping[str, str]) -> ChipSet:
    try:
        return held_chips({REAL: annotations.get(REAL, "")})
    except InvalidValue:
        return 0
