"""The calls and answers of Volcano's extender plugin on the wire (docs/spec/kube-api.md#volcano-extender).

Its objects are Go structs without names for JSON, so Go's field names are the keys. They are large: a node has every
pod on it. Only what is needed is decoded.
"""

from enum import IntEnum
from typing import TypeAlias, TypeVar

import msgspec

from allocator.binding.binding import PodRef
from allocator.serving.extender_wire import NamedPod
from ascend.errors import UNREADABLE, InvalidValue

_T = TypeVar("_T")

Body: TypeAlias = bytes | msgspec.Raw | InvalidValue
"""The body of a call; or why it was not received, which the answer of each verb says in its own way."""


class TaskStatus(IntEnum):
    """The statuses of tasks that are told apart here; each is a bit."""

    ALLOCATED = 2
    BINDING = 8
    BOUND = 16


PLACED = frozenset({TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND})
"""Statuses of tasks that have a node, although their pods may not be bound yet."""


class Amounts(msgspec.Struct, gc=False):
    """Amounts of resources, in thousandths.

    Attributes:
        scalar: of those besides CPU and memory, by name.
    """

    scalar: dict[str, float] | None = msgspec.field(name="ScalarResources", default=None)


class Task(msgspec.Struct, gc=False):
    """A pod as Volcano sees it.

    Attributes:
        uid: its uid.
        node_name: the node on which it is, or is placed; a pod keeps its name there also after that was undone.
        status: its status.
        pod: what names the pod.
        requested: what it requests.
    """

    uid: str = msgspec.field(name="UID")
    pod: NamedPod = msgspec.field(name="Pod")
    node_name: str = msgspec.field(name="NodeName", default="")
    status: int = msgspec.field(name="Status", default=0)
    requested: Amounts = msgspec.field(name="InitResreq", default_factory=Amounts)

    @property
    def ref(self) -> PodRef:
        """The pod."""
        return PodRef(self.pod.metadata.namespace, self.pod.metadata.name, self.uid)


class NodeInfo(msgspec.Struct, gc=False):
    """A node with its pods, and the amounts left beside them, terminating pods included."""

    name: str = msgspec.field(name="Name")
    tasks: dict[str, Task] | None = msgspec.field(name="Tasks", default=None)
    idle: Amounts = msgspec.field(name="Idle", default_factory=Amounts)

    def lacks(self, requested: Amounts) -> bool:
        """Whether too little is left for a pod, so that it would have to wait for terminating pods."""
        idle = self.idle.scalar or {}
        return any(amount > idle.get(name, 0.0) for name, amount in (requested.scalar or {}).items())


class JobInfo(msgspec.Struct, gc=False):
    """A job, with its pods."""

    tasks: dict[str, Task] | None = msgspec.field(name="Tasks", default=None)


class PredicateArgs(msgspec.Struct):
    """Whether a pod fits on a node."""

    task: Task
    node: NodeInfo


class PrioritizeArgs(msgspec.Struct):
    """Which nodes are better for a pod."""

    task: Task
    nodes: list[NodeInfo] | None = None


class EvictArgs(msgspec.Struct):
    """Which of some pods on a node may be evicted for a pod."""

    evictor: Task
    evictees: list[msgspec.Raw] | None = None


class JobArgs(msgspec.Struct):
    """A question about a job."""

    job: JobInfo


class TaskArgs(msgspec.Struct):
    """A pod was placed, or that was undone."""

    task: Task


class PredicateAnswer(msgspec.Struct):
    """Why a pod does not fit; an empty status means that it does, whatever the code."""

    status: str = ""
    code: int = 0


class StatusCode(IntEnum):
    """The codes of a refusal."""

    ERROR = 1
    UNSCHEDULABLE = 2
    UNRESOLVABLE = 3


class PrioritizeAnswer(msgspec.Struct, rename="camel"):
    """The scores of the nodes."""

    node_score: dict[str, float] = {}
    error_message: str = ""


class StatusAnswer(msgspec.Struct):
    """0: no opinion; above: yes; below: no."""

    status: int = 0


class VictimsAnswer(msgspec.Struct):
    """The pods that may be evicted; with status 0, no opinion."""

    status: int = 0
    victims: list[msgspec.Raw] | None = None


class OverusedAnswer(msgspec.Struct):
    """Whether a queue uses more than it should."""

    overused: bool = False


class ReadyAnswer(msgspec.Struct):
    """Whether a job may start."""

    status: bool = True


class ErrorAnswer(msgspec.Struct, rename="camel"):
    """Why a placement is not possible; empty if it is."""

    error_message: str = ""


class Nothing(msgspec.Struct):
    """An empty answer."""


def decode(body: Body, kind: type[_T]) -> _T:
    """Decode a call.

    Raises:
        InvalidValue: it can't be decoded; the message names the field.
    """
    if isinstance(body, InvalidValue):
        raise body
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise InvalidValue(f"the call of Volcano's extender plugin can't be read: {error}") from error
