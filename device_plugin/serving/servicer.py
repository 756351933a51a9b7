"""The device-plugin service that the kubelet calls (docs/spec/kubelet.md): protobuf in and out, no decisions."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import structlog

from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import Refusal
from ascend.reasons import Reason
from device_plugin.device_types import WHOLE_CHIPS, DeviceType
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.pods.admission_matcher import AdmissionMatcher
from device_plugin.publish.order import PublishingOrder
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REFUSAL_CHARACTERS = 200
"""The longest refusal: it goes into the pod's status, and may quote an annotation of any length."""

Context = grpc.aio.ServicerContext[object, object]


class DevicePluginServicer(pb_grpc.DevicePluginServicer):
    """The service of one registration; each socket gets a new one.

    Args:
        snapshots: the node's chips.
        matcher: answers admission calls.
        order: decides whether the report or the kubelet comes first.
        metrics: counts calls.
        on_watched: called once the kubelet was sent the list of devices.
        before_first_call: awaited before the first call about a pod is answered; None if that needs no preparation.
        device_type: the type of devices that is offered.
    """

    def __init__(
        self,
        *,
        snapshots: Observable[Snapshot | None],
        matcher: AdmissionMatcher,
        order: PublishingOrder,
        metrics: Metrics,
        on_watched: Callable[[], None] = lambda: None,
        before_first_call: Callable[[], Awaitable[None]] | None = None,
        device_type: DeviceType = WHOLE_CHIPS,
    ) -> None:
        self._device_type = device_type
        self._on_watched = on_watched
        self._before_first_call = before_first_call
        self._snapshots = snapshots
        self._matcher = matcher
        self._order = order
        self._metrics = metrics
        self._ending = Observable(False)  # noqa: FBT003 - a value
        self._repeats = Observable(0)
        self._streams = 0
        self._calls = 0
        self.idle = asyncio.Event()
        """Set while no call about a pod is being answered."""
        self.idle.set()
        self.failure = ""
        """If set, a registration with this service fails with this text."""
        self.opened = asyncio.Event()
        """Set once the kubelet has opened the stream."""
        self.watched = asyncio.Event()
        """Set once the kubelet was sent the list of devices."""
        self.has_healthy = False
        """Whether the last list has healthy devices."""
        self.broken = asyncio.Event()
        """Set once the last stream has ended, or one has failed: the kubelet does not open another by itself."""

    def end_streams(self) -> None:
        """End all streams, so that stopping the server need not wait for them."""
        self._ending.set(True)

    def send_again(self) -> None:
        """Send the list of devices again: the kubelet may have got another plugin's since."""
        self._repeats.set(self._repeats.value + 1)

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        if self.failure:
            await context.abort(grpc.StatusCode.UNAVAILABLE, self.failure)
        return pb.DevicePluginOptions(get_preferred_allocation_available=True)

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        self._streams += 1
        self.opened.set()
        sent: tuple[pb.ListAndWatchResponse, int] | None = None
        sources = (self._snapshots, self._ending, self._repeats)
        try:
            while not self._ending.value:
                versions = [source.version for source in sources]
                snapshot = self._snapshots.value
                repeats = self._repeats.value
                if snapshot is not None and (found := (device_list(snapshot, self._device_type), repeats)) != sent:
                    await self._order.wait_before_list(snapshot, self._ending)
                    if self._ending.value:
                        return
                    if sent is None:
                        self._matcher.begin()
                    yield found[0]
                    sent, self.has_healthy = found, bool(snapshot.sent_healthy)
                    self._order.sent(snapshot.sent_healthy)
                    self.watched.set()
                    self._on_watched()
                    self._metrics.list_sent.set_to_current_time()
                await wait_for_change(sources, versions)
        except Exception:
            log.exception("the list of devices failed")
            self.broken.set()
            raise
        finally:
            self._streams -= 1
            if self._streams == 0:
                self.broken.set()

    async def GetPreferredAllocation(
        self,
        request: pb.PreferredAllocationRequest,
        context: Context,
    ) -> pb.PreferredAllocationResponse:
        self._begin_call(context)
        answer = pb.PreferredAllocationResponse()
        await self._prepare()
        for asked in request.container_requests:
            ids = await self._prefer(asked)
            answer.container_responses.add(deviceIDs=ids)
        return answer

    def _begin_call(self, context: Context) -> None:
        self._calls += 1
        self.idle.clear()
        # Once the answer is sent, which is after the handler has ended.
        context.add_done_callback(self._end_call)  # type: ignore[arg-type]  # the stubs want a class of their own

    def _end_call(self, _context: object) -> None:
        self._calls -= 1
        if not self._calls:
            self.idle.set()

    async def _prepare(self) -> None:
        if self._before_first_call is not None:
            prepare, self._before_first_call = self._before_first_call, None
            await prepare()

    async def _prefer(self, request: pb.ContainerPreferredAllocationRequest) -> list[str]:
        """Never raises: an error would fail the pod's admission, an empty answer does not."""
        try:
            ids = await self._matcher.prefer(
                request.available_deviceIDs, request.must_include_deviceIDs, request.allocation_size
            )
        except Exception:
            log.exception("the preferred allocation failed", requested=request.allocation_size)
            self._metrics.preferred_allocations.labels(result="failed").inc()
            return []
        self._metrics.preferred_allocations.labels(result="answered" if ids else "empty").inc()
        return ids

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        self._begin_call(context)
        return await self._allocate(request, context)

    async def _allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        started_s = time.perf_counter()
        try:
            answer = pb.AllocateResponse()
            await self._prepare()
            for asked in request.container_requests:
                given = await self._matcher.allocate(asked.devices_ids)
                if not given.matches_kubelet:
                    self._metrics.mismatches.inc()
                container = answer.container_responses.add(envs=given.edits.envs)
                for inside, outside in given.edits.devices.items():
                    container.devices.add(container_path=inside, host_path=outside, permissions="rw")
                for inside, outside in given.edits.mounts.items():
                    container.mounts.add(container_path=inside, host_path=outside, read_only=True)
                for name in given.edits.cdi_devices:
                    container.cdi_devices.add(name=name)
        except Exception as error:  # noqa: BLE001 - an internal error fails one pod, not the plugin
            refusal = _as_refusal(error)
            sentence = _shortened(f"{refusal.reason}: {refusal.message}")
            self._metrics.allocations.labels(result=refusal.reason).inc()
            log.warning(
                "refused",
                requested=[len(asked.devices_ids) for asked in request.container_requests],
                reason=refusal.reason,
                error=sentence,
            )
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, sentence)
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


