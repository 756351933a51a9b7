"""The states of a pod on the way to its node, and the nomination in the pod's status; no I/O."""

from enum import Enum, auto
from typing import Final

import msgspec

from allocator.settings import Settings
from ascend.annotations import NOMINATED
from ascend.kube.objects import Pod

_GATED: Final = "Scheduling is blocked due to non-empty scheduling gates"
"""The message of the condition PodScheduled on a gated pod, by the API server."""


class State(Enum):
    """The state of a pod that waits for a node."""

    QUEUED = auto()
    """It is in line for a nomination."""

    NEXT = auto()
    """Its scheduler filters it before a nomination could reach it."""

    ORDERED = auto()
    """A node is chosen, and the nomination is being written."""

    SEEN = auto()
    """The informer has seen the nomination."""

    LEFT = auto()
    """It is left to its scheduler."""

    STALE = auto()
    """It is left to its scheduler, and its nomination is to be cleared: the informer has not seen that yet."""


NOMINATED_STATES: Final = frozenset({State.ORDERED, State.SEEN})
"""The states of pods for which a node is nominated, or about to be."""


class Entry(msgspec.Struct, eq=False, gc=False):
    """A pod that waits for a node.

    Attributes:
        uid: its uid.
        namespace: its namespace.
        state: its state.
        since_s: since when, or when the pod was filtered last.
        is_filtered: whether its scheduler has called ``filter``; of a nominated pod, since it was nominated.
        node: the nominated node, also if its nomination is to be cleared.
        failure: why its scheduler could not place it before it was nominated.
        has_seat: whether its chips are reserved in the plan of a gang.
    """

    uid: str
    namespace: str
    state: State
    since_s: float
    is_filtered: bool = False
    node: str = ""
    failure: str = ""
    has_seat: bool = False

    @property
    def is_nominated(self) -> bool:
        """Whether a node is nominated, or about to be."""
        return self.state in NOMINATED_STATES


def is_ours(pod: Pod) -> bool:
    """Whether a pod has a nomination, and an allocator has written it."""
    node = pod.status.nominated_node_name
    return bool(node) and node == pod.metadata.annotations.get(NOMINATED)


def failure_of(pod: Pod) -> str:
    """Why the scheduler could not place a pod when it tried last; empty if it did not try."""
    messages = (condition.message for condition in pod.status.conditions if condition.type == "PodScheduled")
    message = next(messages, "")
    return "" if message == _GATED else message


def is_served(pod: Pod, settings: Settings) -> bool:
    """Whether a pod waits for chips, for a scheduler that is served, and for nothing else but our own gate."""
    return pod.waits_for_chips and not pod.is_terminating and pod.spec.scheduler_name in settings.scheduler_names
