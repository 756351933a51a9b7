"""The pods of this node, in the order they came to it."""

import time
from collections import deque
from collections.abc import Callable, Iterator

from ascend.kube.objects import Pod
from device_plugin.rules.pod import NodePod, read_pod
from device_plugin.state.observable import Observable

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
        return any(ask.count == count for pod in self._torn_away.values() for ask in pod.container_requests)

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
        if known is not None and known.container_requests and known.live and not known.past_admission:
            self._torn_away[obj.uid] = known
            if len(self._torn_away) > REMEMBERED:
                del self._torn_away[next(iter(self._torn_away))]
        self._deleted.append(obj.uid)
        self._on_gone(obj.uid)
        self.changes.set(None)
