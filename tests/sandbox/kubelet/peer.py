"""A minimal device plugin whose behaviour the test controls."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import grpc

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services

if TYPE_CHECKING:
    from protos.k8s.deviceplugin.v1beta1.deviceplugin_pb2_grpc import _ServicerContext

OPTIONS = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
RESOURCE = "huawei.com/Ascend910"
_numbers = itertools.count()


class Refused(Exception):
    """Raised to answer a call with a gRPC error."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class Plugin(services.DevicePluginServicer):
    def __init__(self, directory: Path, devices: int = 8, resource: str = RESOURCE, *, prefers: bool = True) -> None:
        self.directory = directory
        self.resource = resource
        self.health = {f"Ascend910-{number}": "Healthy" for number in range(devices)}
        self.numa: dict[str, int] = {}
        self.options = pb.DevicePluginOptions(get_preferred_allocation_available=prefers)
        self.options_error: Refused | None = None
        self.prefer: Callable[[list[str], list[str], int], list[str]] = lambda _available, _chosen, _size: []
        self.allocate: Callable[[list[str]], Awaitable[pb.ContainerAllocateResponse]] = self._allocate
        self.answers_for_no_container = False
        self.pre_start_error: Refused | None = None
        self.available: list[list[str]] = []
        self.allocated: list[list[str]] = []
        self.pre_started: list[list[str]] = []
        self.streams = 0
        self.list_error: Refused | None = None
        self.cancelled = asyncio.Event()
        self._changed: list[asyncio.Queue[str]] = []
        self.endpoint = ""
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        self.endpoint = f"p{next(_numbers)}.sock"
        self._server = grpc.aio.server()
        services.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.directory / self.endpoint}")
        await self._server.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def stop(self) -> None:
        if self._server is not None:
            self.end_streams()
            await self._server.stop(grace=None)
            self._server = None

    async def register(self, *, version: str = "v1beta1", resource: str = "", endpoint: str = "") -> None:
        async with grpc.aio.insecure_channel(f"unix:{self.directory / 'kubelet.sock'}", options=OPTIONS) as channel:
            await services.RegistrationStub(channel).Register(
                pb.RegisterRequest(
                    version=version, endpoint=endpoint or self.endpoint, resource_name=resource or self.resource
                )
            )

    def send(self) -> None:
        for queue in self._changed:
            queue.put_nowait("send")

    def end_streams(self) -> None:
        for queue in self._changed:
            queue.put_nowait("end")

    async def GetDevicePluginOptions(self, request: pb.Empty, context: "_ServicerContext") -> pb.DevicePluginOptions:  # noqa: ARG002, N802
        if self.options_error is not None:
            await context.abort(self.options_error.code, self.options_error.text)
        return self.options

    async def ListAndWatch(  # noqa: N802
        self,
        request: pb.Empty,  # noqa: ARG002
        context: "_ServicerContext",
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._changed.append(queue)
        self.streams += 1
        if self.list_error is not None:
            await context.abort(self.list_error.code, self.list_error.text)
        try:
            yield self._devices()
            while await queue.get() == "send":
                yield self._devices()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            self._changed.remove(queue)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: pb.PreferredAllocationRequest, context: "_ServicerContext"
    ) -> pb.PreferredAllocationResponse:
        (wanted,) = request.container_requests
        self.available.append(list(wanted.available_deviceIDs))
        try:
            chosen = self.prefer(
                list(wanted.available_deviceIDs), list(wanted.must_include_deviceIDs), wanted.allocation_size
            )
        except Refused as refused:
            await context.abort(refused.code, refused.text)
        return pb.PreferredAllocationResponse(
            container_responses=[pb.ContainerPreferredAllocationResponse(deviceIDs=chosen)]
        )

    async def Allocate(self, request: pb.AllocateRequest, context: "_ServicerContext") -> pb.AllocateResponse:  # noqa: N802
        (wanted,) = request.container_requests
        self.allocated.append(list(wanted.devices_ids))
        if self.answers_for_no_container:
            return pb.AllocateResponse()
        try:
            return pb.AllocateResponse(container_responses=[await self.allocate(list(wanted.devices_ids))])
        except Refused as refused:
            await context.abort(refused.code, refused.text)
            raise

    async def PreStartContainer(  # noqa: N802
        self, request: pb.PreStartContainerRequest, context: "_ServicerContext"
    ) -> pb.PreStartContainerResponse:
        self.pre_started.append(list(request.devices_ids))
        if self.pre_start_error is not None:
            await context.abort(self.pre_start_error.code, self.pre_start_error.text)
        return pb.PreStartContainerResponse()

    async def _allocate(self, devices: list[str]) -> pb.ContainerAllocateResponse:
        numbers = ",".join(sorted(each.removeprefix("Ascend910-") for each in devices))
        return pb.ContainerAllocateResponse(envs={"ASCEND_VISIBLE_DEVICES": numbers})

    def _devices(self) -> pb.ListAndWatchResponse:
        message = pb.ListAndWatchResponse()
        for each, health in self.health.items():
            device = message.devices.add(ID=each, health=health)
            if each in self.numa:
                device.topology.nodes.add(ID=self.numa[each])
        return message
