"""The kubelet's client of a registered device plugin, over its unix socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable
from pathlib import Path
from typing import Final, TypeVar

import grpc

from ascend.errors import AscendError, InvalidValue
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as services

CHANNEL_OPTIONS: Final = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))
"""Options of every channel over a unix socket (docs/spec/kube-api.md#grpc-over-unix-sockets)."""

SOCKET_PATH_BYTES: Final = 107
"""Maximum length of the path of a unix socket."""

PRE_START_TIMEOUT_S: Final = 30.0

_GO_NAMES: Final = {grpc.StatusCode.CANCELLED: "Canceled", grpc.StatusCode.OK: "OK"}


T = TypeVar("T")


class PluginFailure(AscendError):
    """A call to a device plugin failed; the text is the message of the kubelet."""


class PluginEndpoint:
    """The connection to one plugin. Like the kubelet, it sets no deadlines (docs/spec/kubelet.md#limits).

    Args:
        resource: the resource that the plugin registered.
        socket: the plugin's socket.
        dial_timeout_s: how long to wait for the connection.
    """

    def __init__(self, resource: str, socket: Path, *, dial_timeout_s: float) -> None:
        self.resource = resource
        self.options = pb.DevicePluginOptions()
        self.stopped = False
        """Whether its stream has ended; the kubelet then never connects again."""
        self._dial_timeout_s = dial_timeout_s
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=CHANNEL_OPTIONS)
        self._stub = services.DevicePluginStub(self._channel)

    async def connect(self) -> None:
        """Connect and get the plugin's options.

        Raises:
            PluginFailure: one of the two failed.
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
        """Yield every ListAndWatch message of the plugin, until the stream ends for whatever reason."""
        try:
            async for message in self._stub.ListAndWatch(pb.Empty()):
                yield message
        except grpc.aio.AioRpcError:
            return

    async def prefer(self, available: Iterable[str], chosen: Iterable[str], size: int) -> frozenset[str]:
        """Return the devices that the plugin prefers; none if it has no preference.

        See docs/spec/kubelet.md#getpreferredallocation.

        Raises:
            PluginFailure: the call failed, which fails the pod's admission.
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
        """Allocate devices and return what a container needs to use them (docs/spec/kubelet.md#allocation).

        Raises:
            PluginFailure: the call failed, or the response is for no container.
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
        """Call PreStartContainer before a container starts (docs/spec/kubelet.md#prestartcontainer).

        Raises:
            PluginFailure: the call failed or timed out.
        """
        request = pb.PreStartContainerRequest(devices_ids=devices)
        try:
            await self._call(self._stub.PreStartContainer(request, timeout=PRE_START_TIMEOUT_S))
        except grpc.aio.AioRpcError as error:
            text = go_text(error)
            raise PluginFailure(f"device plugin PreStartContainer rpc failed with err: {text}") from error

    async def _call(self, call: Awaitable[T]) -> T:
        """Await a call. As in Go, a closed connection fails the call; it does not cancel the calling task."""
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.stopped or (task is not None and task.cancelling()):
                raise
            text = "rpc error: code = Canceled desc = grpc: the client connection is closing"
            raise PluginFailure(text) from None

    async def close(self) -> None:
        """Close the connection, which cancels the plugin's stream handler."""
        self.stopped = True
        await self._channel.close()


def go_text(error: grpc.aio.AioRpcError) -> str:
    """Format a gRPC error as Go does, which is the text in the pod's status.

    See docs/spec/kubelet.md#admission-failures.
    """
    code = error.code()
    name = _GO_NAMES.get(code) or "".join(word.capitalize() for word in code.name.split("_"))
    return f"rpc error: code = {name} desc = {error.details()}"


def checked_socket(path: Path) -> Path:
    """Return the path, if it is short enough for a unix socket.

    Raises:
        InvalidValue: it is too long.
    """
    if len(str(path).encode()) > SOCKET_PATH_BYTES:
        raise InvalidValue(f"{path}: longer than the {SOCKET_PATH_BYTES} bytes a unix socket's path may have")
    return path
