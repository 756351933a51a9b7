"""What the kubelet writes to the API server about pods: statuses, in the background, the latest of each pod only."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import STRATEGIC_MERGE_PATCH, KubeClient
from ascend.kube.objects import JsonObject
from sandbox.pods import ALL_OF_PODS, FullPod

log = logging.getLogger(__name__)

_HOPELESS: Final = {HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY}


@dataclass(frozen=True, slots=True)
class _Report:
    pod: FullPod
    status: JsonObject | None
    delete: bool


class PodReports:
    """Writes pods' statuses and finishes their deletion, in the order they came; never holds up admission.

    Args:
        client: the API server.
        changed: called after every report that was written.
    """

    def __init__(self, client: KubeClient, changed: Callable[[], None]) -> None:
        self._client = client
        self._changed = changed
        self._waiting: dict[str, _Report] = {}
        self._something = asyncio.Event()

    def report(self, pod: FullPod, status: JsonObject | None, *, delete: bool = False) -> None:
        """Write a pod's status soon; after it, with ``delete``, let the API server forget the pod."""
        self._waiting.pop(pod.uid, None)
        self._waiting[pod.uid] = _Report(pod, status, delete)
        self._something.set()

    async def run(self) -> None:
        """Write until cancelled. What the API server does not take now is written later, unless a newer one came."""
        backoff = Backoff(first_s=0.02, limit_s=1.0)
        while True:
            await self._something.wait()
            for uid in list(self._waiting):
                report = self._waiting[uid]
                try:
                    await self._write(report)
                except (ApiError, Unreachable) as error:
                    log.warning("could not report a pod", extra={"pod": report.pod.key, "error": str(error)})
                    if not (isinstance(error, ApiError) and error.status in _HOPELESS):
                        await asyncio.sleep(backoff.next_s())
                        break
                backoff.reset()
                if self._waiting.get(uid) is report:
                    del self._waiting[uid]
                self._changed()
            if not self._waiting:
                self._something.clear()

    async def _write(self, report: _Report) -> None:
        pod = report.pod
        try:
            if report.status is not None:
                # The uid is a precondition: another pod may have the name by now.
                body = {"metadata": {"uid": pod.uid}, "status": report.status}
                await self._client.patch(
                    ALL_OF_PODS,
                    pod.name,
                    body,
                    namespace=pod.metadata.namespace,
                    subresource="status",
                    content_type=STRATEGIC_MERGE_PATCH,
                )
            if report.delete:
                path = ALL_OF_PODS.path(namespace=pod.metadata.namespace, name=pod.name)
                await self._client.request(
                    "DELETE", path, body={"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
                )
        except (NotFound, Conflict) as error:
            log.info("a pod is gone", extra={"pod": pod.key, "error": str(error)})
