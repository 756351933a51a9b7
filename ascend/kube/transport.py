"""Requests to the API server: raw JSON over aiohttp.

In contrast to the official library's client it has specific exceptions, client-side timeouts for every request, and one
retry with fresh credentials after 401. A timeout is for the whole exchange: with the retry, and with all that loading
the credentials takes, since the permission to post a Binding ends with it (``allocator.leadership.leader``).
"""

import asyncio
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.parse import urlencode
from weakref import WeakSet

import aiohttp
import msgspec

from ascend.errors import ApiError, InvalidValue, TooLarge, Unreachable
from ascend.kube.answers import read_error
from ascend.kube.identity import Access, load_access
from ascend.kube.objects import JsonObject

REQUEST_TIMEOUT_S: Final = 15.0
CONNECT_TIMEOUT_S: Final = 5.0
CLOSE_TIMEOUT_S: Final = 1.0
CONNECTIONS: Final = 100
"""The most connections at the same time; each watch keeps one."""

_TIMEOUT: Final = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S)


class Transport:
    """The connections to one API server.

    Every method that sends a request raises ``ApiError`` if the server answers with an error (the subclass depends on
    the status code), and ``Unreachable`` if there is no valid answer: a change may have been made nevertheless.

    Args:
        access: address and credentials.
        reload: loads fresh credentials after the server has answered 401; None if that is not possible.
        timeout_s: the timeout of a request for which none is given.
    """

    def __init__(
        self,
        access: Access,
        reload: Callable[[], Awaitable[Access]] | None = None,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._access = access
        self._timeout_s = timeout_s
        self._headers = access.headers
        self._reload = reload
        self.on_forbidden: Callable[[ApiError], None] = lambda _: None
        """Receives each answer that refuses a request (status 403), before it is raised."""
        self._sockets = WeakSet[socket.socket]()
        # With trust_env aiohttp would look up the proxy, in a thread, for every request; once is enough.
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, ssl=access.tls, socket_factory=self._open)
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
        """Close all connections.

        Those over TLS that were given up meanwhile may still be ending in order, which waits for the server: they would
        outlive the event loop.
        """
        await self._session.close()
        for opened in self._sockets:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while any(opened.fileno() >= 0 for opened in self._sockets):  # noqa: ASYNC110 - a socket has no event
                    await asyncio.sleep(0.005)

    def _open(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

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
        timeout_s: float | None = None,
        limits_server: bool = False,
        most_bytes: int | None = None,
    ) -> bytes:
        """Send a request and return the whole response body; ``timeout_s`` is for both together, and for a retry.

        The body is sent as JSON; for patches its media type selects the type of patch. With ``limits_server`` the
        server does not execute the request after that time either.

        Raises:
            TooLarge: the body has more than ``most_bytes``; no more of it was read.
        """
        within_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            async with (
                asyncio.timeout(within_s) as limit,
                self._exchange(
                    method,
                    path,
                    _TIMEOUT,
                    query=query,
                    body=body,
                    content_type=content_type,
                    server_limit=limit if limits_server else None,
                    compressed=most_bytes is None,  # a small packet may have become a large chunk
                ) as response,
            ):
                return await (response.read() if most_bytes is None else _read_limited(response, most_bytes))
        except TimeoutError as error:
            raise Unreachable(f"{method} {self.url}{path}: no answer within {within_s:.3g} s") from error

    @asynccontextmanager
    async def stream(
        self, path: str, *, query: Mapping[str, str], idle_timeout_s: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send a request and iterate over the lines of an endless response; lines may have any length.

        The stream counts as broken if nothing arrives for ``idle_timeout_s``: a half-open connection can't be
        distinguished from a quiet one.
        """
        timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_TIMEOUT_S, sock_read=idle_timeout_s)
        try:
            async with (
                asyncio.timeout(idle_timeout_s) as limit,
                self._exchange("GET", path, timeout, query=query) as response,
            ):
                limit.reschedule(None)
                yield _lines(response)
        except TimeoutError as error:
            raise Unreachable(f"GET {self.url}{path}: no answer within {idle_timeout_s:.3g} s") from error

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
        server_limit: asyncio.Timeout | None = None,
        compressed: bool = True,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        async def send() -> aiohttp.ClientResponse:
            headers = {"Content-Type": content_type, "Accept": "application/json", "User-Agent": "ascend-affinity"}
            headers |= {} if compressed else {"Accept-Encoding": "identity"}
            headers |= await self._headers()
            asked = {**(query or {}), **_left(server_limit)}  # what is left of the time right before it is sent
            try:
                return await self._session.request(
                    method,
                    self.url + path + (f"?{urlencode(asked)}" if asked else ""),
                    headers=headers,
                    data=None if body is None else msgspec.json.encode(body),
                    timeout=timeout,
                    proxy=self._access.proxy,
                    server_hostname=self._access.server_name,
                    allow_redirects=False,  # a proxy's login page is no answer
                )
            except ValueError as error:  # a header can't be sent, such as a token with the end of a line
                raise Unreachable(f"{method} {self.url}{path}: {error}") from error

        try:
            response = await send()
            if response.status == HTTPStatus.UNAUTHORIZED and self._reload is not None:
                response.release()
                await self._refresh_credentials(self._reload)
                response = await send()
            async with response:
                if not HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                    error = read_error(response, await response.read())
                    if response.status == HTTPStatus.FORBIDDEN:
                        self.on_forbidden(error)
                    raise error
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


def _left(limit: asyncio.Timeout | None) -> dict[str, str]:
    """The part of a query that limits the time in the server; empty without a limit."""
    due_s = limit.when() if limit is not None else None
    if due_s is None:
        return {}
    left_s = due_s - asyncio.get_running_loop().time()
    if left_s <= 0:
        raise TimeoutError
    return {"timeout": f"{math.ceil(left_s * 1000)}ms"}


async def _read_limited(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            raise TooLarge(f"GET {response.url.path}: the answer has more than {most_bytes} bytes")
    return bytes(body)


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
