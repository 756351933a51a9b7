"""A nomination, and what a pod's status says of it; no I/O."""

from dataclasses import dataclass
from typing import Final

from ascend.annotations import NOMINATED
from ascend.kube.objects import Pod

_GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""The message of the condition PodScheduled on a gated pod, by the API server."""


@dataclass(slots=True, eq=False)
class Nomination:
    """A nomination.

    Attributes:
        uid: the pod's uid.
        node: the node.
        since_s: when it was decided, or the pod was filtered last.
        failure: why the scheduler could not place the pod before.
        written: whether the informer has seen it.
        filtered: whether the scheduler has called ``filter`` since.
        namespace: the pod's namespace.
    """

    uid: str
    node: str
    since_s: float
    failure: str
    written: bool = False
    filtered: bool = False
    namespace: str = ""


def is_ours(pod: Pod) -> bool:
    """Whether a pod has a nomination, and an allocator has written it."""
    node = pod.status.nominated_node_name
    return bool(node) and node == pod.metadata.annotations.get(NOMINATED)


def failure_of(pod: Pod) -> str:
    """Why the scheduler could not place a pod when it tried last; empty if it did not try."""
    messages = (each.message for each in pod.status.conditions if each.type == "PodScheduled")
    message = next(messages, "")
    return "" if message == _GATED else message
