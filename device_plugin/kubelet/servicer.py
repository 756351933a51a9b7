"""The device-plugin service the kubelet calls (spec/kubernetes.md §1): protobuf in and out, nothing is decided here."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import structlog

from ascend.chips import ChipSet, chip_name
from ascend.errors import Refusal
from device_plugin.handover import HandOverDesk
from device_plugin.metrics import Metrics
from device_plugin.rules.injection import ContainerGift
from device_plugin.rules.snapshot import Snapshot
from device_plugin.state.observable import Observable
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REPORT_FIRST_S = 2.0
"""How long the kubelet's list waits for the report at most: the API server may be away."""

REFUSAL_CHARACTERS = 200
"""A refusal ends in the pod's status; it may quote an annotation, which its author can make as long as a book."""

Context = grpc.aio.ServicerContext[object, object]


class DevicePluginServicer(pb_grpc.DevicePluginServicer):
    """One registration's service: made anew with every socket.

    Args:
        snapshots: the node's chips.
        desk: matches calls with pods.
        give: what a container with these chips is given.
        reported_unhealthy: the chips the node's report calls unhealthy.
        told_healthy: told which chips the kubelet was sent as healthy.
        metrics: counts.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        desk: HandOverDesk,
        give: Callable[[tuple[int, ...]], ContainerGift],
        reported_unhealthy: Observable[ChipSet],
        told_healthy: Observable[ChipSet],
        metrics: Metrics,
    ) -> None:
        self._snapshots = snapshots
        self._desk = desk
        self._give = give
        self._reported_unhealthy = reported_unhealthy
        self._told_healthy = told_healthy
        self._metrics = metrics
        self._ending = asyncio.Event()
        self._streams = 0
        self.watched = asyncio.Event()
        """The kubelet has been sent the list of devices."""
        self.unwatched = asyncio.Event()
        """The kubelet has closed the last stream: it will not come back by itself."""

    def end_streams(self) -> None:
        """End all streams, so that stopping the server need not wait for them."""
        self._ending.set()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._streams += 1
        sent: pb.ListAndWatchResponse | None = None
        try:
            while not self._ending.is_set():
                version = self._snapshots.version
                snapshot = self._snapshots.value
                message = device_list(snapshot)
                if snapshot is not None and message is not None and message != sent:
                    await self._wait_for_report(snapshot)
                    yield message
                    sent = message
                    self._told_healthy.set(snapshot.healthy)
                    self.watched.set()
                    self._metrics.list_sent.set_to_current_time()
                await _first(self._snapshots.newer_than(version), self._ending.wait())
        finally:
            self._streams -= 1
            if self._streams == 0:
                self.unwatched.set()

    async def _wait_for_report(self, snapshot: Snapshot) -> None:
        """Let the report tell of a fault before the kubelet does, for a while.

        Otherwise the report lists more chips than the kubelet offers, and Volcano refuses the node as "not stable"
        (spec/node-agent.md §0.4); and a scheduler that trusts the report would still give the chip away.
        """
        unhealthy = snapshot.all_chips & ~snapshot.healthy
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_FIRST_S):
                while unhealthy & ~self._reported_unhealthy.value:
                    await self._reported_unhealthy.newer_than(self._reported_unhealthy.version)

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: Context,
    ) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for each in request.container_requests:
            ids = await self._desk.prefer(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        started_s = time.perf_counter()
        try:
            answer = pb.AllocateResponse()
            for each in request.container_requests:
                handover = await self._desk.allocate(each.devices_ids)
                if not handover.matches_kubelet:
                    self._metrics.mismatches.inc()
                given = self._give(handover.chips)
                container = answer.container_responses.add(envs=given.envs)
                for inside, outside in given.devices.items():
                    container.devices.add(container_path=inside, host_path=outside, permissions="rw")
        except Refusal as refusal:
            self._metrics.allocations.labels(result=refusal.reason).inc()
            log.warning(
                "refused", devices=len(request.container_requests), reason=refusal.reason, error=refusal.message
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _shortened(f"{refusal.reason}: {refusal.message}"))
        finally:
            self._metrics.allocate_duration.observe(time.perf_counter() - started_s)
        self._metrics.allocations.labels(result="granted").inc()
        return answer

    async def PreStartContainer(
        self,
        request: pb.PreStartContainerRequest,
        context: Context,
    ) -> pb.PreStartContainerResponse:
        return pb.PreStartContainerResponse()


def device_list(snapshot: Snapshot | None) -> pb.ListAndWatchResponse | None:
    """The kubelet's view of a snapshot: every chip, so that one that fails is seen to fail; None before the first."""
    if snapshot is None:
        return None
    message = pb.ListAndWatchResponse()
    for chip in snapshot.chips:
        message.devices.add(ID=chip_name(chip.chip_id), health="Healthy" if chip.healthy else "Unhealthy")
    return message


def _shortened(text: str) -> str:
    return text if len(text) <= REFUSAL_CHARACTERS else text[: REFUSAL_CHARACTERS - 1] + "…"


async def _first(*waits: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
