"""How people learn that a pod got no node: its PodScheduled condition and a FailedScheduling event."""

import logging
from collections.abc import Callable
from datetime import datetime

from ascend.errors import ApiError, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.events import EventRecorder, Regarding
from sandbox.pods import ALL_OF_PODS, FullPod

log = logging.getLogger(__name__)


class Announcer:
    """Writes conditions and events.

    Args:
        client: the API server.
        events: for the events.
        now: wall clock.
    """

    def __init__(self, client: KubeClient, events: EventRecorder, *, now: Callable[[], datetime]) -> None:
        self._client = client
        self._events = events
        self._now = now

    def announce_bound(self, pod: FullPod, node: str) -> None:
        """The pod was bound."""
        note = f"Successfully assigned {pod.key} to {node}"
        self._events.publish(_regarding(pod), "Scheduled", note, action="Binding", warning=False)

    async def announce_failure(self, pod: FullPod, reason: str, message: str) -> None:
        """The pod got no node.

        Args:
            pod: as last seen.
            reason: ``Unschedulable`` where it fits nowhere, ``SchedulerError`` where something went wrong.
            message: a sentence.
        """
        self._events.publish(_regarding(pod), "FailedScheduling", message, action="Scheduling")
        condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
        for each in pod.status.get("conditions") or ():
            if condition.items() <= each.items():
                return
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "metadata": {"uid": pod.uid},
            "status": {"conditions": [{**condition, "lastTransitionTime": stamp}]},
        }
        try:
            await self._client.patch(
                ALL_OF_PODS,
                pod.name,
                body,
                namespace=pod.metadata.namespace,
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except (ApiError, Unreachable) as error:
            log.warning("could not write a condition", extra={"pod": pod.key, "error": str(error)})


def _regarding(pod: FullPod) -> Regarding:
    return Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
