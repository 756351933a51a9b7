"""The requests by which pods are nominated and ungated, at a limited rate.

A nomination is written with the resourceVersion that was seen, so it never overwrites one that the scheduler has made
meanwhile. The node is written twice in the same request: as ``status.nominatedNodeName``, and as an annotation that
distinguishes the allocator's nominations from the scheduler's, for the next leader as well.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final

import structlog

from ascend.annotations import NOMINATED, PLACEMENT_GATE
from ascend.errors import ApiError, Throttled, Unreachable
from ascend.kube.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, UNVALIDATED, KubeClient
from ascend.kube.objects import PODS, JsonObject, Pod
from ascend.rate_limiters import TokenBucket

log = structlog.get_logger()

AT_ONCE: Final = 16
"""The most requests in flight."""
THROTTLED_S: Final = 1.0
"""The pause after the API server has answered 429 without a Retry-After."""


class Writes:
    """Writes nominations and gates.

    Args:
        client: the API server.
        per_s: the most requests per second.
        monotonic: the clock.
    """

    def __init__(self, client: KubeClient, *, per_s: float, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._rate = TokenBucket(0, 1.0 / per_s, monotonic)
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[bool]] = set()

    @property
    def has_room(self) -> bool:
        """Whether few requests wait for their turn."""
        return len(self._tasks) < 2 * AT_ONCE

    def start(self, work: Coroutine[None, None, bool], name: str) -> "asyncio.Task[bool]":
        """Run a request in a task of its own."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Cancel the requests that have not ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def nominate(self, current: Callable[[], Pod | None], node: str) -> bool:
        """Nominate a node for a pod, or clear its nomination.

        Args:
            current: called when it is the request's turn: the pod as last seen; None if nothing is to be written.
            node: the node; empty to clear the nomination.

        Returns:
            Whether that was written; not if the pod has changed since it was seen.
        """

        def request(pod: Pod) -> JsonObject:
            return {
                "metadata": {
                    "uid": pod.uid,
                    "resourceVersion": pod.metadata.resource_version,
                    "annotations": {NOMINATED: node or None},
                },
                "status": {"nominatedNodeName": node or None},
            }

        return await self._patch(current, request, MERGE_PATCH, "status")

    async def lift(self, current: Callable[[], Pod | None]) -> bool:
        """Remove the allocator's gate from a pod, and no other.

        Args:
            current: as for ``nominate``.

        Returns:
            Whether that was written.
        """

        def request(pod: Pod) -> JsonObject:
            gates = [{"name": PLACEMENT_GATE, "$patch": "delete"}]
            return {"metadata": {"uid": pod.uid}, "spec": {"schedulingGates": gates}}

        return await self._patch(current, request, STRATEGIC_MERGE_PATCH)

    async def _patch(
        self,
        current: Callable[[], Pod | None],
        request: Callable[[Pod], JsonObject],
        content_type: str,
        subresource: str = "",
    ) -> bool:
        try:
            async with self._slots:
                if (wait_s := self._rate.spend()) > 0:
                    await asyncio.sleep(wait_s)
                pod = current()
                if pod is None:
                    return False
                # The informer shows what was written: the answer is not decoded.
                path = PODS.path(namespace=pod.metadata.namespace, name=pod.name, subresource=subresource)
                await self._client.request(
                    "PATCH", path, query=UNVALIDATED, body=request(pod), content_type=content_type
                )
        except Throttled as error:
            pause_s = error.retry_after_s or THROTTLED_S
            self._rate.pause(pause_s)
            log.warning("the API server throttles nominations", pause_s=pause_s)
            return False
        except (ApiError, Unreachable) as error:
            # A pod that has changed or is gone is seen by the informer; a lost answer is, too.
            log.debug("could not nominate a pod or lift its gate", error=str(error))
            return False
        return True
