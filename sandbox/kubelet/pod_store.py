"""The pods that this kubelet knows, and the status it last determined for each of them."""

from collections.abc import Mapping

from ascend.kube.objects import JsonObject
from sandbox.pods import TERMINAL_PHASES, FullPod


class PodStore:
    """The pods of this kubelet, in the order in which they came.

    A pod is *active*, and may hold devices, until the kubelet rejects it, it finishes, or its containers are stopped
    for its deletion (docs/spec/kubelet.md#freed-devices, docs/spec/kubelet.md#pod-resources-api).
    """

    def __init__(self) -> None:
        self._pods: dict[str, FullPod] = {}
        self._statuses: dict[str, JsonObject] = {}
        self._stopped: set[str] = set()
        self._keys: dict[str, str] = {}

    @property
    def pods(self) -> Mapping[str, FullPod]:
        """All pods by uid, as last received from the API server."""
        return self._pods

    def put(self, pod: FullPod) -> None:
        """Add or replace a pod."""
        self._pods[pod.uid] = pod
        self._keys[pod.uid] = pod.key

    def remove(self, uid: str) -> None:
        """Remove a pod that the API server has deleted."""
        self._pods.pop(uid, None)
        self._statuses.pop(uid, None)
        self._stopped.discard(uid)

    def set_status(self, uid: str, status: JsonObject) -> None:
        """Set the status that the kubelet determined; the API server may not have it yet."""
        self._statuses[uid] = status

    def mark_stopped(self, uid: str) -> None:
        """Record that the pod's containers are stopped for its deletion."""
        self._stopped.add(uid)

    def key(self, uid: str) -> str:
        """Return ``namespace/name`` of a pod, even of a deleted one; the uid if the pod is unknown."""
        return self._keys.get(uid, uid)

    def status(self, uid: str) -> JsonObject:
        """Return a pod's status: that of the API server, overlaid with that of the kubelet."""
        pod = self._pods.get(uid)
        return {**(pod.status if pod is not None else {}), **self._statuses.get(uid, {})}

    def is_active(self, uid: str) -> bool:
        """Whether a pod may hold devices."""
        pod = self._pods.get(uid)
        terminal = pod is None or pod.phase in TERMINAL_PHASES or self.status(uid).get("phase") in TERMINAL_PHASES
        return not terminal and uid not in self._stopped

    def active(self) -> list[FullPod]:
        """Return the active pods."""
        return [pod for uid, pod in self._pods.items() if self.is_active(uid)]
