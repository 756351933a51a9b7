"""Serves an application over HTTP, and reads the bodies of its requests."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from ascend.addresses import join_address, split_address
from ascend.errors import InvalidValue
from ascend.serving.bodies import LARGE_BYTES, Bodies, Body, BodyRefused, length_required, refused
from ascend.serving.connection import Connection, Phase
from ascend.serving.counts import Cause, Refusals
from ascend.serving.limits import PROBES, Limits
from ascend.serving.port import BACKLOG, Knows, Port


@asynccontextmanager
async def serve_http(
    app: web.Application,
    address: str,
    *,
    tls: ssl.SSLContext | None = None,
    knows: Knows = bool,
    limits: Limits = PROBES,
    refusals: Refusals | None = None,
    bodies: Bodies | None = None,
) -> AsyncIterator[str]:
    """Serve an application within a ``with`` block; yields the address it listens on.

    Args:
        app: the application.
        address: host and port, as for ``split_address``.
        tls: the certificates; None for plain text.
        knows: whether a verified certificate is that of a client that comes before others; by default each is.
        limits: of connections and times.
        refusals: counts who is refused; the process has one.
        bodies: the bodies of the process.

    Raises:
        InvalidValue: the address is malformed or can't be listened on.
    """
    host, number = split_address(address)
    # A handler is cancelled if its client has gone: it may wait long for others.
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
    await runner.setup()
    assert runner.server is not None  # noqa: S101 - it is set up
    port = Port(runner.server, limits, refusals or Refusals(), bodies or Bodies(), tls=tls, knows=knows)
    try:
        try:
            listening = await _listen(host, number)
        except OSError as error:
            raise InvalidValue(f"cannot listen on {address}: {error.strerror}") from error
        bound = listening[0].getsockname()
        port.open(listening)
        yield join_address(bound[0], bound[1])
    finally:
        port.close()
        await runner.cleanup()


async def _listen(host: str, port: int) -> list[socket.socket]:
    loop = asyncio.get_running_loop()
    # asyncio finds the addresses of a host, and the options of their sockets; it accepts nothing before it is started.
    server = await loop.create_server(asyncio.Protocol, host, port, backlog=BACKLOG, start_serving=False)
    listening = [sock.dup() for sock in server.sockets]
    server.close()
    await server.wait_closed()
    for sock in listening:
        sock.setblocking(False)  # noqa: FBT003 - the name says it
        sock.listen(BACKLOG)
    return listening


def refuse_body(request: web.Request, cause: Cause, most: int) -> BodyRefused:
    """Count a body refused for its content, and return the error."""
    connection = request.protocol
    assert isinstance(connection, Connection)  # noqa: S101 - of serve_http
    connection.port.refusals.count(cause, connection.address)
    return refused(cause, most)


async def read_body(request: web.Request, most: int, *, at_once: int = LARGE_BYTES) -> bytes:
    """The body of a request; only ``serve_http`` has requests that can be read.

    Args:
        request: the request.
        most: the most bytes that its path takes.
        at_once: a larger one waits for its turn before it is decoded, which may take long.

    Raises:
        BodyRefused: it is too large, arrives too slowly, or there are too many bytes of bodies at a time.
        web.HTTPBadRequest: it is compressed; neither kube-scheduler nor the API server compresses a request.
    """
    encoding = request.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise web.HTTPBadRequest(text=f"Content-Encoding is {encoding!r}; compressed requests are not supported\n")
    connection = request.protocol
    assert isinstance(connection, Connection)  # noqa: S101 - of serve_http
    bodies, content = connection.port.bodies, request.content
    try:
        if length_required(request) > most:
            raise refused(Cause.BODY_SIZE, most)
        if connection.streams is not None:
            return content.read_nowait()  # it was counted as it arrived
        body = connection.body = Body("" if connection.verified else connection.address)
        if content.is_eof():
            read = bodies.take_at_once(body, content)
        else:
            connection.enter(Phase.BODY)
            read = await bodies.read(body, content)
            connection.enter(Phase.HANDLER)
    except BodyRefused as error:
        connection.port.refusals.count(error.cause, connection.address)
        raise
    if len(read) > at_once and not connection.verified:
        await bodies.take_turn(len(read))
    return read
