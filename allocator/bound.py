"""A pod on its node with its chips: what a Binding is asked for by, and what the pod's object says has become of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.decide import SETTLED
from ascend.annotations import Grant, read_grant
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod


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


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod on its node with its chips written on it.

    Attributes:
        node: the node.
        grant: what is written on the pod.
        repeated: this is the answer to an earlier question; nothing was done.
        annotations: all that goes with a Binding the caller makes by itself; empty where it is made already.
    """

    node: str
    grant: Grant
    repeated: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)


def read_bound(pod: Pod) -> Bound | None:
    """How a pod is bound; None where it isn't.

    Raises:
        Refusal: it is finished, or bound without a readable list of chips.
    """
    if not pod.is_live:
        raise Refusal("PodFinished", f"pod {pod.key} is {pod.status.phase}")
    node = pod.spec.node_name
    if not node:
        return None
    try:
        grant = read_grant(pod.metadata.annotations)
    except InvalidValue as error:
        raise Refusal("UnreadablePod", f"pod {pod.key} on node {node}: {error}") from error
    if grant is None:
        raise Refusal(SETTLED, f"pod {pod.key} is bound to node {node}, but without chips")
    return Bound(node, grant)


def elsewhere(pod: str, node: str) -> Refusal:
    """Why a pod can't be bound where it was asked for."""
    return Refusal(SETTLED, f"pod {pod} is bound to node {node}")
