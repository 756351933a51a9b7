"""Errors on the wire: a gRPC status whose details carry a google.rpc.ErrorInfo, for programs to read."""

from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from ascend.errors import AscendError, InvalidValue, NotFound, Refusal, Unreachable
from ascend.reasons import Reason

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]

DOMAIN: Final = "ascend.allocator.v1"

_CODES: Final[dict[type[AscendError], grpc.StatusCode]] = {
    Refusal: grpc.StatusCode.FAILED_PRECONDITION,
    NotFound: grpc.StatusCode.NOT_FOUND,
    InvalidValue: grpc.StatusCode.INVALID_ARGUMENT,
    Unreachable: grpc.StatusCode.UNAVAILABLE,
}
_OF_REASONS: Final = {
    "ClientNotAllowed": grpc.StatusCode.PERMISSION_DENIED,
    "PodUnknown": grpc.StatusCode.NOT_FOUND,
    Reason.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
    "ViewIncomplete": grpc.StatusCode.UNAVAILABLE,
    "DeadlineTooShort": grpc.StatusCode.DEADLINE_EXCEEDED,
}


async def abort(context: Context, error: AscendError, **subject: str) -> NoReturn:
    """End a call with an error.

    Args:
        context: of the call.
        error: what is wrong; its reason is the ErrorInfo's.
        subject: what it is about, such as ``pod="default/a"``; the ErrorInfo's metadata.
    """
    code = _OF_REASONS.get(error.reason) or next(
        (code for kind, code in _CODES.items() if isinstance(error, kind)), grpc.StatusCode.ABORTED
    )
    status = status_pb2.Status(code=code.value[0], message=f"{error.reason}: {error.message}")
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=subject)
    status.details.add().Pack(info)
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)
    raise AssertionError  # abort() has raised
