"""One registered device plugin as the kubelet calls it, over its unix socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import grpc

from ascend.errors import AscendError, InvalidValue
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services

CHANNEL_OPTIONS: Final = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
"""For every call over a unix socket (spec/kubernetes.md §8.3)."""

SOCKET_PATH_BYTES: Final = 107
"""The longest path of a unix socket."""

PRE_START_TIMEOUT_S: Final = 30.0

_GO_NAMES: Final = {grpc.StatusCode.CANCELLED: "Canceled", grpc.StatusCode.OK: "OK"}


T = TypeVar("T")


class PluginFailure(AscendError):
    """A device plugin could not be called or refused; the text is what the kubelet would print."""


class Endpoint:
    """The kubelet's end of the connection to one plugin. The kubelet sets no deadlines, so neither do we (§1.15).

    Args:
        resource: what the plugin registered.
        socket: where it serves.
        dial_timeout_s: how long to wait for the connection.
    """

    def __init__(self, resource: str, socket: Path, *, dial_timeout_s: float) -> None:
        self.resource = resource
        self.options = pb.DevicePluginOptions()
        self.stopped = False
        """Its stream has ended; it is never dialled again."""
        self._dial_timeout_s = dial_timeout_s
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
        self._stub = services.DevicePluginStub(self._channel)

    async def connect(self) -> None:
        """Dial and ask for the plugin's options.

        Raises:
            PluginFailure: either failed.
        """
        try:
            async with asyncio.timeout(self._dial_timeout_s):
                await self._channel.channel_ready()
        except TimeoutError:
            raise PluginFailure("failed to dial device plugin: context deadline exceeded") from None
        try:
            self.options = await self._stub.GetDevicePluginOptions(pb.Empty())
        except grpc.aio.AioRpcError as error:
            raise PluginFailure(f"failed to get device plugin options: {go_text(error)}") from error

    async def watch(self) -> AsyncIterator[pb.ListAndWatchResponse]:
        """The plugin's devices, whenever it says so; ends where the stream ends, however that happens."""
        try:
            async for message in self._stub.ListAndWatch(pb.Empty()):
                yield message
        except grpc.aio.AioRpcError:
            return

    async def prefer(self, available: Iterable[str], chosen: Iterable[str], size: int) -> frozenset[str]:
        """Which devices the plugin would choose; none where it has no opinion (§1.7).

        Raises:
            PluginFailure: the call failed, and with it the pod's admission.
        """
        request = pb.ContainerPreferredAllocationRequest(
            available_deviceIDs=available, must_include_deviceIDs=chosen, allocation_size=size
        )
        try:
            answer = await self._call(
                self._stub.GetPreferredAllocation(pb.PreferredAllocationRequest(container_requests=[request]))
            )
        except grpc.aio.AioRpcError as error:
            text = go_text(error)
            raise PluginFailure(f"device plugin GetPreferredAllocation rpc failed with err: {text}") from error
        return frozenset(answer.container_responses[0].deviceIDs if answer.container_responses else ())

    async def allocate(self, devices: Iterable[str]) -> pb.ContainerAllocateResponse:
        """Ask for what a container needs to use the devices (§1.6).

        Raises:
            PluginFailure: the call failed, or the answer is for no container.
        """
        if self.stopped:
            raise PluginFailure(f"endpoint {self.resource} has been stopped")
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=devices)])
        try:
            answer = await self._call(self._stub.Allocate(request))
        except grpc.aio.AioRpcError as error:
            raise PluginFailure(go_text(error)) from error
        if not answer.container_responses:
            raise PluginFailure("no containers return in allocation response &AllocateResponse{}")
        return answer.container_responses[0]

    async def pre_start(self, devices: Iterable[str]) -> None:
        """Tell the plugin that a container is about to start (§1.8).

        Raises:
            PluginFailure: the call failed or took too long.
        """
        request = pb.PreStartContainerRequest(devices_ids=devices)
        try:
            await self._call(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            text = go_text(error)
            raise PluginFailure(f"device plugin PreStartContainer rpc failed with err: {text}") from error

    async def _call(self, call: Awaitable[T]) -> T:
        """The answer to a call; one that is hung up on fails, as in Go, and does not cancel whoever made it."""
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.stopped or (task is not None and task.cancelling()):
                raise
            text = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise PluginFailure(text) from None

    async def close(self) -> None:
        """Hang up; the plugin's stream handler is cancelled by it."""
        self.stopped = True
        await self._channel.close()


def go_text(error: grpc.aio.AioRpcError) -> str:
    """A gRPC error as Go prints it: the text that ends in the pod's status (§1.14)."""
    code = error.code()
    name = _GO_NAMES.get(code) or "".join(word.capitalize() for word in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"


def checked_socket(path: Path) -> Path:
    """The path itself.

    Raises:
        InvalidValue: it is too long for a unix socket.
    """
    if len(str(path).encode()) > SOCKET_PATH_BYTES:
        raise InvalidValue(f"{path}: longer than the {SOCKET_PATH_BYTES} bytes a unix socket's path may have")
    return path
