"""Writes the status of Kueue's objects, in the newest version of its API that is served."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

import structlog

from allocator.admission.objects import VERSIONS, AdmissionCheck, Workload, kinds
from ascend.errors import ApiError, Conflict, InvalidValue, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject

log = structlog.get_logger()

AGAIN_S: Final = 5.0
"""After this time what could not be answered is tried again."""
_DELAYS_EVICTIONS: Final = "v1beta2"
"""Kueue with this version puts off the eviction of a workload with a delay until that is over, and so its quota stays
reserved (0.17: pkg/controller/core/workload_controller.go, "Waiting for backoff"): there the delay is written once the
workload is evicted, before Kueue queues it again."""


async def attempt(key: str, work: Awaitable[None]) -> bool:
    """Do some work for an object; returns whether it has to be tried again."""
    try:
        await work
    except (NotFound, Conflict):
        pass  # it has changed or is gone, and so the watch reports it
    except (ApiError, Unreachable, InvalidValue) as error:
        log.warning("could not answer an admission check", object=key, error=str(error))
        return True
    return False


class Statuses:
    """Writes the status of workloads and admission checks.

    Args:
        client: the API server.
        now_s: the wall clock, Unix seconds.

    Attributes:
        kinds: the kinds of the version.
    """

    def __init__(self, client: KubeClient, now_s: Callable[[], float]) -> None:
        self._client = client
        self._now_s = now_s
        self.kinds = kinds(VERSIONS[0])

    async def find_version(self) -> None:
        """Wait until a version of Kueue's API is served; the newest is used, until this process ends."""
        while True:
            for version in VERSIONS:
                self.kinds = kinds(version)
                try:
                    await self._client.request("GET", self.kinds.workloads.path(), query={"limit": "1"})
                except NotFound:
                    continue
                except (ApiError, Unreachable) as error:
                    log.warning("can't list Kueue's workloads", version=version, error=str(error))
                    break
                return
            await asyncio.sleep(AGAIN_S)

    async def activate(self, check: AdmissionCheck) -> None:
        """Say that a check is answered."""
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "the allocator answers whether the pods of a workload fit",
            "lastTransitionTime": self._time(),
        }
        body: JsonObject = {"status": {"conditions": [condition]}}
        await self._client.patch(self.kinds.checks, check.name, body, subresource="status")

    async def answer(
        self, workload: Workload, names: set[str], state: str, message: str, delay_s: float | None = None
    ) -> None:
        """Answer checks of a workload, perhaps with a delay."""
        answer = {"state": state, "message": message, "lastTransitionTime": self._time()}
        checks = [
            {**check, **answer} if check.get("name") in names else check for check in workload.status.admission_checks
        ]
        delay = {} if delay_s is None else self._requeue(workload, delay_s)
        await self._patch(workload, {"admissionChecks": checks, **delay})

    async def delay(self, workload: Workload, in_s: float) -> None:
        """Begin a delay of a workload."""
        await self._patch(workload, self._requeue(workload, in_s))

    async def end_delay(self, workload: Workload) -> None:
        """End the delay of a workload.

        Kueue of the newer kind waits until the time is gone, and its server-side apply removes no field of others.
        """
        await self._patch(workload, self._requeue(workload, None if self.delays_evictions else 0.0))

    @property
    def delays_evictions(self) -> bool:
        """Whether delays are written after the eviction, and removed."""
        return self.kinds.workloads.api_version.endswith(_DELAYS_EVICTIONS)

    async def _patch(self, workload: Workload, status: JsonObject) -> None:
        """Write the status of a workload; that it has changed since is a conflict."""
        metadata = {"uid": workload.uid, "resourceVersion": workload.metadata.resource_version}
        body: JsonObject = {"metadata": metadata, "status": status}
        namespace = workload.metadata.namespace
        await self._client.patch(self.kinds.workloads, workload.name, body, namespace=namespace, subresource="status")

    def _requeue(self, workload: Workload, in_s: float | None) -> JsonObject:
        """The state of a delay that ends then, or of none.

        With the count, even of 0: Kueue to 0.16 removes the time when the delay is over, and an empty state is invalid.
        """
        state = workload.status.requeue_state
        time = None if in_s is None else self._time(in_s)
        return {"requeueState": {"requeueAt": time, "count": state.count if state is not None else 0}}

    def _time(self, in_s: float = 0.0) -> str:
        return datetime.fromtimestamp(int(self._now_s() + in_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
