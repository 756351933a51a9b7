"""The gRPC server: address, certificates, health checks and reflection."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from ascend.daemon.grpc_start import start_server
from ascend.errors import InvalidValue
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1 import allocator_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"].full_name
STOP_S = 2.0
"""The time that calls in progress get when the server stops."""


@asynccontextmanager
async def serve_grpc(
    service: pb_grpc.AllocatorServicer,
    address: str,
    *,
    credentials: grpc.ServerCredentials | None = None,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> AsyncIterator["GrpcServer"]:
    """Serve within a ``with`` block.

    Args:
        service: answers the calls.
        address: ``host:port`` (port 0 takes a free one) or ``unix:<path>``.
        credentials: certificates; None for plaintext.
        interceptors: called before every call.

    Raises:
        InvalidValue: the server can't listen on the address.
    """
    # Without this a second process could listen on the same port, and calls would be split between two ledgers.
    server = grpc.aio.server(interceptors=interceptors, options=(("grpc.so_reuseport", 0),))
    pb_grpc.add_AllocatorServicer_to_server(service, server)
    checks = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(checks, server)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise InvalidValue(f"cannot listen on {address}: {error}") from error
    bound = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
    running = GrpcServer(bound, checks)
    await running.set_serving(serving=False)
    await start_server(server)
    try:
        yield running
    finally:
        await running.set_serving(serving=False)
        await server.stop(STOP_S)


class GrpcServer:
    """A running server.

    Args:
        address: where it listens, with the port it was given.
        checks: its health service.
    """

    def __init__(self, address: str, checks: health.aio.HealthServicer) -> None:
        self.address = address
        self._checks = checks

    async def set_serving(self, *, serving: bool) -> None:
        """Set the answer to health checks: SERVING or NOT_SERVING."""
        status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in ("", SERVICE):
            await self._checks.set(name, status)
