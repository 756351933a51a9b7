"""A client of the API server: raw JSON over aiohttp, decoded into slim objects.

In contrast to the official library's client it has specific exceptions, client-side timeouts for every request, one
retry with fresh credentials after 401, and decodes without models (docs/spec/kube-api.md#client-cost;
docs/spec/kube-api.md#watches).
"""

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Final, Self, TypeVar
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

REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
RETRY_AFTER_LIMIT_S: Final = 30.0
"""The longest wait that Retry-After can set: API servers send some seconds, a proxy in maintenance may send hours."""
CONNECTIONS: Final = 100
"""The most connections at the same time; each watch keeps one."""

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


class _ObjectList(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


class _AccessStatus(msgspec.Struct):
    allowed: bool


class _AccessReview(msgspec.Struct):
    status: _AccessStatus


class KubeClient:
    """A client of one API server. Use it as an async context manager, within a running event loop.

    Every method that sends a request raises ``ApiError`` if the server answers with an error (the subclass depends on
    the status code), and ``Unreachable`` if there is no valid answer: a change may have been made nevertheless.

    Args:
        access: address and credentials.
        reload: loads fresh credentials after the server has answered 401; None if that is not possible.
    """

    def __init__(self, access: Access, reload: Callable[[], Awaitable[Access]] | None = None) -> None:
        self._access = access
        self._headers = access.headers
        self._reload = reload
        # With trust_env aiohttp would look up the proxy, in a thread, for every request; once is enough.
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=access.tls)
        # API servers set no cookies; a cookie jar would be searched for every request.
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar())

    @classmethod
    async def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """Create a client with the access that ``load_access`` finds.

        Raises:
            InvalidValue: no access is usable.
        """
        load = partial(load_access, kubeconfig, context)
        return cls(await load(), load)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
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
        """Send a request and return the whole response body; ``timeout_s`` is for both together.

        The body is sent as JSON; for patches its media type selects the type of patch.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, connect=CONNECT_TIMEOUT_S)
        async with self._exchange(method, path, timeout, query=query, body=body, content_type=content_type) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and iterate over the lines of an endless response; lines may have any length.

        The stream counts as broken if nothing arrives for ``idle_timeout_s``: a half-open connection can't be
        distinguished from a quiet one.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s)
        async with self._exchange("GET", path, timeout, query=query) as response:
            yield _lines(response)

    @asynccontextmanager
    async def _exchange(
        self,
        method: str,
        path: str,
        timeout: aiohttp.ClientTimeout,
        *,
        query: Mapping[str, str] | None,
        body: JsonObject | list[JsonObject] | None = None,
        content_type: str = "application/json",
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async def send() -> aiohttp.ClientResponse:
            headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": "ascend-affinity"}
            return await self._session.request(
                method,
                self.url + path + (f"?{urlencode(query)}" if query else ""),
                headers=headers | dict(await self._headers()),
                data=None if body is None else msgspec.json.encode(body),
                timeout=timeout,
                proxy=self._access.proxy,
                server_hostname=self._access.server_name,
            )

        try:
            response = await send()
            if response.status == HTTPStatus.UNAUTHORIZED and self._reload is not None:
                response.release()
                await self._refresh_credentials(self._reload)
                response = await send()
            async with response:
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise _error(response, await response.read())
                yield response
        except (aiohttp.ClientError, OSError) as error:
            text = str(error) or type(error).__name__
            raise Unreachable(f"{method} {self.url}{path}: {text}") from error

    async def identity_headers(self) -> Mapping[str, str]:
        """The current headers for authentication; tokens are refreshed."""
        return await self._headers()

    async def _refresh_credentials(self, reload: Callable[[], Awaitable[Access]]) -> None:
        try:
            fresh = await reload()
        except InvalidValue as error:
            raise Unreachable(f"can't load the credentials again: {error}") from error
        # An exec plugin that fails returns no token. Keep the stale token then: the server answers 401 to it, which
        # triggers the next refresh; without any token it might not.
        if await fresh.headers():
            self._headers = fresh.headers

    async def get(
        self, resource: Resource[T], name: str, namespace: str = "", *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> T:
        """Read one object."""
        path = resource.path(namespace=namespace, name=name)
        return decode(await self.request("GET", path, timeout_s=timeout_s), resource.type)

    async def list_objects(self, resource: Resource[T], namespace: str = "", *, field_selector: str = "") -> list[T]:
        """List all objects of a kind in one response; use a reflector to keep a copy current."""
        query = {"fieldSelector": field_selector} if field_selector else None
        page = decode(await self.request("GET", resource.path(namespace=namespace), query=query), _ObjectList, "list")
        return [decode(item, resource.type) for item in page.items or ()]

    async def create(self, resource: Resource[T], body: JsonObject, namespace: str = "") -> T:
        """Create an object; returns the object as stored. ``Conflict`` is raised if it exists."""
        manifest = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
        return decode(await self.request("POST", resource.path(namespace=namespace), body=manifest), resource.type)

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
        """Patch an object; returns it as stored. ``Conflict`` is raised if a precondition of the patch fails."""
        path = resource.path(namespace=namespace, name=name, subresource=subresource)
        answer = await self.request("PATCH", path, body=body, content_type=content_type, timeout_s=timeout_s)
        return decode(answer, resource.type)

    async def delete(self, resource: Resource[T], name: str, namespace: str = "") -> None:
        """Delete an object."""
        await self.request("DELETE", resource.path(namespace=namespace, name=name))

    async def may(
        self, verb: str, resource: str, *, group: str = "", subresource: str = "", namespace: str = ""
    ) -> bool:
        """Whether the server authorizes an action of this client, from a SelfSubjectAccessReview.

        An empty group is the core group, an empty namespace means all; ``resource`` is the plural name.
        """
        action = {
            "verb": verb,
            "resource": resource,
            "group": group,
            "subresource": subresource,
            "namespace": namespace,
        }
        api = "authorization.k8s.io/v1"
        spec = {"resourceAttributes": action}
        body: JsonObject = {"apiVersion": api, "kind": "SelfSubjectAccessReview", "spec": spec}
        answer = await self.request("POST", f"/apis/{api}/selfsubjectaccessreviews", body=body)
        return decode(answer, _AccessReview, "SelfSubjectAccessReview").status.allowed

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
        """Bind a pod to a node and annotate it, in one transaction of the API server (docs/architecture.md#decisions).

        The timeout applies in the server as well: a Binding that it has not made by then is not made later.
        ``Conflict`` is raised if the pod was recreated or is already bound.
        """
        body: JsonObject = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace=namespace, name=name, subresource="binding")
        # Without validation of unknown fields, for which the server would decode the body a second time.
        query = {"timeout": f"{math.ceil(timeout_s * 1000)}ms", "fieldValidation": "Ignore"}
        await self.request("POST", path, query=query, body=body, timeout_s=timeout_s)


def decode(raw: bytes | msgspec.Raw, kind: type[_D], what: str = "") -> _D:
    """Decode what the API server sent; ``what`` names it in the error, by default as an object.

    Raises:
        Unreachable: it can't be decoded.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except UNREADABLE as error:
        what = what or f"answer about {_name(raw) or kind.__name__}"
        raise Unreachable(f"the API server's {what} can't be decoded: {error}") from error


def _name(raw: bytes | msgspec.Raw) -> str:
    try:
        return msgspec.json.decode(raw, type=KubeObject).key
    except UNREADABLE:
        return ""


def _error(response: aiohttp.ClientResponse, body: bytes) -> ApiError:
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


def _seconds(retry_after: str) -> float | None:
    """Parse Retry-After; None if it is missing, or a date, which API servers don't send."""
    if not (retry_after.isascii() and retry_after.isdigit()):
        return None
    return min(float(retry_after), RETRY_AFTER_LIMIT_S)


def error_of(status: int, message: str, reason: str = "", *, retry_after_s: float | None = None) -> ApiError:
    """The exception for a status code, from an HTTP response or an ERROR event of a watch."""
    kind = _ERRORS.get(status, ApiError)
    return kind(message, status=status, reason=reason or None, retry_after_s=retry_after_s)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    # aiohttp's readline() limits the length of a line; objects may be longer.
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
