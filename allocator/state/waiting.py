"""The pods that wait for chips, whether a scheduler has called for them or not; and who is called as pods change."""

from collections.abc import Callable, Iterator

from allocator.rules.unsupported import requests_other_devices
from ascend.kube.objects import Pod


class WaitingPods:
    """The live pods without node or gates that request chips, or devices that the allocator does not place."""

    def __init__(self) -> None:
        self._pods: dict[str, Pod] = {}
        self._listeners: list[Callable[[Pod], None]] = []
        self._on_bound: list[Callable[[Pod], None]] = []

    def __iter__(self) -> Iterator[Pod]:
        return iter(self._pods.values())

    def __len__(self) -> int:
        return len(self._pods)

    def subscribe(self, appeared: Callable[[Pod], None]) -> None:
        """Have a function called with every pod that begins to wait."""
        self._listeners.append(appeared)

    def subscribe_bound(self, bound: Callable[[Pod], None]) -> None:
        """Have a function called with every pod that has waited and is bound now."""
        self._on_bound.append(bound)

    def put(self, pod: Pod) -> None:
        """Add, update or remove a pod, according to its state."""
        if pod.spec.node_name or not pod.is_live or pod.is_terminating or pod.is_gated:
            if self._pods.pop(pod.uid, None) is not None and pod.spec.node_name:
                for bound in self._on_bound:
                    bound(pod)
            return
        if not (pod.requests_chips or requests_other_devices(pod)):
            return
        is_new = pod.uid not in self._pods
        self._pods[pod.uid] = pod
        if is_new:
            for appeared in self._listeners:
                appeared(pod)

    def discard(self, uid: str) -> None:
        """Remove a pod."""
        self._pods.pop(uid, None)


class PodFollowers:
    """Calls each follower, in the order in which they were added, when the state includes the change."""

    def __init__(self) -> None:
        self._applied: list[Callable[[Pod], None]] = []
        self._deleted: list[Callable[[Pod], None]] = []

    def add(self, applied: Callable[[Pod], None], deleted: Callable[[Pod], None]) -> None:
        """Add a follower: what is called after a pod was added or updated, and after it was removed."""
        self._applied.append(applied)
        self._deleted.append(deleted)

    def on_pod(self, pod: Pod) -> None:
        """A pod was added or updated."""
        for follower in self._applied:
            follower(pod)

    def on_deletion(self, pod: Pod) -> None:
        """A pod was removed."""
        for follower in self._deleted:
            follower(pod)
