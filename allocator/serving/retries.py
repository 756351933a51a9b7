"""Makes kube-scheduler retry pods that its own filters have refused on every node.

A pod for which all nodes have too few chips by number is retried only if a pod ends or a node grows, not if the pod
itself changes (k/k:pkg/scheduler/framework/plugins/noderesources/fit.go, EventsToRegister). But the end of a nomination
counts like the end of a pod for all pods of the same or a lower priority, since kube-scheduler accounts for nominated
pods on their nodes (k/k:pkg/scheduler/eventhandlers.go, hasNominatedNodeNameChanged). So one of the pods is nominated
for a node that does not exist, which takes room from no other pod, and the nomination is cleared at once.
"""

from collections.abc import Iterable
from typing import Final

from ascend.errors import Conflict
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, Pod

NOWHERE: Final = "none.ascend-affinity.io"
"""The name of a node that does not exist."""


class Retries:
    """Makes kube-scheduler retry pods.

    Args:
        client: the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def trigger(self, pod: Pod) -> None:
        """Make kube-scheduler retry a pod, and all others of the same or a lower priority that it has refused.

        Args:
            pod: a pending pod without a nominated node, as last seen.

        Raises:
            ApiError: it has changed since, is gone, or may not be written.
            Unreachable: no answer.
        """
        await self.clear(await self._nominate(pod, NOWHERE))

    async def clear(self, pod: Pod) -> None:
        """Clear the nomination for the node that does not exist, if the pod still has it.

        Raises:
            ApiError: it is gone, or may not be written.
            Unreachable: no answer.
        """
        while pod.status.nominated_node_name == NOWHERE:
            try:
                await self._nominate(pod, None)
            except Conflict:  # somebody else has changed it meanwhile, perhaps nominated a node
                pod = await self._client.get(PODS, pod.name, pod.metadata.namespace)
            else:
                return

    async def _nominate(self, pod: Pod, node: str | None) -> Pod:
        body = {
            "metadata": {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version},
            "status": {"nominatedNodeName": node},
        }
        return await self._client.patch(
            PODS, pod.name, body, namespace=pod.metadata.namespace, subresource="status"
        )  # fmt: skip


def first_of(pods: Iterable[Pod]) -> Pod | None:
    """The pod whose retry includes all others' without a nominated node; None if all are nominated."""
    waiting = [pod for pod in pods if not pod.status.nominated_node_name]
    return max(waiting, key=lambda pod: (pod.priority, pod.key), default=None)
