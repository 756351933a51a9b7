"""A client of the API server: raw JSON over aiohttp, decoded into slim objects.

What the official library's client does not do well: errors with a meaning, client-side deadlines on everything, one
retry with a fresh identity after 401, and decoding without models (spec/field.md §3b; spec/kubernetes.md §8).
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlencode

import aiohttp
import msgspec

from ascend.errors import (
    UNREADABLE,
    ApiError,
    Conflict,
    Expired,
    InvalidValue,
    NotFound,
    Throttled,
    Unauthorized,
    Unreachable,
)
from ascend.kube.identity import Access, load_access
from ascend.kube.objects import PODS, JsonObject, KubeObject, Resource, T

MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH: Final = "application/strategic-merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"

PAGE_SIZE: Final = 500
REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
RETRY_AFTER_LIMIT_S: Final = 30.0
"""An API server asks for a pause of some seconds; what stands before it, down for maintenance, may ask for hours."""
CONNECTIONS: Final = 100
"""At most, at the same time; watches keep theirs."""

_ERRORS: Final[dict[int, type[ApiError]]] = {
    HTTPStatus.UNAUTHORIZED: Unauthorized,
    HTTPStatus.NOT_FOUND: NotFound,
    HTTPStatus.CONFLICT: Conflict,
    HTTPStatus.GONE: Expired,
    HTTPStatus.TOO_MANY_REQUESTS: Throttled,
}


class _Status(msgspec.Struct, rename="camel"):
    message: str = ""
    reason: str = ""
    code: int = 0


class _ListMeta(msgspec.Struct):
    continue_: str = msgspec.field(default="", name="continue")


class _ObjectList(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _AccessStatus(msgspec.Struct):
    allowed: bool


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


@dataclass(frozen=True, slots=True)
class _Call:
    method: str
    path: str
    timeout: aiohttp.ClientTimeout
    query: Mapping[str, str] | None = None
    body: JsonObject | list[JsonObject] | None = None
    content_type: str = "application/json"


class KubeClient:
    """Requests to one API server. Use as an async context manager, within a running event loop.

    Args:
        access: where the server is, and who we are.
        reload: gives a fresh access after the server has answered 401; None where there is nothing to refresh.
    """

    def __init__(self, access: Access, reload: Callable[[], Awaitable[Access]] | None = None) -> None:
        self._access = access
        self._headers = access.headers
        self._reload = reload
        # With trust_env aiohttp would look the proxy up anew, in a thread, for every request; once is enough.
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=access.tls)
        # An API server gives no cookies; looking for some would be done for every request.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """A client with the access ``load_access`` finds.

        Raises:
            InvalidValue: no source of an access is usable.
        """

        async def load() -> Access:
            return await load_access(kubeconfig, context)

        return cls(await load(), load)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    @property
    def url(self) -> str:
        """The address of the API server."""
        return self._access.url

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: JsonObject | list[JsonObject] | None = None,
        content_type: str = "application/json",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> bytes:
        """One request, whole answer.

        Args:
            method: the HTTP method.
            path: with the leading slash.
            query: query parameters.
            body: sent as JSON.
            content_type: of the body; the kind of patch.
            timeout_s: for the whole request.

        Raises:
            ApiError: the server answered with an error; the subclass says which.
            Unreachable: no answer.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S)
        async with self._exchange(_Call(method, path, timeout, query, body, content_type)) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """The lines of an endless answer; lines may be of any length.

        Args:
            path: with the leading slash.
            query: query parameters.
            idle_timeout_s: the stream counts as broken when nothing arrives for so long: a half-open connection
                looks exactly like a quiet one.

        Raises:
            ApiError: the server answered with an error.
            Unreachable: no connection, or the stream broke.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s)
        async with self._exchange(_Call("GET", path, timeout, query)) as response:
            yield _lines(response)

    @asynccontextmanager
    async def _exchange(self, call: "_Call") -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._send(call)
            if response.status == HTTPStatus.UNAUTHORIZED and self._reload is not None:
                response.release()
                await self._refresh_identity(self._reload)
                response = await self._send(call)
            async with response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise _error(response, await response.read())
                yield response
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise Unreachable(f"{call.method} {self.url}{call.path}: {text}") from error

    async def _send(self, call: "_Call") -> aiohttp.ClientResponse:
        url = self.url + call.path + (f"?{urlencode(call.query)}" if call.query else "")
        headers = {"Content-Type": call.content_type, "Accept": "application/json", "User-Agent": "ascend-affinity"}
        headers |= await self._headers()
        return await self._session.request(
            call.method,
            url,
            headers=headers,
            data=None if call.body is None else msgspec.json.encode(call.body),
            timeout=call.timeout,
            proxy=self._access.proxy,
            server_hostname=self._access.server_name,
        )

    async def identity_headers(self) -> Mapping[str, str]:
        """The headers that say who we are, as of now: tokens are refreshed."""
        return await self._headers()

    async def _refresh_identity(self, reload: Callable[[], Awaitable[Access]]) -> None:
        try:
            fresh = await reload()
        except InvalidValue as error:
            raise Unreachable(f"the identity could not be loaded again: {error}") from error
        # An exec plugin that fails gives no token; a stale one is refused with 401 and leads here again, none is not.
        if await fresh.headers():
            self._headers = fresh.headers

    async def get(
        self, resource: Resource[T], name: str, namespace: str = "", *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """One object.

        Raises:
            ApiError: NotFound among others.
            Unreachable: no answer.
        """
        path = resource.path(namespace=namespace, name=name)
        return _decode(await self.request("GET", path, timeout_s=timeout_s), resource.type)

    async def list_objects(self, resource: Resource[T], namespace: str = "", *, field_selector: str = "") -> list[T]:
        """All objects of a kind, in one answer; a reflector is better for whoever needs them again.

        Raises:
            ApiError: the server refused.
            Unreachable: no answer.
        """
        query = {"fieldSelector": field_selector} if field_selector else None
        items = _decode_list(await self.request("GET", resource.path(namespace=namespace), query=query)).items
        return [_decode(bytes(item), resource.type) for item in items or ()]

    async def pages(
        self, resource: Resource[T], namespace: str = "", *, label_selector: str = ""
    ) -> AsyncIterator[list[T]]:
        """All objects of a kind, some hundreds at a time; objects that can't be decoded are left out.

        Raises:
            ApiError: the server refused.
            Unreachable: no answer.
        """
        query = {"limit": str(PAGE_SIZE), **({"labelSelector": label_selector} if label_selector else {})}
        while True:
            page = _decode_list(await self.request("GET", resource.path(namespace=namespace), query=query))
            objects = []
            for item in page.items or ():
                with suppress(*UNREADABLE):
                    objects.append(msgspec.json.decode(item, type=resource.type))
            yield objects
            if not page.metadata.continue_:
                return
            query["continue"] = page.metadata.continue_

    async def create(self, resource: Resource[T], body: JsonObject, namespace: str = "") -> T:
        """Create an object; the answer is the object as stored.

        Raises:
            ApiError: Conflict where it exists.
            Unreachable: no answer; it may have been created all the same.
        """
        return _decode(await self.request("POST", resource.path(namespace=namespace), body=body), resource.type)

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        body: JsonObject | list[JsonObject],
        *,
        namespace: str = "",
        content_type: str = MERGE_PATCH,
        subresource: str = "",
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> T:
        """Change parts of an object; the answer is the object as stored.

        Raises:
            ApiError: NotFound, or Conflict where a precondition in the patch does not hold.
            Unreachable: no answer; it may have been changed all the same.
        """
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        answer = await self.request("PATCH", path, body=body, content_type=content_type, timeout_s=timeout_s)
        return _decode(answer, resource.type)

    async def delete(self, resource: Resource[T], name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete an object; with a uid, only that one and no other of the same name.

        Raises:
            ApiError: NotFound, or Conflict where the uid is another.
            Unreachable: no answer; it may have been deleted all the same.
        """
        body: JsonObject | None = {"preconditions": {"uid": uid}} if uid else None
        await self.request("DELETE", resource.path(namespace=namespace, name=name), body=body)

    async def may(
        self, verb: str, resource: str, *, group: str = "", subresource: str = "", namespace: str = ""
    ) -> bool:
        """Whether we are allowed to do something; the server itself says so.

        Args:
            verb: as RBAC has it.
            resource: plural.
            group: the API group; empty for the core one.
            subresource: empty for none.
            namespace: empty for all.

        Raises:
            ApiError: the server refused to say.
            Unreachable: no answer, or none that can be used.
        """
        attributes = {
            "verb": verb,
            "resource": resource,
            "group": group,
            "subresource": subresource,
            "namespace": namespace,
        }
        api = "authorization.k8s.io/v1"
        body: JsonObject = {
            "apiVersion": api,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = await self.request("POST", f"/apis/{api}/selfsubjectaccessreviews", body=body)
        try:
            return msgspec.json.decode(answer, type=_AccessReview).status.allowed
        except UNREADABLE as error:
            raise Unreachable(f"the API server's answer about rights is not understood: {error}") from error

    async def bind(
        self,
        *,
        namespace: str,
        name: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """Bind a pod to a node and annotate it, in one transaction of the API server (design, decision 1).

        The server, too, gives up after ``timeout_s``: what it has not done by then it will not do.

        Raises:
            ApiError: NotFound, or Conflict where the pod is another one or already bound.
            Unreachable: no answer; it may have been bound all the same.
        """
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="binding")
        # Nor does it look for fields it does not know: that is a second reading, for each pod of a cluster.
        query = {"timeout": f"{math.ceil(timeout_s * 1000)}ms", "fieldValidation": "Ignore"}
        await self.request("POST", path, query=query, body=body, timeout_s=timeout_s)


def _decode_list(raw: bytes) -> _ObjectList:
    try:
        return msgspec.json.decode(raw, type=_ObjectList)
    except UNREADABLE as error:
        raise Unreachable(f"the API server's list can't be decoded: {error}") from error


def _decode(raw: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        name = _name(raw)
        raise Unreachable(
            f"the API server's answer about {name or kind.__name__} is not understood: {error}"
        ) from error


def _name(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=KubeObject).key
    except UNREADABLE:
        return ""


def _error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
    try:
        status = msgspec.json.decode(body, type=_Status)
    except UNREADABLE:
        status = _Status(message=body[:200].decode(errors="replace"))
    return error_of(
        response.status,
        status.message or response.reason or "",
        status.reason,
        retry_after_s=_seconds(response.headers.get("Retry-After", "")),
    )


def _seconds(retry_after: str) -> float | None:
    """How long to wait; None where it is not said, or by a date, as no API server does."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return None
    return min(float(retry_after), RETRY_AFTER_LIMIT_S)


def error_of(status: int, message: str, reason: str = "", *, retry_after_s: float | None = None) -> ApiError:
    """The exception for a status code, wherever it came from: an HTTP answer or an ERROR event of a watch."""
    kind = _ERRORS.get(status, ApiError)
    return kind(message, status=status, reason=reason or None, retry_after_s=retry_after_s)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # aiohttp's readline() has a limit on the length of a line; an object may be larger than any we would set.
    pending = bytearray()
    async for chunk in response.content.iter_any():
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            pending += chunk[start:end]
            if pending:
                yield bytes(pending)
                pending.clear()
            start = end + 1
        pending += chunk[start:]
