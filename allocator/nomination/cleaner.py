"""Clears nominations of which nothing will come, until that is seen."""

import structlog

from allocator.metrics import AllocatorMetrics
from allocator.nomination.writes import Writes
from allocator.state.cluster import Cluster
from ascend.kube.objects import Pod

log = structlog.get_logger()


class Cleaner:
    """Clears the allocator's nominations.

    Args:
        cluster: nodes, pods and jobs.
        writes: writes nominations.
        metrics: counts them.
    """

    def __init__(self, cluster: Cluster, writes: Writes, metrics: AllocatorMetrics) -> None:
        self._cluster = cluster
        self._writes = writes
        self._metrics = metrics
        self._stale: dict[str, str] = {}  # the node, by uid of the pod

    def clear(self, pod: Pod, node: str, why: str) -> None:
        """Clear the nomination of a node, if the pod still has it."""
        if pod.status.nominated_node_name == node:
            self._stale[pod.uid] = node
            self._metrics.nominations.labels("cleared").inc()
            log.debug("clears a nomination", pod=pod.key, pod_uid=pod.uid, node=node, why=why)
            self._post(pod)

    def applied(self, pod: Pod) -> bool:
        """A pod has changed; returns whether its nomination is still to be cleared."""
        node = self._stale.get(pod.uid)
        if node is None:
            return False
        if pod.status.nominated_node_name != node:
            del self._stale[pod.uid]
            return False
        self._post(pod)  # the last request came too late for the version it named
        return True

    def keep(self, uid: str) -> None:
        """Don't clear the pod's nomination any more: it has another one, or was deleted."""
        self._stale.pop(uid, None)

    def retry(self) -> None:
        """Send the requests again that have failed. Call it periodically."""
        for uid in tuple(self._stale):
            pod = self._cluster.pods.get(uid)
            if pod is None:
                del self._stale[uid]
            else:
                self._post(pod)

    def _post(self, pod: Pod) -> None:
        def current() -> Pod | None:
            seen = self._cluster.pods.get(pod.uid)
            return seen if seen is not None and seen.status.nominated_node_name == self._stale.get(pod.uid) else None

        self._writes.start(self._writes.nominate(current, ""), f"clear {pod.key}")
