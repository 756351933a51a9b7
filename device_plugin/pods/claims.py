"""Writes on each pod what it was handed, in one patch, and does not give up.

The patch carries the pod's uid, so a pod created again under the same name is never touched. Until it succeeds the
claim is kept and tried again; after a crash it is made anew from the kubelet's ledger.
"""

import asyncio
from collections.abc import Mapping

import structlog

from ascend.annotations import UNKNOWN, ChipAddress, write_claim, write_configuration
from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.backoff import Backoff
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.handovers import HandOver

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

BEHIND_S = 0.002
"""So much later than it is asked for a claim is begun: the kubelet's answer goes out first, and a new connection to the
API server costs the event loop as much time as the answer itself."""


def claim_annotations(handover: HandOver, snapshot: Snapshot | None, *, pod_name: str, host_ip: str) -> dict[str, str]:
    """What is written on a pod that was given its chips (spec/node-agent.md §0.3; spec/baseline-device-plugin.md §3.6).

    Args:
        handover: who was given what.
        snapshot: tells the chips' addresses; None where the driver has not been read.
        pod_name: without its namespace.
        host_ip: this node's address.
    """
    chips = {chip.chip_id: chip.address for chip in snapshot.chips} if snapshot is not None else {}
    configuration = write_configuration(
        pod_name=pod_name,
        pod_uid=handover.uid,
        host_ip=host_ip,
        devices={chip_id: chips.get(chip_id, ChipAddress()) for chip_id in handover.chips},
        super_pod_id=snapshot.server.super_pod_id if snapshot is not None else UNKNOWN,
        server_index=snapshot.server.server_index if snapshot is not None else UNKNOWN,
    )
    return write_claim(chips=handover.chips, kubelet_ids=handover.kubelet_ids, configuration=configuration)


class ClaimWriter:
    """Patches pods in the background, each on its own, until it succeeds or the pod is gone.

    Args:
        client: the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, Mapping[str, str]] = {}

    @property
    def pending(self) -> int:
        """How many claims are not written yet."""
        return len(self._tasks)

    def write(self, *, uid: str, namespace: str, name: str, annotations: Mapping[str, str]) -> None:
        """Write a claim soon; returns at once. One that is under way for the same pod goes on with what is new."""
        self._wanted[uid] = annotations
        under_way = self._tasks.get(uid)
        if under_way is not None and not under_way.done():
            return
        task = asyncio.create_task(self._write(uid, namespace, name), name=f"claim {namespace}/{name}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._forget(uid, done))

    async def close(self) -> None:
        """Stop trying; what is unwritten is completed after the next start."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, uid: str, done: "asyncio.Task[None]") -> None:
        # It is told a little later than the task ends; another may have begun.
        if self._tasks[uid] is done:
            del self._tasks[uid]
            del self._wanted[uid]

    async def _write(self, uid: str, namespace: str, name: str) -> None:
        backoff = Backoff(limit_s=10.0)
        pod = f"{namespace}/{name}"
        written: Mapping[str, str] = {}
        await asyncio.sleep(BEHIND_S)
        while written != self._wanted[uid]:
            annotations = self._wanted[uid]
            body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
            try:
                await self._client.patch(PODS, name, body, namespace=namespace)
                log.info("claimed", pod=pod, pod_uid=uid)
                written = annotations
            except NotFound:
                log.info("claim dropped, the pod is gone", pod=pod, pod_uid=uid)
                return
            except (ApiError, Unreachable) as error:
                if _may_be_another(error) and await self._is_another(uid, namespace, name):
                    log.info("claim dropped, the pod was created again", pod=pod, pod_uid=uid)
                    return
                wait_s = backoff.next_s()
                if isinstance(error, ApiError) and error.retry_after_s is not None:
                    wait_s = max(wait_s, error.retry_after_s)
                log.warning("claim not written yet", pod=pod, pod_uid=uid, error=str(error), retry_s=round(wait_s, 2))
                await asyncio.sleep(wait_s)

    async def _is_another(self, uid: str, namespace: str, name: str) -> bool:
        try:
            return (await self._client.get(PODS, name, namespace)).uid != uid
        except NotFound:
            return True
        except (ApiError, Unreachable):
            return False


def _may_be_another(error: ApiError | Unreachable) -> bool:
    # The uid in the patch does not match: a conflict, or an attempt to change an immutable field.
    return isinstance(error, Conflict) or error.reason == "Invalid"
