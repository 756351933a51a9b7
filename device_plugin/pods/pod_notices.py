"""Tells a pod, once for each reason, of devices missing or different from its annotation."""

from collections.abc import Callable
from typing import Final

import structlog

from device_plugin.ledger.node_pods import NodePod, NodePods
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

MISMATCH: Final = "NPUAllocationMismatch"
WITHOUT: Final = "NPURunsWithoutChips"

Announce = Callable[[NodePod, str, str], None]
"""Receives a pod, a reason (CamelCase), and a sentence."""


class PodNotices:
    """What pods with one type of devices were told.

    Args:
        pods: the node's pods.
        announce: receives what is told.
        metrics: counts the pods that run without their devices.
    """

    def __init__(self, pods: NodePods, announce: Announce, metrics: Metrics) -> None:
        self._pods = pods
        self.announce = announce
        self._metrics = metrics
        self._told: set[tuple[str, str]] = set()

    def tell(self, pod: NodePod, reason: str, sentence: str) -> None:
        """Tell a pod, unless it was told anything for this reason."""
        if (pod.uid, reason) in self._told:
            return
        self._told.add((pod.uid, reason))
        log.warning("a pod's chips do not match", pod=pod.key, pod_uid=pod.uid, reason=reason, error=sentence)
        self.announce(pod, reason, sentence)
        self.look()

    def runs_without(self, uid: str) -> bool:
        """Return whether a pod was told about missing devices."""
        return (uid, WITHOUT) in self._told

    def look(self) -> None:
        """Forget pods that are gone, and count the running pods without their devices."""
        self._told = {(uid, reason) for uid, reason in self._told if self._pods.get(uid) is not None}
        without = (self._pods.get(uid) for uid, reason in self._told if reason == WITHOUT)
        self._metrics.count_without(
            self._pods.device_type.resource, sum(pod is not None and pod.live for pod in without)
        )
