"""The pods of this node, in the order they came to it, with what matters about each read once."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ascend.annotations import ALLOCATED, REAL, Grant, held_chips, read_grant
from ascend.chips import ChipSet
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from device_plugin.state.observable import Observable

REMEMBERED = 1024
"""How many deleted pods are remembered: more than a kubelet can still have on its list."""


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
        claimed: it carries AscendReal.
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
    claimed: bool
    live: bool
    past_admission: bool

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def read_pod(pod: Pod, order: int) -> NodePod:
    """What matters about a pod; never raises, what is wrong goes into ``problem``."""
    count, grant, held, problem = 0, None, 0, None
    try:
        asking = pod.npu_containers
        count = asking[0].chips if asking else 0
        if len(asking) > 1:
            problem = f"{len(asking)} containers ask for chips, one is supported"
        held = held_chips(pod.metadata.annotations)
        grant = read_grant(pod.metadata.annotations)
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
        claimed=bool(pod.metadata.annotations.get(REAL)),
        live=pod.is_live,
        past_admission=bool(statuses) or pod.status.phase == "Running",
    )


class NodePods:
    """The pods of this node; a handler for the reflector that watches them.

    Args:
        on_gone: told the uid of a pod whose containers can't run any more.
    """

    def __init__(self, on_gone: Callable[[str], None]) -> None:
        self._on_gone = on_gone
        self._pods: dict[str, NodePod] = {}
        self._deleted: deque[str] = deque(maxlen=REMEMBERED)
        self._next_order = 0
        self.torn_away: set[int] = set()
        """Sizes of pods deleted before they were seen admitted: the kubelet may yet be admitting one of such a size."""
        self.changes: Observable[None] = Observable(None)
        """Set after every change."""

    def __iter__(self) -> Iterator[NodePod]:
        return iter(self._pods.values())

    @property
    def next_order(self) -> int:
        """The number of a pod that is not known yet."""
        return self._next_order + 1

    def get(self, uid: str) -> NodePod | None:
        """The pod with this uid."""
        return self._pods.get(uid)

    def has_moved_on(self, uid: str) -> bool:
        """The watch has shown the pod admitted, ended or deleted: a list in which it still waits is older."""
        pod = self._pods.get(uid)
        return uid in self._deleted if pod is None else pod.past_admission or not pod.live

    def applied(self, obj: Pod) -> None:
        """A pod came to this node or changed."""
        known = self._pods.get(obj.uid)
        if known is None:
            self._next_order += 1
        self._pods[obj.uid] = read_pod(obj, known.order if known is not None else self._next_order)
        if not obj.is_live:
            self._on_gone(obj.uid)
        self.changes.set(None)

    def deleted(self, obj: Pod) -> None:
        """A pod is gone."""
        known = self._pods.pop(obj.uid, None)
        if known is not None and known.live and not known.past_admission:
            self.torn_away.add(known.count)
        self._deleted.append(obj.uid)
        self._on_gone(obj.uid)
        self.changes.set(None)
