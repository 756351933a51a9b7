"""The kubelet's own list of pods, and what it last said about each of them."""

from collections.abc import Mapping

from ascend.kube.objects import JsonObject
from sandbox.pods import TERMINAL_PHASES, FullPod


class PodBook:
    """The pods this kubelet knows, in the order it came to know them.

    A pod is *active* unless its containers are known to be gone for good: the kubelet rejected it, it finished, or it
    was stopped for deletion (spec/kubernetes.md §1.6 "Freed devices", §2).
    """

    def __init__(self) -> None:
        self._pods: dict[str, FullPod] = {}
        self._statuses: dict[str, JsonObject] = {}
        self._stopped: set[str] = set()
        self._keys: dict[str, str] = {}

    @property
    def pods(self) -> Mapping[str, FullPod]:
        """All pods by uid, as the API server last had them."""
        return self._pods

    def put(self, pod: FullPod) -> None:
        """A pod is new or has changed."""
        self._pods[pod.uid] = pod
        self._keys[pod.uid] = pod.key

    def remove(self, uid: str) -> None:
        """The API server has a pod no more."""
        self._pods.pop(uid, None)
        self._statuses.pop(uid, None)
        self._stopped.discard(uid)

    def say(self, uid: str, status: JsonObject) -> None:
        """The kubelet has come to a status of a pod, on its way to the API server."""
        self._statuses[uid] = status

    def stop(self, uid: str) -> None:
        """The pod's containers are stopped for good."""
        self._stopped.add(uid)

    def key(self, uid: str) -> str:
        """``namespace/name`` of a pod, gone or not; the uid itself where it was never seen."""
        return self._keys.get(uid, uid)

    def status(self, uid: str) -> JsonObject:
        """A pod's status with what the kubelet has come to laid over what the API server has."""
        pod = self._pods.get(uid)
        return {**(pod.status if pod is not None else {}), **self._statuses.get(uid, {})}

    def is_active(self, uid: str) -> bool:
        """Whether a pod may hold devices."""
        pod = self._pods.get(uid)
        terminal = pod is None or pod.phase in TERMINAL_PHASES or self.status(uid).get("phase") in TERMINAL_PHASES
        return not terminal and uid not in self._stopped

    def active(self) -> list[FullPod]:
        """The pods that may hold devices."""
        return [pod for uid, pod in self._pods.items() if self.is_active(uid)]
