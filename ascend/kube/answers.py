"""Decodes what the API server answers: objects into slim types, failures into exceptions."""

import logging
from http import HTTPStatus
from typing import Final, TypeVar

import aiohttp
import msgspec

from ascend.errors import UNREADABLE, ApiError, Conflict, Expired, NotFound, Throttled, Unauthorized, Unreachable
from ascend.kube.objects import KubeObject, Resource, T, read_object

log = logging.getLogger(__name__)

RETRY_AFTER_LIMIT_S: Final = 30.0
"""The longest wait that Retry-After can set: API servers send some seconds, a proxy in maintenance may send hours."""

_ERRORS: Final[dict[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Expired,
    HTTPStatus.TOO_MANY_REQUESTS: Throttled,
}


_D = TypeVar("_D")


class Status(msgspec.Struct):
    """The API server's answer if it fails, or an ERROR event of a watch."""

    message: str = ""
    reason: str = ""
    code: int = 0


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class List(msgspec.Struct):
    """A page of a list."""

    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _HeadMetadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    resource_version: str = ""


class Head(msgspec.Struct):
    """What tells whether an object has changed, decoded in a fraction of the time."""

    metadata: _HeadMetadata

    @property
    def key(self) -> str:
        """``namespace/name``, or the name alone."""
        return f"{self.metadata.namespace}/{self.metadata.name}" if self.metadata.namespace else self.metadata.name


class WatchEvent(msgspec.Struct):
    """A change on a watch, or its error."""

    type: str
    object: msgspec.Raw


def decode(raw: bytes | msgspec.Raw, kind: type[_D], what: str = "") -> _D:
    """Decode the API server's answer; ``what`` names it in the error, by default as an object.

    Raises:
        Unreachable: it can't be decoded.
    """
    try:
        return read_object(raw, kind)
    except UNREADABLE as error:
        what = what or f"answer about {_name(raw) or kind.__name__}"
        raise Unreachable(f"the API server's {what} can't be decoded: {error}") from error


def decode_head(raw: msgspec.Raw, of: type[_D]) -> _D | None:
    """Decode the metadata of an object; None if the metadata can't be decoded."""
    try:
        return msgspec.json.decode(raw, type=of)
    except UNREADABLE:
        return None


def decode_item(raw: msgspec.Raw, resource: Resource[T]) -> T | str:
    """An object, or the error of the decoder: one object must not hide the others."""
    try:
        return read_object(raw, resource.type)
    except UNREADABLE as error:
        shown = bytes(raw)[:200].decode(errors="replace")
        extra = {"resource": resource.plural, "error": str(error), "object": shown}
        log.error("ignoring an object", extra=extra)  # noqa: TRY400 - the traceback of a decoder is not useful
        return str(error)


def error_of(status: int, message: str, reason: str = "", *, retry_after_s: float | None = None) -> ApiError:
    """The exception for a status code, from an HTTP response or an ERROR event of a watch."""
    kind = _ERRORS.get(status, ApiError)
    return kind(message, status=status, reason=reason or None, retry_after_s=retry_after_s)


def read_error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    """The exception for a response with an error."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except UNREADABLE:
        status = Status(message=body[:200].decode(errors="replace"))
    return error_of(
        response.status,
        status.message or response.reason or "",
        status.reason,
        retry_after_s=_seconds(response.headers.get("Retry-After", "")),
    )


def _name(raw: bytes | msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=KubeObject).key
    except UNREADABLE:
        return ""


def _seconds(retry_after: str) -> float | None:
    """Parse Retry-After; None if it is missing, or a date, which API servers don't send."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return None
    return min(float(retry_after), RETRY_AFTER_LIMIT_S)
