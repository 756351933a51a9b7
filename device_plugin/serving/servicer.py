"""The device-plugin service the kubelet calls (spec/kubernetes.md §1): protobuf in and out, nothing is decided here."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from typing import Literal

import grpc
import structlog

from ascend.chips import ChipSet, chip_name
from ascend.daemon.observable import Observable
from ascend.errors import Refusal
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.pods.admission_matcher import AdmissionMatcher
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REPORT_FIRST_S = 2.0
"""How long the kubelet's list waits for the report at most: the API server may be away."""

REFUSAL_CHARACTERS = 200
"""A refusal ends in the pod's status; it may quote an annotation, which its author can make as long as a book."""

Topology = Literal["auto", "always", "never"]
"""When to tell the kubelet which NUMA node a chip is close to; see ``device_list``."""

Context = grpc.aio.ServicerContext[object, object]


class DevicePluginServicer(pb_grpc.DevicePluginServicer):
    """One registration's service: made anew with every socket.

    Args:
        snapshots: the node's chips.
        desk: matches calls with pods.
        reported_unhealthy: the chips the node's report calls unhealthy.
        told_healthy: told which chips the kubelet was sent as healthy.
        metrics: counts.
        topology: when the kubelet is told which NUMA node a chip is close to.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        desk: AdmissionMatcher,
        reported_unhealthy: Observable[ChipSet],
        told_healthy: Observable[ChipSet],
        metrics: Metrics,
        topology: Topology = "auto",
    ) -> None:
        self._snapshots = snapshots
        self._desk = desk
        self._reported_unhealthy = reported_unhealthy
        self._told_healthy = told_healthy
        self._metrics = metrics
        self._topology: Topology = topology
        self._ending = asyncio.Event()
        self._streams = 0
        self.opened = asyncio.Event()
        """The kubelet has opened the stream."""
        self.watched = asyncio.Event()
        """The kubelet has been sent the list of devices."""
        self.broken = asyncio.Event()
        """The last stream has ended, or one has failed: the kubelet will not come back by itself."""

    def end_streams(self) -> None:
        """End all streams, so that stopping the server need not wait for them."""
        self._ending.set()

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._streams += 1
        self.opened.set()
        sent: pb.ListAndWatchResponse | None = None
        try:
            while not self._ending.is_set():
                version = self._snapshots.version
                snapshot = self._snapshots.value
                message = device_list(snapshot, self._topology)
                if snapshot is not None and message is not None and message != sent:
                    await self._wait_for_report(snapshot)
                    if self._ending.is_set():
                        return
                    if sent is None:
                        self._desk.begin()
                    yield message
                    sent = message
                    self._told_healthy.set(snapshot.healthy)
                    self.watched.set()
                    self._metrics.list_sent.set_to_current_time()
                await _first(self._snapshots.newer_than(version), self._ending.wait())
        except Exception:
            log.exception("the list of devices failed")
            self.broken.set()
            raise
        finally:
            self._streams -= 1
            if self._streams == 0:
                self.broken.set()

    async def _wait_for_report(self, snapshot: Snapshot) -> None:
        """Let the report tell of a fault before the kubelet does, for a while.

        Otherwise the report lists more chips than the kubelet offers, and Volcano refuses the node as "not stable"
        (spec/node-agent.md §0.4); and a scheduler that trusts the report would still give the chip away.
        """
        unhealthy = snapshot.all_chips & ~snapshot.healthy
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_FIRST_S):
                while unhealthy & ~self._reported_unhealthy.value and not self._ending.is_set():
                    version = self._reported_unhealthy.version
                    await _first(self._reported_unhealthy.newer_than(version), self._ending.wait())

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: Context,
    ) -> pb.PreferredAllocationResponse:
        answer = pb.PreferredAllocationResponse()
        for each in request.container_requests:
            ids = await self._prefer(each)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def _prefer(self, request: pb.ContainerPreferredAllocationRequest) -> list[str]:
        """Never an error: it would fail the pod's admission, and a preference is not worth that."""
        try:
            ids = await self._desk.prefer(
                request.available_deviceIDs, request.must_include_deviceIDs, request.allocation_size
            )
        except Exception:
            log.exception("the preference failed", count=request.allocation_size)
            self._metrics.preferences.labels(result="failed").inc()
            return []
        self._metrics.preferences.labels(result="steered" if ids else "none").inc()
        return ids

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        started_s = time.perf_counter()
        try:
            answer = pb.AllocateResponse()
            for each in request.container_requests:
                given = await self._desk.allocate(each.devices_ids)
                if not given.part.matches_kubelet:
                    self._metrics.mismatches.inc()
                container = answer.container_responses.add(envs=given.edits.envs)
                for inside, outside in given.edits.devices.items():
                    container.devices.add(container_path=inside, host_path=outside, permissions="rw")
                for name in given.edits.cdi_devices:
                    container.cdi_devices.add(name=name)
        except Exception as error:  # noqa: BLE001 - a fault of ours costs one pod its start, not the node its plugin
            refusal = _as_refusal(error)
            said = _shortened(f"{refusal.reason}: {refusal.message}")
            self._metrics.allocations.labels(result=refusal.reason).inc()
            log.warning(
                "refused",
                devices=[len(each.devices_ids) for each in request.container_requests],
                reason=refusal.reason,
                error=said,
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, said)
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


def device_list(snapshot: Snapshot | None, topology: Topology = "auto") -> pb.ListAndWatchResponse | None:
    """The kubelet's view of a snapshot: every chip, so that one that fails is seen to fail; None before the first.

    NUMA nodes are told only where all chips are close to one and the same, unless set otherwise. Told that chips are
    close to different ones, a kubelet with a topology policy narrows the choice to those close to the CPUs it has in
    mind before it asks for our preference (spec/kubernetes.md §1.7); but the allocator has chosen the chips already, by
    rings, so the two would disagree, and the pod would get chips that are not the kubelet's.
    """
    if snapshot is None:
        return None
    nodes = {chip.chip_id: getattr(chip, "numa_node", None) for chip in snapshot.chips}
    told = topology == "always" or (topology == "auto" and len(set(nodes.values())) == 1)
    message = pb.ListAndWatchResponse()
    for chip in snapshot.chips:
        device = message.devices.add(ID=chip_name(chip.chip_id), health="Healthy" if chip.healthy else "Unhealthy")
        node = nodes[chip.chip_id]
        if told and node is not None:
            device.topology.nodes.add(ID=node)
    return message


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    log.error("allocate failed", exc_info=error)
    return Refusal("Internal", f"the device plugin failed: {type(error).__name__}; its log says more")


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
