"""The values of a Binding: the pod's reference, the lease for posting, and the resulting assignment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.rules.request import counted_cores
from ascend.annotations import Grant
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod
from ascend.pod_devices import read_cores_grant, read_grant, read_vnpu_grant
from ascend.reasons import Reason
from ascend.templates import RESOURCE_CORES


@dataclass(frozen=True, slots=True)
class PodRef:
    """A pod as a scheduler names it."""

    namespace: str
    name: str
    uid: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @classmethod
    def of(cls, pod: Pod) -> "PodRef":
        """The reference to a pod."""
        return cls(pod.metadata.namespace, pod.name, pod.uid)


@dataclass(frozen=True, slots=True)
class BindingLease:
    """Permission to post one Binding now. Without leader election, the wanted timeout is all it needs.

    Attributes:
        timeout_s: within this time the request must have ended, here and in the API server.
        annotations: written with the Binding.
    """

    timeout_s: float
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Assignment:
    """The node and the chips of a pod.

    Attributes:
        node: the node.
        grant: the chips as written on the pod.
        repeated: the pod was bound before; nothing was done.
        annotations: what the caller has to write in the Binding it posts; empty if the pod is bound.
    """

    node: str
    grant: Grant
    repeated: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)


def grant_of(pod: Pod) -> Grant | None:
    """What the allocator wrote on a pod; None if it wrote nothing.

    Raises:
        InvalidValue: it is malformed.
    """
    annotations = pod.metadata.annotations
    return (
        read_grant(annotations)
        or read_vnpu_grant(annotations)
        or read_cores_grant(annotations, counted_cores(pod) if RESOURCE_CORES in annotations else 0)
    )


def read_assignment(pod: Pod) -> Assignment | None:
    """The node and chips of a bound pod; None if it is not bound.

    Raises:
        Refusal: it has finished, or is bound without a readable list of chips.
    """
    if not pod.is_live:
        raise Refusal(Reason.POD_FINISHED, f"pod {pod.key} is {pod.status.phase}")
    node = pod.spec.node_name
    if not node:
        return None
    try:
        grant = grant_of(pod)
    except InvalidValue as error:
        raise Refusal(Reason.UNREADABLE_POD, f"pod {pod.key} on node {node}: {error}") from error
    if grant is None:
        raise Refusal(Reason.ALREADY_PLACED, f"pod {pod.key} is bound to node {node}, but without chips")
    return Assignment(node, grant)


def bound_elsewhere(pod: str, node: str) -> Refusal:
    """The refusal to bind a pod (``namespace/name``) that is bound to another node."""
    return Refusal(Reason.ALREADY_PLACED, f"pod {pod} is bound to node {node}")


def recreated(ref: PodRef) -> Refusal:
    """The refusal for a pod that was deleted and recreated with the same name, without the new uid."""
    return Refusal(Reason.POD_GONE, f"pod {ref.key} was recreated: its uid is no longer {ref.uid}")
