"""A connection over HTTP: the phase of its request, and an end if its client takes too long."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from aiohttp import hdrs, web

from ascend.serving.bodies import Body
from ascend.serving.counts import Cause
from ascend.serving.limits import MOST_HEADER_BYTES, MOST_HEADERS
from ascend.serving.streams import ALPN, Streams

if TYPE_CHECKING:
    from ascend.serving.port import Port

_LINGER_S = 1.0
"""How long the rest of a body that is not read is taken from the client, which else may not see the answer."""

_BUFFER_BYTES = 16 << 10
"""What is read ahead of a body that nobody reads, at least; at most the size of one read more."""


class Phase(Enum):
    """What a connection waits for."""

    HANDSHAKE = auto()
    HEADER = auto()
    BODY = auto()
    HANDLER = auto()
    ANSWER = auto()
    IDLE = auto()


class Connection(web.RequestHandler):
    """A connection of a port.

    Args:
        port: where it was accepted.
        address: the client's address, or its network.

    Attributes:
        phase: what it waits for.
        ticks: for how many ticks of its port.
        waits_for_client: whether the client has to act; an answer is not being worked out, or just being sent.
        verified: whether the client has a verified certificate of a client that the port knows.
        answered: how many requests were answered.
        body: the body of the present request; None before it is read.
        broken: whether it sent what is no request, so that nothing more is read.
        streams: its requests, if it speaks HTTP/2; else None.
    """

    __slots__ = (
        "address",
        "answered",
        "body",
        "broken",
        "connecting",
        "phase",
        "port",
        "streams",
        "ticks",
        "verified",
        "waits_for_client",
        "wire",
    )

    def __init__(self, port: Port, address: str) -> None:
        limits = port.limits
        options: dict[str, Any] = {"access_log": None}
        # Bodies are not decompressed: aiohttp's parser can't continue after one that is corrupt.
        super().__init__(
            port.server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=limits.idle_s,
            lingering_time=_LINGER_S,
            auto_decompress=False,
            max_headers=MOST_HEADERS,
            max_line_size=MOST_HEADER_BYTES,
            max_field_size=MOST_HEADER_BYTES,
            read_bufsize=_BUFFER_BYTES,
            **options,
        )
        self.port = port
        self.address = address
        self.enter(Phase.HANDSHAKE)
        self.verified = False
        self.answered = 0
        self.broken = False
        self.body: Body | None = None
        self.streams: Streams | None = None
        self.wire: asyncio.Transport | None = None
        self.connecting: asyncio.Task[Any] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the TLS handshake is done, if there is one."""
        self.wire = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it
        self.verified = self.port.knows(transport.get_extra_info("peercert"))
        self.enter(Phase.HEADER)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None and tls.selected_alpn_protocol() == ALPN:
            super(web.RequestHandler, self).connection_made(transport)  # which does not begin to read requests
            self.port.server.connection_made(self, self.wire)
            self.streams = Streams(self, self.wire)
        else:
            super().connection_made(transport)
        self.port.met(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget everything."""
        if self.streams is not None:
            self.streams.on_loss()
            self.streams = None
        self._release()
        self.port.forget(self)
        super().connection_lost(exc)

    async def start(self) -> None:
        """Answer requests until the connection ends."""
        try:
            await super().start()
        except asyncio.CancelledError as error:
            error.__traceback__ = None  # a frame of aiohttp's refers to the task, which keeps the error
            raise

    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self.streams is not None:
            self.streams.receive(data)
            return
        if self.phase is Phase.IDLE:
            self.enter(Phase.HEADER)
        if self.broken:
            return
        super().data_received(data)
        if self._messages and (error := getattr(self._messages[-1][0], "exc", None)) is not None:
            # Its frames refer to it and to what was read: megabytes, until the next collection of garbage.
            self.broken, error.__traceback__ = True, None
        if self.phase is Phase.HEADER and self._request_count > self.answered:
            self.enter(Phase.HANDLER)

    def close(self) -> None:
        """Answer no further request."""
        if self.streams is not None:
            self.streams.leave()
        super().close()

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """End, after the present requests are answered if that takes no longer."""
        if self.streams is not None:
            await self.streams.drain(timeout)
        await super().shutdown(timeout)

    async def finish_response(
        self, request: Any, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send an answer, without the versions of the libraries, which aiohttp would tell."""
        resp.headers[hdrs.SERVER] = "ascend-affinity"
        self._release()
        self.enter(Phase.ANSWER)
        found = await super().finish_response(request, resp, start_time)
        self.answered += 1
        self.enter(Phase.HANDLER if self._request_count > self.answered else Phase.IDLE)
        return found

    def handle_error(
        self, request: Any, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is no request without a traceback in the log, which strangers could fill."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            return super().handle_error(request, status, exc, message)
        if exc is not None:
            exc.__traceback__ = None
        self.port.refusals.count(Cause.HEADER, self.address)
        answer = web.Response(status=status, text=HTTPStatus(status).phrase)
        answer.force_close()
        return answer

    def enter(self, phase: Phase) -> None:
        """Wait for something else from now on."""
        self.phase = phase
        self.ticks = 0
        self.waits_for_client = phase is not Phase.HANDLER and phase is not Phase.ANSWER

    def tick(self) -> None:
        """Count a tick, and end if the client has taken too long."""
        self.ticks += 1
        self.waits_for_client |= self.phase is Phase.ANSWER  # for so long it should have been taken
        limits = self.port.limits
        if self.wire is not None and self.wire.is_closing():
            if self.ticks * limits.tick_s > max(limits.closing_s, limits.write_s):
                self.wire.abort()
            return
        if self.streams is not None:
            self.streams.tick()
            return
        limit_s, cause = {
            Phase.HEADER: (limits.header_s, Cause.HEADER),
            Phase.ANSWER: (limits.write_s, Cause.WRITE),
            Phase.BODY: (limits.body_s, Cause.BODY_TIME),
        }.get(self.phase, (None, Cause.HEADER))
        if limit_s is None or self.ticks * limits.tick_s <= limit_s:
            return
        if self.phase is Phase.BODY and self.body is not None:
            self.body.end(Cause.BODY_TIME)  # it is answered, then
        else:
            self.end(cause)

    def end(self, cause: Cause) -> None:
        """End at once."""
        self.port.refusals.count(cause, self.address)
        self._release()
        self.port.forget(self)
        if self.wire is not None:
            self.wire.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    def _release(self) -> None:
        if self.body is not None:
            self.port.bodies.release(self.body)
            self.body = None
