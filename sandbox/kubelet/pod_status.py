"""The status of pods: how it follows from their containers, and how it is written to the API server."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import JsonObject
from ascend.rate_limiters import Backoff
from sandbox.kubelet.runtime import NODE_IP, Runtime, RuntimeContainer
from sandbox.pods import ALL_OF_PODS, ContainerSpec, FullPod, timestamp_now

log = logging.getLogger(__name__)

Failures = Mapping[str, tuple[str, str]]
"""Why containers could not be created: reason and message by container name."""

_PERMANENT: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


def derive_status(pod: FullPod, runtime: Runtime, failures: Failures) -> JsonObject:
    """Return the status of an admitted pod; its phase follows from its containers."""
    now = timestamp_now()
    init = [
        _container_status(container, runtime.find(pod.uid, container.name), failures, now)
        for container in pod.init_containers
    ]
    apps = [
        _container_status(container, runtime.find(pod.uid, container.name), failures, now)
        for container in pod.containers
    ]
    phase = _phase(apps)
    ready = "True" if all(app["ready"] for app in apps) else "False"
    initialized = "True" if any("containerID" in app for app in apps) or not init else "False"
    conditions = [
        {"type": kind, "status": value, "lastTransitionTime": now}
        for kind, value in (("Initialized", initialized), ("Ready", ready), ("ContainersReady", ready))
    ]
    status: JsonObject = {
        "phase": phase,
        "conditions": conditions,
        "hostIP": NODE_IP,
        "podIP": NODE_IP,
        "startTime": now,
        "containerStatuses": apps,
    }
    return {**status, "initContainerStatuses": init} if init else status


def _phase(apps: list[JsonObject]) -> str:
    states = [app["state"] for app in apps]
    if any("waiting" in state for state in states):
        return "Pending"
    if any("running" in state for state in states):
        return "Running"
    return "Failed" if any(state["terminated"]["exitCode"] for state in states) else "Succeeded"


def _container_status(
    spec: ContainerSpec, container: RuntimeContainer | None, failures: Failures, now: str
) -> JsonObject:
    status: JsonObject = {
        "name": spec.name,
        "image": spec.image,
        "imageID": "",
        "restartCount": 0,
        "ready": False,
        "started": False,
        "lastState": {},
    }
    if spec.name in failures:
        reason, message = failures[spec.name]
        return {**status, "state": {"waiting": {"reason": reason, "message": message}}}
    if container is None:
        return {**status, "state": {"waiting": {"reason": "ContainerCreating"}}}
    status |= {"containerID": container.id, "imageID": spec.image, "restartCount": container.restarts}
    if container.running:
        return {**status, "ready": True, "started": True, "state": {"running": {"startedAt": now}}}
    code = container.exit_code or 0
    terminated = {
        "exitCode": code,
        "reason": "Error" if code else "Completed",
        "containerID": container.id,
        "startedAt": now,
        "finishedAt": now,
    }
    return {**status, "ready": not code and spec.restart_policy == "", "state": {"terminated": terminated}}


@dataclass(frozen=True, slots=True)
class _Update:
    pod: FullPod
    status: JsonObject | None
    delete: bool


class PodStatusWriter:
    """Writes the statuses of pods and completes their deletion, in the background and in order; never delays admission.

    Args:
        client: the API server.
        changed: called after every write.
    """

    def __init__(self, client: KubeClient, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._pending: dict[str, _Update] = {}
        self._not_empty = asyncio.Event()

    def write(self, pod: FullPod, status: JsonObject | None, *, delete: bool = False) -> None:
        """Queue a pod's status, replacing one that is still queued; with ``delete``, then delete the pod for good."""
        self._pending.pop(pod.uid, None)
        self._pending[pod.uid] = _Update(pod, status, delete)
        self._not_empty.set()

    async def run(self) -> None:
        """Write until cancelled; retry what the API server does not accept, unless a newer status is queued."""
        backoff = Backoff(first_s=0.02, limit_s=1.0)
        while True:
            await self._not_empty.wait()
            for uid in list(self._pending):
                update = self._pending[uid]
                try:
                    await self._send(update)
                except (ApiError, Unreachable) as error:
                    log.warning("failed to update pod status", extra={"pod": update.pod.key, "error": str(error)})
                    if not (isinstance(error, ApiError) and error.status in _PERMANENT):
                        await asyncio.sleep(backoff.next_s())
                        break
                backoff.reset()
                if self._pending.get(uid) is update:
                    del self._pending[uid]
                self._changed()
            if not self._pending:
                self._not_empty.clear()

    async def _send(self, update: _Update) -> None:
        pod = update.pod
        try:
            if update.status is not None:
                # The uid is a precondition: the pod may have been recreated under the same name.
                body = {"metadata": {"uid": pod.uid}, "status": update.status}
                await self._client.patch(
                    ALL_OF_PODS,
                    pod.name,
                    body,
                    namespace=pod.metadata.namespace,
                    subresource="status",
                    content_type=STRATEGIC_MERGE_PATCH,
                )
            if update.delete:
                path = ALL_OF_PODS.path(namespace=pod.metadata.namespace, name=pod.name)
                await self._client.request(
                    "DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
                )
        except (NotFound, Conflict) as error:
            log.info("pod no longer exists", extra={"pod": pod.key, "error": str(error)})
