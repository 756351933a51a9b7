"""Sends requests by aiohttp's connector, and reads the answers by its parser, without its session.

The session takes several times the CPU of both for a request: it is made for redirects, cookies, forms and traces,
which API servers do not use. Connections through TLS and proxies, and their reuse, are the connector's.
"""

import asyncio
import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Final
from weakref import WeakSet

import aiohttp
from aiohttp import hdrs
from aiohttp.connector import Connection
from multidict import CIMultiDictProxy
from yarl import URL

from ascend.errors import InvalidValue, TooLarge
from ascend.kube.identity import Access

CONNECTIONS: Final = 100
"""The most connections at the same time; each watch keeps one."""

CLOSE_TIMEOUT_S: Final = 1.0
_REPEATED: Final = frozenset({"GET", "DELETE"})
"""Sent again if the server has ended the connection, as it does with idle ones: they change nothing a second time."""


class ServerAnswer:
    """The answer to a request; its connection is reused if the body has been read when it is released.

    Attributes:
        status: the status code.
        reason: its text.
        headers: the headers.
        content: the body, which may be still arriving.
    """

    __slots__ = ("_connection", "content", "headers", "reason", "status")

    def __init__(
        self,
        connection: Connection,
        status: int,
        reason: str,
        headers: CIMultiDictProxy[str],
        content: aiohttp.StreamReader,
    ) -> None:
        self._connection = connection
        self.status = status
        self.reason = reason
        self.headers = headers
        self.content = content

    async def read(self, most_bytes: int | None = None) -> bytes:
        """The body to its end.

        Raises:
            TooLarge: it has more than ``most_bytes``; no more of it was read.
        """
        if most_bytes is None:
            return self.content.read_nowait() if self.content.is_eof() else await self.content.read()
        body = bytearray()
        async for chunk in self.content.iter_any():
            body += chunk
            if len(body) > most_bytes:
                raise TooLarge(f"the answer has more than {most_bytes} bytes")
        return bytes(body)

    def release(self) -> None:
        """Reuse the connection, or close it if a part of the body was not read."""
        self._connection.release()


class Transport:
    """The connections to one API server.

    Args:
        access: its address, certificates and proxy.
    """

    def __init__(self, access: Access) -> None:
        self._sockets = WeakSet[socket.socket]()
        self._connector = aiohttp.TCPConnector(limit=CONNECTIONS, socket_factory=self._open)
        url, proxy = URL(access.url), URL(access.proxy) if access.proxy is not None else None
        # What the connector has to know; with trust_env it would look up the proxy, in a thread, for every request.
        options: dict[str, Any] = {"ssl": access.tls, "server_hostname": access.server_name, "proxy": proxy}
        self._server = aiohttp.ClientRequest("GET", url, loop=asyncio.get_running_loop(), **options)
        through_proxy = proxy is not None and not self._server.is_ssl()
        self._prefix = (str(url) if through_proxy else url.raw_path).rstrip("/")

    async def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout: aiohttp.ClientTimeout
    ) -> ServerAnswer:
        """Send a request; return its answer, which has to be released.

        Args:
            method: the method.
            path: the path and the query, as the server gets them.
            headers: all of them but Host and Content-Length.
            body: the body; None for none.
            timeout: for a new connection, and ``sock_read``.

        Raises:
            aiohttp.ClientError: there is no answer.
            OSError: there is no answer.
            InvalidValue: a header is invalid.
        """
        is_repeated = method in _REPEATED
        while True:
            try:
                connection = await self._connector.connect(self._server, [], timeout)
            except TimeoutError as error:
                raise aiohttp.ConnectionTimeoutError(f"no connection within {timeout.connect:.3g} s") from error
            try:
                return await self._exchange(
                    connection, self._encode_request(method, path, headers, body), timeout.sock_read
                )
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                connection.close()
                if not is_repeated:
                    raise
                is_repeated = False
            except BaseException:
                connection.close()
                raise

    async def close(self) -> None:
        """Close all connections.

        Those over TLS that were given up meanwhile may still be ending in order, which waits for the server: they would
        outlive the event loop.
        """
        await self._connector.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                while any(each.fileno() >= 0 for each in self._sockets):  # noqa: ASYNC110 - a socket has no event
                    await asyncio.sleep(0.005)

    def _open(self, address: tuple[Any, ...]) -> socket.socket:
        family, kind, protocol = address[:3]
        opened = socket.socket(family, kind, protocol)
        self._sockets.add(opened)
        return opened

    def _encode_request(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {self._server.headers[hdrs.HOST]}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if (proxied := self._server.headers.get(hdrs.PROXY_AUTHORIZATION)) is not None:
            lines.append(f"{hdrs.PROXY_AUTHORIZATION}: {proxied}")
        if body is not None or method != "GET":
            lines.append(f"Content-Length: {len(body or b'')}")
        head = "\r\n".join(lines)
        if head.count("\n") != len(lines) - 1 or head.count("\r") != len(lines) - 1 or "\0" in head:
            raise InvalidValue("a header of the request has a control character")
        return b"%b\r\n\r\n%b" % (head.encode(), body or b"")

    @staticmethod
    async def _exchange(connection: Connection, written: bytes, read_s: float | None) -> ServerAnswer:
        protocol, transport = connection.protocol, connection.transport
        if protocol is None or transport is None:
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(read_until_eof=True, read_timeout=read_s)
        transport.write(written)
        protocol.start_timeout()
        while True:
            try:
                message, content = await protocol.read()
            except aiohttp.http.HttpProcessingError as error:
                raise aiohttp.ClientPayloadError(f"the answer is not valid: {error}") from error
            if message.code >= HTTPStatus.OK or message.code == HTTPStatus.SWITCHING_PROTOCOLS:
                return ServerAnswer(connection, message.code, message.reason, message.headers, content)
