"""A proxy of the API server that can hold individual requests, so that a program can be killed at that point, and that
can delay watches, and be silent as a half-open connection is.

The programs use it over plain HTTP with their own tokens. It forwards everything, watches chunk by chunk.
"""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

_NOT_FORWARDED = {"host", "content-length", "transfer-encoding", "connection"}


@dataclass(slots=True)
class Gate:
    """A point at which matching requests are held.

    Attributes:
        method: the method of the requests.
        path: searched in path and query.
        after: hold the response of the API server instead of the request.
        reached: set when a request is held.
        opened: set to let held requests continue.
    """

    method: str
    path: re.Pattern[str]
    after: bool = False
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def hold(self) -> None:
        self.reached.set()
        await self.opened.wait()


class ApiProxy:
    """Use as an async context manager.

    Args:
        upstream: base address of the API server.
        ca: the certificate authority of the API server; None for plain HTTP.
    """

    def __init__(self, upstream: str, ca: Path | None = None) -> None:
        self._upstream = upstream
        self._ssl: ssl.SSLContext | bool = ssl.create_default_context(cafile=ca) if ca is not None else False
        self._gates: list[Gate] = []
        self._silences: list[Gate] = []
        self.watch_delay_s: Callable[[], float] = lambda: 0.0
        """How long to hold the next event of a watch; those after it wait as well."""
        self.answer_delay_s = 0.0
        """How long to hold each request."""
        self.url = ""

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl), auto_decompress=False
        )
        app = web.Application(client_max_size=16 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._forward)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    @asynccontextmanager
    async def gate(self, method: str, path: str, *, after: bool = False) -> AsyncIterator[Gate]:
        """Hold matching requests until the block ends or the gate is opened."""
        gate = Gate(method, re.compile(path), after)
        self._gates.append(gate)
        try:
            yield gate
        finally:
            self._gates.remove(gate)
            gate.opened.set()

    @asynccontextmanager
    async def silence(self, path: str) -> AsyncIterator[None]:
        """Pass nothing on of matching requests and of their answers, until the block ends; connections stay open."""
        silence = Gate("", re.compile(path))
        self._silences.append(silence)
        try:
            yield
        finally:
            self._silences.remove(silence)
            silence.opened.set()

    async def _heard(self, path: str) -> None:
        for silence in list(self._silences):
            if silence.path.search(path):
                await silence.hold()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        gates = [each for each in self._gates if each.method == request.method and each.path.search(request.path_qs)]
        body = await request.read()
        await self._heard(request.path_qs)
        await asyncio.sleep(self.answer_delay_s)
        for gate in gates:
            if not gate.after:
                await gate.hold()
        headers = {name: text for name, text in request.headers.items() if name.lower() not in _NOT_FORWARDED}
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method, self._upstream + request.path_qs, headers=headers, data=body, timeout=timeout
        ) as answer:
            for gate in gates:
                if gate.after:
                    await gate.hold()
            forwarded = {name: text for name, text in answer.headers.items() if name.lower() not in _NOT_FORWARDED}
            response = web.StreamResponse(status=answer.status, headers=forwarded)
            is_watch = "watch=" in request.path_qs
            try:
                await response.prepare(request)
                async for chunk in _late(answer.content, lambda: self.watch_delay_s() if is_watch else 0.0):
                    await self._heard(request.path_qs)
                    await response.write(chunk)
                await response.write_eof()
            finally:
                # The orderly end of TLS waits for the API server, and would outlive this event loop.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()
        return response


async def _late(content: aiohttp.StreamReader, delay_s: Callable[[], float]) -> AsyncIterator[bytes]:
    """Yield the chunks of a body, each some time after it came, in their order."""
    loop = asyncio.get_running_loop()
    came: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def receive() -> None:
        async for chunk in content.iter_any():
            came.put_nowait((loop.time() + delay_s(), chunk))

    receiving = asyncio.create_task(receive())
    receiving.add_done_callback(lambda _: came.put_nowait((0.0, b"")))
    try:
        while (item := await came.get())[1]:
            await asyncio.sleep(item[0] - loop.time())
            yield item[1]
        receiving.result()
    finally:
        receiving.cancel()
