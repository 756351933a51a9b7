"""Errors of gRPC calls: a status whose details have a google.rpc.ErrorInfo, for programs."""

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
