"""The requests of a connection over HTTP/2: as many at a time as its client likes, without a TLS handshake for each.

kube-scheduler keeps only two idle connections over HTTP/1.1, and each Binding of a gang that is held would have a
connection of its own. HTTP/2 is offered only where certificates are demanded
(``ascend.daemon.certificates``), so its frames are not read from strangers without one.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from weakref import proxy

from aiohttp import StreamReader, hdrs, http, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from ascend.serving.bodies import Body, BodyRefused
from ascend.serving.counts import Cause
from ascend.serving.frames import BrokenError, ErrorCode
from ascend.serving.http2 import BODY_BYTES, Http2, Stream

if TYPE_CHECKING:
    from ascend.serving.connection import Connection

ALPN = "h2"


class Streams:
    """The requests of a connection.

    Args:
        connection: over which they come.
        wire: its transport.
    """

    def __init__(self, connection: Connection, wire: asyncio.Transport) -> None:
        self._connection = connection
        self._wire = wire
        self._http2 = Http2(proxy(self))  # not a cycle, whose buffers would stay until the next collection
        self._bodies: dict[Stream, Body] = {}
        self._arriving: dict[Stream, int] = {}
        self._running: dict[Stream, asyncio.Task[None]] = {}
        self._idle = self._stuck = 0
        self._flush()

    def receive(self, data: bytes) -> None:
        """Take bytes of the client."""
        try:
            self._http2.receive(data)
        except BrokenError as error:
            self._connection.port.refusals.count(Cause.HEADER, self._connection.address)
            self._http2.leave(error.code)
            self._flush()
            self._wire.close()
        else:
            self._flush()

    def awaits(self) -> bool:
        """Whether bodies are taken: a client that is not allowed is refused before."""
        return self._connection.verified

    def grown(self, stream: Stream, size: int) -> bool:
        """Count bytes of a body; return whether there is room for them."""
        body = self._bodies.get(stream)
        if body is None:
            body = self._bodies[stream] = Body("")
            self._arriving[stream] = 0
        port = self._connection.port
        try:
            port.bodies.take(body, size)
        except BodyRefused as error:
            port.refusals.count(error.cause, self._connection.address)
            return False
        return True

    def on_request(self, stream: Stream) -> None:
        """Answer a request in a task."""
        self._arriving.pop(stream, None)
        self._running[stream] = asyncio.get_running_loop().create_task(self._answer(stream))

    def on_end(self, stream: Stream) -> None:
        """Cancel what still works on a request."""
        self._arriving.pop(stream, None)
        if (body := self._bodies.pop(stream, None)) is not None:
            self._connection.port.bodies.release(body)
        if (task := self._running.pop(stream, None)) is not None and task is not asyncio.current_task():
            task.cancel()

    def leave(self) -> None:
        """Make the client send further requests over another connection."""
        self._http2.leave()
        self._flush()

    async def drain(self, timeout_s: float | None) -> None:
        """Wait until the requests are answered."""
        if self._running:
            await asyncio.wait(set(self._running.values()), timeout=timeout_s)

    def on_loss(self) -> None:
        """Cancel everything: the connection has ended."""
        streams = tuple(self._http2.streams.values())
        self._http2.streams.clear()
        for stream in streams:
            self.on_end(stream)

    def tick(self) -> None:
        """Count a tick of the port, and end what its client has left unfinished for too long."""
        connection, limits = self._connection, self._connection.port.limits
        for stream in tuple(self._arriving):
            self._arriving[stream] += 1
            if self._arriving[stream] * limits.tick_s > limits.body_s:
                connection.port.refusals.count(Cause.BODY_TIME, connection.address)
                self._http2.reset(stream, ErrorCode.ENHANCE_YOUR_CALM)
        self._flush()
        self._stuck = self._stuck + 1 if self._http2.waiting or connection.writing_paused else 0
        self._idle = 0 if self._http2.streams else self._idle + 1
        if self._stuck * limits.tick_s > limits.write_s:
            connection.end(Cause.WRITE)
        elif self._idle * limits.tick_s > (limits.idle_s if connection.verified else limits.header_s):
            self.leave()
            self._wire.close()

    def _flush(self) -> None:
        if self._http2.out:
            self._wire.write(bytes(self._http2.out))
            self._http2.out.clear()

    async def _answer(self, stream: Stream) -> None:
        connection = self._connection
        try:
            found: Any = await connection.port.server.request_handler(self._request(stream))
        except asyncio.CancelledError as error:
            error.__traceback__ = None  # a frame of the handler refers to the task, which keeps the error
            raise
        except web.HTTPException as error:
            found = error
        except Exception:
            connection.logger.exception("could not answer a request")
            found = web.Response(status=HTTPStatus.INTERNAL_SERVER_ERROR)
        body = found.body or b""
        found.headers[hdrs.CONTENT_LENGTH] = str(len(body))
        found.headers[hdrs.SERVER] = "ascend-affinity"
        self._http2.answer(stream, found.status, found.headers, bytes(body))
        self._running.pop(stream, None)
        self._flush()

    def _request(self, stream: Stream) -> web.BaseRequest:
        fields = stream.headers
        headers = CIMultiDict({name: value for name, value in fields.items() if name[:1] != ":"})
        headers.setdefault(hdrs.HOST, fields.get(":authority", ""))
        content = StreamReader(self._connection, BODY_BYTES, loop=asyncio.get_running_loop())
        content.feed_data(bytes(stream.body))
        content.feed_eof()
        path = fields[":path"]
        message = http.RawRequestMessage(
            *(fields[":method"], path, http.HttpVersion11, CIMultiDictProxy(headers), ()),
            *(False, None, False, False, _url(path)),
        )
        task: Any = asyncio.current_task()
        writer: Any = None  # answers are sent as a whole
        return self._connection.port.server.request_factory(message, content, self._connection, writer, task)


@lru_cache(64)
def _url(path: str) -> URL:
    return URL(path, encoded=True)
