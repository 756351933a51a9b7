"""The gRPC server: address, certificates, health checks, reflection, and how a call ends with an error."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from ascend.daemon.grpc_start import start_server
from ascend.errors import AscendError, InvalidValue, NotFound, Refusal, Unreachable
from ascend.reasons import Reason
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1 import allocator_pb2_grpc as pb_grpc

SERVICE = pb.DESCRIPTOR.services_by_name["Allocator"].full_name
OPTIONS: Final = (
    # Without this a second process could listen on the same port, and calls would be split between two ledgers.
    ("grpc.so_reuseport", 0),
    # A scheduler has one connection; those that say nothing are closed, and one without calls after a while.
    ("grpc.max_allowed_incoming_connections", 64),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.http2.settings_timeout", 5_000),
    ("grpc.max_connection_idle_ms", 600_000),
    # The names of 8,000 nodes.
    ("grpc.max_receive_message_length", 2 << 20),
)
"""The limits of connections and messages."""

MOST_CALLS: Final = 4096
"""The most calls at a time: each Binding of a gang that is held is one."""

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
    server = grpc.aio.server(interceptors=interceptors, options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
    pb_grpc.add_AllocatorServicer_to_server(service, server)
    server.add_registered_method_handlers(SERVICE, _serializing_calls(service))
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


def _serializing_calls(service: pb_grpc.AllocatorServicer) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
    """The calls whose answers may be for each node: the service serializes them itself, piece by piece."""
    return {
        "Filter": grpc.unary_unary_rpc_method_handler(service.Filter, pb.FilterRequest.FromString),
        "Score": grpc.unary_unary_rpc_method_handler(service.Score, pb.ScoreRequest.FromString),
    }


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


Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

DOMAIN: Final = "ascend.allocator.v1"

_CODES: Final[dict[type[AscendError], grpc.StatusCode]] = {
    Refusal: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    InvalidValue: grpc.StatusCode.INVALID_ARGUMENT,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
}
_REASON_CODES: Final[dict[str, grpc.StatusCode]] = {
    Reason.CLIENT_NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.POD_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Reason.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
    Reason.VIEW_INCOMPLETE: grpc.StatusCode.UNAVAILABLE,
    Reason.DEADLINE_TOO_SHORT: grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def abort(context: Context, error: AscendError, **subject: str) -> NoReturn:
    """End a call with an error.

    Args:
        context: the call's context.
        error: the error; its reason becomes the ErrorInfo's reason.
        subject: the objects it is about, such as ``pod="default/a"``; becomes the ErrorInfo's metadata.
    """
    code = _REASON_CODES.get(error.reason) or next(
        (code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.ABORTED
    )
    status = status_pb2.Status(code=code.value[0], message=f"{error.reason}: {error.message}")
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=subject)
    status.details.add().Pack(info)
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError  # unreachable: abort() raises
