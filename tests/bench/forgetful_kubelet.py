"""A kubelet that registers a plugin but watches it only after a second registration."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc

from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

PATIENCE_S: Final = 30.0
_CHANNEL: Final = (("grpc.default_authority", "localhost"), ("grpc.enable_http_proxy", 0))

_Registrations = asyncio.Queue[tuple[str, float]]
"""Endpoint and time (perf_counter) of each registration."""


class _Registrar(pb_grpc.RegistrationServicer):
    def __init__(self) -> None:
        self.registrations: _Registrations = asyncio.Queue()

    async def Register(  # noqa: N802 - gRPC's name
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.Empty:
        del context
        self.registrations.put_nowait((request.endpoint, time.perf_counter()))
        return pb.Empty()


async def forget_once(folder: Path) -> float:
    """Act as the kubelet; return the seconds from the first registration until the list, which follows a second one.

    Args:
        folder: the folder of ``kubelet.sock``, which is removed at the end.
    """
    async with asyncio.timeout(PATIENCE_S), _registering(folder) as registrations:
        _, forgotten_s = await registrations.get()
        endpoint, _ = await registrations.get()
        async with grpc.aio.insecure_channel(f"unix:{folder / endpoint}", options=_CHANNEL) as channel:
            stream = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
            await stream.read()
            watched_s = time.perf_counter()
            stream.cancel()
    return watched_s - forgotten_s


@asynccontextmanager
async def _registering(folder: Path) -> AsyncIterator[_Registrations]:
    registrar, socket = _Registrar(), folder / "kubelet.sock"
    server = grpc.aio.server()
    pb_grpc.add_RegistrationServicer_to_server(registrar, server)
    socket.unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    try:
        yield registrar.registrations
    finally:
        await server.stop(None)
        socket.unlink(missing_ok=True)
