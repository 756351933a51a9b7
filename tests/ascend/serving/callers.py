"""A port with short times, and callers that behave badly, on both event loops."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import uvloop
from aiohttp import web

from ascend.serving.bodies import Bodies, BodyRefused
from ascend.serving.counts import Cause, Refusals
from ascend.serving.http import read_body, serve_http
from ascend.serving.limits import Limits

SHORT = Limits(
    connections=8,
    per_address=4,
    header_s=0.2,
    body_s=0.4,
    write_s=0.4,
    handshake_s=0.5,
    closing_s=0.2,
    tick_s=0.05,
)
MOST = 1 << 20
"""The most bytes of a body of ``/read``."""

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


@dataclass
class Served:
    """A port that is served.

    Attributes:
        host: where.
        port: where.
        refusals: who was refused.
        bodies: what is read.
        held: the requests to ``/hold`` that wait.
        go: lets them go.
    """

    host: str
    port: int
    refusals: Refusals
    bodies: Bodies
    held: list[web.Request] = field(default_factory=list)
    go: asyncio.Event = field(default_factory=asyncio.Event)
    callers: "list[Caller]" = field(default_factory=list)

    def refused(self, cause: Cause) -> float:
        """How many were refused for this cause."""
        return float(self.refusals.total.labels(cause=cause.value)._value.get())

    @property
    def connections(self) -> float:
        """How many connections are open, as counted."""
        return float(self.refusals.connections._value.get())

    async def connect(self, source: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> "Caller":
        """Connect from an address."""
        reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=(source, 0), ssl=tls)
        self.callers.append(Caller(reader, writer))
        return self.callers[-1]


@dataclass
class Caller:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, text: str | bytes) -> None:
        """Send something."""
        self.writer.write(text.encode() if isinstance(text, str) else text)

    def post(self, path: str, length: int, body: bytes = b"") -> None:
        """Send a request with a body, or with a part of one."""
        self.send(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + body)

    async def get(self, path: str = "/hi") -> int:
        """Ask, and return the status; 0 if there is no answer."""
        self.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n")
        return await self.status()

    async def status(self) -> int:
        """The status of the next answer; 0 if the connection ends before."""
        try:
            head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        await self.reader.readexactly(length)
        return int(head.split()[1])

    async def ended(self) -> bool:
        """Wait until the server ends the connection."""
        try:
            return await asyncio.wait_for(self.reader.read(), 10) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """End."""
        self.writer.transport.abort()


@asynccontextmanager
async def served(
    *, bodies: Bodies | None = None, tls: ssl.SSLContext | None = None, **limits: Any
) -> AsyncIterator[Served]:
    """Serve ``/hi``, ``/read`` (its body), ``/hold`` (until let go), and ``/much`` (a large answer)."""
    app = web.Application()
    refusals, bodies = Refusals(), bodies or Bodies()

    async def hi(_request: web.Request) -> web.Response:
        return web.Response(text="hi")

    async def read(request: web.Request) -> web.Response:
        try:
            return web.Response(text=str(len(await read_body(request, MOST))))
        except BodyRefused as error:
            return web.Response(status=error.status, text=error.message)

    async def hold(request: web.Request) -> web.Response:
        await read_body(request, MOST)
        found.held.append(request)
        await found.go.wait()
        return web.Response(text="held")

    async def much(_request: web.Request) -> web.Response:
        return web.Response(body=bytes(32 << 20))

    app.router.add_get("/hi", hi)
    app.router.add_post("/read", read)
    app.router.add_post("/hold", hold)
    app.router.add_get("/much", much)
    options: dict[str, Any] = {"tls": tls, "limits": replace(SHORT, **limits), "refusals": refusals, "bodies": bodies}
    async with serve_http(app, "127.0.0.1:0", **options) as address:
        found = Served("127.0.0.1", int(address.rpartition(":")[2]), refusals, bodies)
        try:
            yield found
        finally:
            for caller in found.callers:
                caller.writer.transport.abort()
            await asyncio.sleep(0)


async def until(condition: Callable[[], bool], limit_s: float = 10.0) -> None:
    """Wait for a condition."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - sockets and counters send no notification
            await asyncio.sleep(0.01)


def run(new_loop: Callable[[], asyncio.AbstractEventLoop], test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on an event loop."""

    async def whole() -> None:
        await test()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(whole())


def raw_connection(port: int, source: str = "127.0.0.1") -> socket.socket:
    """A connection that sends nothing."""
    return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))
