"""Replaces a Service, which needs a cluster network: one address that forwards to the allocator that is ready."""

import asyncio
import ssl
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.e2e.programs import is_ready

_CHUNK = 1 << 16
_PROBE_S = 2.0
_FAILURE_THRESHOLD = 3
"""Probes without an answer in a row after which a kubelet takes a pod out of a Service."""


class Service:
    """Use as an async context manager.

    Args:
        tls: its certificate; None to forward what it gets as it is.

    Attributes:
        backends: base addresses of the allocators.
        address: host and port of this service.
        requests: what clients have sent, as it was received.
        filter_s: how much longer a call to filter takes: so much slower is the scheduler.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.requests: list[bytes] = []
        self.filter_s = 0.0
        self._open = asyncio.Event()
        self._open.set()
        self.backends: list[str] = []
        self.address = ""
        self._connections: set[asyncio.Task[None]] = set()
        self._endpoint = ""
        self._unanswered = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    def hold(self) -> None:
        """Forward no request until ``release``: a scheduler waits for the answer to its call."""
        self.requests.clear()
        self._open.clear()

    def release(self) -> None:
        """Forward requests again."""
        self._open.set()

    async def leader(self) -> str | None:
        """Return the base address of a ready allocator, or None."""
        for url in self.backends:
            if await _probe(url):
                return url
        return None

    async def _choose_endpoint(self) -> str | None:
        """Return the base address for a new connection: the last ready allocator stays while few probes time out."""
        for url in self.backends:
            ready = await _probe(url)
            if ready:
                self._endpoint, self._unanswered = url, 0
                return url
            if url == self._endpoint:
                self._unanswered = _FAILURE_THRESHOLD if ready is False else self._unanswered + 1
        return self._endpoint if self._unanswered < _FAILURE_THRESHOLD else None

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(_CHUNK)
            self.requests.append(first)
            await self._open.wait()
            await self._slow_down(first)
            endpoint = await self._choose_endpoint()
            if not endpoint:
                return
            host, port = endpoint.rpartition("/")[2].split(":")
            back_reader, back_writer = await asyncio.open_connection(host, int(port))
            try:
                back_writer.write(first)
                forward, back = self._forward(reader, back_writer), _copy(back_reader, writer)
                copying = [asyncio.create_task(way) for way in (forward, back)]
                try:
                    # If one end closes, both close, as when a pod behind a Service dies.
                    await asyncio.wait(copying, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for each in copying:
                        each.cancel()
                    await asyncio.gather(*copying, return_exceptions=True)
            finally:
                back_writer.transport.abort()  # closing would wait until an allocator that is overloaded has read all
        except OSError:
            return
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _slow_down(self, chunk: bytes) -> None:
        if chunk.startswith(b"POST /scheduler/filter"):
            await asyncio.sleep(self.filter_s)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                self.requests.append(chunk)
                await self._open.wait()
                await self._slow_down(chunk)
                writer.write(chunk)
                await writer.drain()


async def _probe(url: str) -> bool | None:
    """Whether an allocator is ready; None if it does not answer, as one that is suspended or overloaded."""
    try:
        async with asyncio.timeout(_PROBE_S):
            return await is_ready(url)
    except TimeoutError:
        return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()
