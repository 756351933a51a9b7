"""The pods of this node, in the order they came to it."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ascend.annotations import ALLOCATED, CLAIMED, REAL, Grant, held_chips, read_grant, read_predicate_time
from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from ascend.slices import Ask, effective_request


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
    asks: tuple[Ask, ...]
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
    asks: tuple[Ask, ...] = ()
    grant, held, problem = None, 0, None
    try:
        asks = pod.asks
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
        asks=asks,
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


REMEMBERED = 1024
"""How many deleted pods are remembered: more than a kubelet can still have on its list."""


class NodePods:
    """The pods of this node; a handler for the reflector that watches them.

    Args:
        on_gone: told the uid of a pod whose containers can't run any more.
        now_s: a monotonic clock.
    """

    def __init__(self, on_gone: Callable[[str], None], now_s: Callable[[], float] = time.monotonic) -> None:
        self._on_gone = on_gone
        self._now_s = now_s
        self._pods: dict[str, NodePod] = {}
        self._came_s: dict[str, float] = {}
        self._deleted: deque[str] = deque(maxlen=REMEMBERED)
        self._next_order = 0
        self._torn_away: dict[str, NodePod] = {}
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

    def age_s(self, uid: str) -> float:
        """How long ago the watch first showed a pod, in seconds; 0 where it has not yet."""
        came_s = self._came_s.get(uid)
        return self._now_s() - came_s if came_s is not None else 0.0

    def torn_away(self, uid: str) -> NodePod | None:
        """A pod that was deleted before it was seen admitted: the kubelet may be admitting it still."""
        return self._torn_away.get(uid)

    def was_torn_away(self, count: int) -> bool:
        """Whether a pod was torn away of which a container asks for as many chips."""
        return any(ask.count == count for pod in self._torn_away.values() for ask in pod.asks)

    def settle(self, order: int) -> None:
        """The kubelet has come to the pod with this number: it is done with those torn away before."""
        self._torn_away = {uid: pod for uid, pod in self._torn_away.items() if pod.order > order}

    def applied(self, obj: Pod) -> None:
        """A pod came to this node or changed."""
        known = self._pods.get(obj.uid)
        if known is None:
            self._next_order += 1
            self._came_s[obj.uid] = self._now_s()
        self._pods[obj.uid] = read_pod(obj, known.order if known is not None else self._next_order)
        if not obj.is_live:
            self._on_gone(obj.uid)
        self.changes.set(None)

    def deleted(self, obj: Pod) -> None:
        """A pod is gone."""
        known = self._pods.pop(obj.uid, None)
        self._came_s.pop(obj.uid, None)
        if known is not None and known.asks and known.live and not known.past_admission:
            self._torn_away[obj.uid] = known
            if len(self._torn_away) > REMEMBERED:
                del self._torn_away[next(iter(self._torn_away))]
        self._deleted.append(obj.uid)
        self._on_gone(obj.uid)
        self.changes.set(None)
