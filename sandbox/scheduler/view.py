"""What the scheduler knows of the cluster: nodes, pods, and where it assumes pods to be that it is binding."""

from collections import Counter
from collections.abc import Mapping

from ascend.errors import InvalidValue
from ascend.kube.objects import Node
from sandbox.pods import TERMINAL_PHASES, FullPod


class ClusterView:
    """Nodes and pods as last seen, and assumptions about pods that are being bound."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._pods: dict[str, FullPod] = {}
        self._assumed: dict[str, str] = {}

    def pod(self, uid: str) -> FullPod | None:
        """A pod as last seen, or None."""
        return self._pods.get(uid)

    def put(self, pod: FullPod) -> None:
        """A pod is new or has changed; once it is seen bound, nothing has to be assumed about it."""
        self._pods[pod.uid] = pod
        if pod.node_name:
            self._assumed.pop(pod.uid, None)

    def remove(self, uid: str) -> None:
        """A pod is gone."""
        self._pods.pop(uid, None)
        self._assumed.pop(uid, None)

    def assume(self, uid: str, node: str) -> None:
        """A pod is about to be bound to a node: it counts there from now on."""
        self._assumed[uid] = node

    def forget(self, uid: str) -> None:
        """The binding failed."""
        self._assumed.pop(uid, None)

    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is being bound."""
        return uid in self._assumed

    def used(self) -> Mapping[str, Counter[str]]:
        """What pods take of every extended resource, by node."""
        used: dict[str, Counter[str]] = {name: Counter() for name in self.nodes}
        for uid, pod in self._pods.items():
            node = pod.node_name or self._assumed.get(uid, "")
            if node in used and pod.phase not in TERMINAL_PHASES:
                try:
                    used[node].update(pod.requests)
                except InvalidValue:
                    # A pod no real API server would take; it counts for nothing.
                    continue
        return used
