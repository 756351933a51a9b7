"""What matters about a pod of this node, read from its object."""

from dataclasses import dataclass

from ascend.annotations import ALLOCATED, CLAIMED, REAL, Grant, held_chips, read_grant, read_predicate_time
from ascend.chips import ChipSet
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod


@dataclass(frozen=True, slots=True)
class NodePod:
    """A pod of this node.

    Attributes:
        uid: the pod's uid.
        namespace: its namespace.
        name: its name.
        order: earlier pods have smaller numbers.
        count: how many chips its container asks for; 0 for a pod without.
        grant: what the allocator wrote on it; None where it wrote nothing, or nothing readable.
        problem: what is wrong with its request or its annotation; None where nothing is.
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
    count: int
    grant: Grant | None
    problem: str | None
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
    count, grant, held, real, problem = 0, None, 0, 0, None
    try:
        asking = pod.npu_containers
        count = asking[0].chips if asking else 0
        if len(asking) > 1:
            problem = f"{len(asking)} containers ask for chips, one is supported"
        grant = read_grant(annotations)
        held = held_chips(annotations)
        real = held if annotations.get(REAL) else 0
    except InvalidValue as error:
        problem = error.message
    if problem is None and grant is not None and len(grant.chips) != count:
        problem = f"annotation {ALLOCATED} names {len(grant.chips)} chips, the container asks for {count}"
    statuses = (*pod.status.container_statuses, *pod.status.init_container_statuses)
    return NodePod(
        uid=pod.uid,
        namespace=pod.metadata.namespace,
        name=pod.name,
        order=order,
        count=count,
        grant=grant,
        problem=problem,
        held=held,
        real=real,
        claimed=bool(real) and read_predicate_time(annotations) == CLAIMED,
        live=pod.is_live,
        past_admission=bool(statuses) or pod.status.phase == "Running",
    )
