"""The requests of rescheduling: pods are deleted or evicted, marked, and what is remembered is stored."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from allocator.rescheduling import storage
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.reading import READ_S
from ascend.annotations import POD_STATUS
from ascend.errors import ApiError, Conflict, NotFound
from ascend.kube import config_maps
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS, JsonObject, Pod
from ascend.kube.workloads import DISRUPTION_TARGET

log = structlog.get_logger()

STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
CONDITION_REASON: Final = "DeletionByAscendAffinity"
_NAMED: Final = 10
_ATTEMPTS: Final = 3
"""How often a pod that changes at the same time is read anew: pods of a job that fails report that."""


class Actions:
    """Sends the requests; each names the pod's uid and version as read, and fails if the pod has changed since.

    Args:
        client: the API server.
        namespace: of the ConfigMap with what is remembered.
        name: its name.
        evicts: whether pods are evicted, which heeds PodDisruptionBudgets, instead of deleted.
        shortened: called with the number of jobs of which not all that is remembered fits, when it was stored.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        *,
        evicts: bool,
        shortened: Callable[[int], object] = lambda _: None,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._evicts = evicts
        self._shortened = 0
        self._tell_shortened = shortened

    async def delete(self, pod: Pod, why: str, grace_s: int | None) -> None:
        """Delete or evict a pod, read anew before; one that is gone needs nothing.

        Its condition DisruptionTarget says why, so that a Job can tell it from a failure of its own.

        Args:
            pod: the pod.
            why: a sentence.
            grace_s: the grace period; None for its own.

        Raises:
            ApiError: the API server refuses, as if a PodDisruptionBudget does not allow the eviction, or the pod
                changes all the time.
            Unreachable: it does not answer.
        """

        async def attempt(found: Pod) -> None:
            if self._evicts:
                await self._evict(found, grace_s)
            elif not found.is_terminating or grace_s is not None:  # else it has its own grace period already
                await self._delete(await self._mark(found, why), grace_s)

        await self._try(pod, attempt)

    async def delete_by_force(self, pod: Pod) -> None:
        """Delete a pod without waiting for its kubelet; it is read anew before.

        It is marked as failed before, as Kubernetes' own pod garbage collector does: a Job keeps its finalizer on a pod
        until it has ended, and some Jobs create no other one before.

        Raises:
            ApiError: the API server refuses, or the pod changes all the time.
            Unreachable: it does not answer.
        """

        async def attempt(found: Pod) -> None:
            if found.is_live:
                found = await self._mark(found, "deleted without its kubelet", phase="Failed")
            await self._delete(found, 0)

        await self._try(pod, attempt)

    async def _try(self, pod: Pod, attempt: Callable[[Pod], Awaitable[None]]) -> None:
        """Make an attempt with the pod as read now, again after a conflict; none for a pod that has succeeded."""
        for number in range(1, _ATTEMPTS + 1):
            try:
                found = await self._client.get(PODS, pod.name, pod.metadata.namespace, timeout_s=READ_S)
                if found.uid == pod.uid and found.status.phase != "Succeeded":
                    await attempt(found)
                return
            except NotFound:
                return
            except Conflict:
                if number == _ATTEMPTS:
                    raise

    async def annotate(self, pod: Pod, status: str) -> None:
        """Write on a pod that it is faulty.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        body: JsonObject = {"metadata": {"uid": pod.uid, "annotations": {POD_STATUS: status}}}
        try:
            await self._client.patch(PODS, pod.name, body, namespace=pod.metadata.namespace)
        except (NotFound, Conflict):
            return

    async def load(self, now_s: float) -> Memory:
        """Read what is remembered, at a time in Unix seconds.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        try:
            found = await self._client.get(CONFIG_MAPS, self._name, self._namespace)
        except NotFound:
            return Memory()
        memory, unreadable = storage.decode(found.data, now_s)
        for sentence in unreadable:
            log.warning("what is remembered of faults can't be read", config_map=self._stored_in, error=sentence)
        return memory

    async def save(self, memory: Memory) -> None:
        """Store what is remembered; nothing is stored over what can't be read as a whole.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer, or too many pods deleted by force would have to be remembered.
        """
        if memory.broken:
            return
        packing = storage.MemoryPacking(memory)
        data = await asyncio.to_thread(packing.pack)
        await config_maps.store(self._client, self._namespace, self._name, data)
        if len(packing.shortened) > self._shortened:
            log.warning(
                "not all that is to be remembered of faults fits: the next leader knows only counts of these jobs",
                config_map=self._stored_in,
                jobs=packing.shortened[:_NAMED],
                job_count=len(packing.shortened),
            )
        self._shortened = len(packing.shortened)
        self._tell_shortened(self._shortened)

    @property
    def _stored_in(self) -> str:
        return f"{self._namespace}/{self._name}"

    async def _delete(self, pod: Pod, grace_s: int | None) -> None:
        """Delete a pod if it is as it was read."""
        await self._client.delete(
            PODS,
            pod.name,
            pod.metadata.namespace,
            uid=pod.uid,
            version=pod.metadata.resource_version,
            grace_s=grace_s,
        )

    async def _mark(self, pod: Pod, why: str, *, phase: str = "") -> Pod:
        condition = {
            "type": DISRUPTION_TARGET,
            "status": "True",
            "reason": CONDITION_REASON,
            "message": why,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        status: JsonObject = {"conditions": [condition]} | ({"phase": phase} if phase else {})
        required = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
        body: JsonObject = {"metadata": required, "status": status}
        return await self._client.patch(
            PODS,
            pod.name,
            body,
            namespace=pod.metadata.namespace,
            subresource="status",
            content_type=STRATEGIC_MERGE_PATCH,
        )

    async def _evict(self, pod: Pod, grace_s: int | None) -> None:
        required = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
        options: JsonObject = {"preconditions": required}
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        body: JsonObject = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.metadata.namespace},
            "deleteOptions": options,
        }
        path = PODS.path(namespace=pod.metadata.namespace, name=pod.name, subresource="eviction")
        await self._client.request("POST", path, body=body)


def is_refusal_for_now(error: ApiError) -> bool:
    """Return whether a PodDisruptionBudget does not allow an eviction at the moment."""
    return error.status == 429  # noqa: PLR2004 - Too Many Requests