class NoDevicesServicer(pb_grpc.DevicePluginServicer):
    """The service of a resource without devices, so that the kubelet allocates none."""

    def __init__(self) -> None:
        self.listed = asyncio.Event()
        """Set once the kubelet was sent the list."""

    async def GetDevicePluginOptions(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        return pb.DevicePluginOptions()

    async def ListAndWatch(self, request: pb.Empty, context: Context) -> AsyncIterator[pb.ListAndWatchResponse]:
        yield pb.ListAndWatchResponse()
        self.listed.set()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        raise NotImplementedError

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        raise NotImplementedError

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        raise NotImplementedError


def device_list(snapshot: Snapshot, device_type: DeviceType = WHOLE_CHIPS) -> pb.ListAndWatchResponse:
    """Return the kubelet's list of devices: every chip, so that a failed idle chip is seen as unhealthy.

    The NUMA node is included only if all chips are close to the same one. Otherwise a kubelet with a topology policy
    narrows the choice to the chips close to the CPUs it plans to use, before it calls GetPreferredAllocation
    (docs/spec/kubelet.md#getpreferredallocation). The allocator has already chosen the chips, by rings, so the two
    would disagree, and the kubelet's ledger would have other chips than the pod.
    """
    nodes = {chip.facts.numa_node for chip in snapshot.chips}
    numa_node = nodes.pop() if len(nodes) == 1 else None
    message, healthy = pb.ListAndWatchResponse(), snapshot.sent_healthy
    for chip in snapshot.chips:
        is_healthy = healthy >> chip.chip_id & 1
        name = device_type.device_name(chip.chip_id)
        device = message.devices.add(ID=name, health="Healthy" if is_healthy else "Unhealthy")
        if numa_node is not None:
            device.topology.nodes.add(ID=numa_node)
    return message


def _as_refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    log.error("allocate failed", exc_info=error)
    return Refusal(Reason.INTERNAL, f"the device plugin failed: {type(error).__name__}; see its log")


def _shortened(text: str) -> str:
    return text if len(text) <= REFUSAL_CHARACTERS else text[: REFUSAL_CHARACTERS - 1] + "…"
