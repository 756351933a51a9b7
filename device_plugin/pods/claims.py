"""Writes each pod's chips on the pod (the *claim*), in a single patch that is retried until it succeeds.

The patch carries the pod's uid, so a pod that was recreated with the same name is never changed. A claim that is not
written when the plugin ends is made again from the kubelet's ledger.
"""

import asyncio
import contextlib
import http
from collections.abc import Mapping

import structlog

from ascend.annotations import KUBELET_IDS, REAL, UNKNOWN, write_claim, write_configuration
from ascend.base_device_infos import ChipAddress
from ascend.errors import ApiError, Conflict, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS
from ascend.rate_limiters import Backoff
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_OF_VNPU = ChipAddress("127.0.0.1")
"""A vNPU has no network port of its own (docs/spec/hand-over.md#configuration)."""

DELAY_S = 0.002
"""Each claim starts this much later, so that the kubelet's answer is sent first: a new connection to the API server
takes the event loop as long as the answer itself."""
LAST_RETRY_S = 0.5
"""The time between two attempts once the plugin ends."""


def claim_annotations(
    allocation: Allocation,
    snapshot: Snapshot | None,
    *,
    pod_name: str,
    host_ip: str,
) -> dict[str, str]:
    """Return the annotations of a pod with chips, or vNPUs.

    See docs/spec/node-report.md#chips-in-use; docs/spec/hand-over.md#annotations-of-a-pod-with-chips.

    Args:
        allocation: the pod and its chips.
        snapshot: has the chips' addresses; None if the driver has not been read.
        pod_name: without its namespace.
        host_ip: this node's address.
    """
    device_type = allocation.device_type
    virtual = bool(allocation.template or device_type.suffix)
    addresses = {chip.chip_id: chip.facts.address for chip in snapshot.chips} if snapshot is not None else {}
    configuration = write_configuration(
        pod_name=pod_name,
        pod_uid=allocation.uid,
        host_ip=host_ip,
        devices={
            device_type.chip(number): _OF_VNPU if virtual else addresses.get(number, ChipAddress())
            for number in allocation.chips
        },
        super_pod_id=snapshot.server.super_pod_id if snapshot is not None else UNKNOWN,
        server_index=snapshot.server.server_index if snapshot is not None else UNKNOWN,
        virtual=virtual,
    )
    claim = write_claim(chips=(), kubelet_ids=(), configuration=configuration)
    return claim | {REAL: allocation.name, KUBELET_IDS: device_type.join_sorted(allocation.kubelet_ids)}


class ClaimWriter:
    """Patches pods in the background, each in its own task, until the patch succeeds or the pod is gone.

    Args:
        client: the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wanted: dict[str, Mapping[str, str | None]] = {}
        self._refused: dict[str, str] = {}
        self._ending = asyncio.Event()

    @property
    def pending(self) -> int:
        """How many claims are not written yet."""
        return len(self._tasks)

    @property
    def problem(self) -> str | None:
        """Why the API server refuses claims; None while it refuses none.

        Without its claim it is not known outside of this node which chips a pod has, and another plugin, to which the
        node changes, would give them again.
        """
        return next(iter(self._refused.values()), None)

    def write(self, *, uid: str, namespace: str, name: str, annotations: Mapping[str, str | None]) -> None:
        """Write a claim soon; returns at once. If one is in progress for the pod, it goes on with the new content.

        An annotation that is None is removed.
        """
        self._wanted[uid] = annotations
        in_progress = self._tasks.get(uid)
        if in_progress is not None and not in_progress.done():
            return
        task = asyncio.create_task(self._write(uid, namespace, name), name=f"claim {namespace}/{name}")
        self._tasks[uid] = task
        task.add_done_callback(lambda done: self._forget(uid, done))

    async def close(self, *, finish_s: float) -> None:
        """Write what is pending, then stop; another plugin on this node may not complete it.

        Args:
            finish_s: how long that may take; what is not written then is completed by the next start of this plugin.
        """
        self._ending.set()
        tasks = list(self._tasks.values())
        try:
            if tasks and finish_s:
                await asyncio.wait(tasks, timeout=finish_s)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _forget(self, uid: str, done: "asyncio.Task[None]") -> None:
        # The callback runs a little after the task has ended, so another task may have started.
        if self._tasks[uid] is done:
            del self._tasks[uid]
            del self._wanted[uid]
            self._refused.pop(uid, None)

    async def _write(self, uid: str, namespace: str, name: str) -> None:
        backoff = Backoff(limit_s=10.0)
        pod = f"{namespace}/{name}"
        written: Mapping[str, str | None] = {}
        await asyncio.sleep(DELAY_S)
        while written != self._wanted[uid]:
            annotations = self._wanted[uid]
            body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
            try:
                await self._client.patch(PODS, name, body, namespace=namespace)
                log.info("claim written", pod=pod, pod_uid=uid)
                written = annotations
            except NotFound:
                log.info("claim dropped, the pod is gone", pod=pod, pod_uid=uid)
                return
            except (ApiError, Unreachable) as error:
                if _may_be_another(error) and await self._is_another(uid, namespace, name):
                    log.info("claim dropped, the pod was recreated", pod=pod, pod_uid=uid)
                    return
                if isinstance(error, ApiError) and _is_denied(error):
                    self._refused[uid] = f"the claim on pod {pod} is refused: {error.message}"
                wait_s = backoff.after(error)
                log.warning("claim not written yet", pod=pod, pod_uid=uid, error=str(error), retry_s=round(wait_s, 2))
                await self._pause(wait_s)

    async def _pause(self, wait_s: float) -> None:
        if self._ending.is_set():
            await asyncio.sleep(min(wait_s, LAST_RETRY_S))
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._ending.wait()

    async def _is_another(self, uid: str, namespace: str, name: str) -> bool:
        try:
            return (await self._client.get(PODS, name, namespace)).uid != uid
        except NotFound:
            return True
        except (ApiError, Unreachable):
            return False


def _is_denied(error: ApiError) -> bool:
    """Return whether a right is missing, or an admission policy denies the write: no fault of the pod itself."""
    by_policy = error.status == http.HTTPStatus.UNPROCESSABLE_ENTITY and "denied request" in error.message
    return by_policy or error.status == http.HTTPStatus.FORBIDDEN


def _may_be_another(error: ApiError | Unreachable) -> bool:
    # If the uid in the patch does not match, the server answers with a conflict or "field is immutable".
    return isinstance(error, Conflict) or error.reason == "Invalid"
