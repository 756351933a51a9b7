"""The pods of this node, in the order they came to it."""

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
