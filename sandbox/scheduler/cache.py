"""The scheduler's cache: nodes, pods, and the pods it assumes on a node while their binding is in progress."""

from collections import Counter
from collections.abc import Mapping

from ascend.errors import InvalidValue
from ascend.kube.objects import Node
from sandbox.pods import TERMINAL_PHASES, FullPod


class SchedulerCache:
    """Nodes and pods as last seen, and assumed pods."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._pods: dict[str, FullPod] = {}
        self._assumed: dict[str, str] = {}

    def pod(self, uid: str) -> FullPod | None:
        """Return a pod as last seen, or None."""
        return self._pods.get(uid)

    def put(self, pod: FullPod) -> None:
        """Add or replace a pod; a bound pod is no longer assumed."""
        self._pods[pod.uid] = pod
        if pod.node_name:
            self._assumed.pop(pod.uid, None)

    def remove(self, uid: str) -> None:
        """Remove a deleted pod."""
        self._pods.pop(uid, None)
        self._assumed.pop(uid, None)

    def assume(self, uid: str, node: str) -> None:
        """Count a pod on a node before its binding has finished."""
        self._assumed[uid] = node

    def forget(self, uid: str) -> None:
        """Stop assuming a pod, because its binding failed."""
        self._assumed.pop(uid, None)

    def is_assumed(self, uid: str) -> bool:
        """Whether a pod is assumed on a node."""
        return uid in self._assumed

    def requests_by_node(self, pod: FullPod | None = None) -> Mapping[str, Counter[str]]:
        """Return how much of every resource the pods on each node request, also assumed pods; CPU in millicores.

        Args:
            pod: the pod to be scheduled: others that are nominated for a node count there, unless their priority is
                lower (k/k:pkg/scheduler/framework/runtime/framework.go, addGENominatedPods).
        """
        requested: dict[str, Counter[str]] = {name: Counter() for name in self.nodes}
        for uid, each in self._pods.items():
            node = each.node_name or self._assumed.get(uid, "")
            if not node and pod is not None and uid != pod.uid and each.priority >= pod.priority:
                node = each.nominated_node
            if node in requested and each.phase not in TERMINAL_PHASES:
                try:
                    requested[node].update(each.scheduling_requests)
                except InvalidValue:
                    # The real API server accepts no such pod; ignore its requests.
                    continue
        return requested
