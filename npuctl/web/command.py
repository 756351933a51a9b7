"""Carries out ``npuctl web``: serves the page, and follows the cluster while it does."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socket import socket
from typing import Final

import uvicorn
from fastapi import FastAPI, Response
from nicegui import Client, app, core, ui

from npuctl.history.store import HistoryStore
from npuctl.reading.source import Source
from npuctl.web.guard import LOOPBACK, WebGuard
from npuctl.web.hub import Hub
from npuctl.web.live import LiveCluster, require_rights
from npuctl.web.page import STYLE, ClusterPage
from npuctl.web.recorder import HistoryRecorder

_MOST_MESSAGE: Final = 128 * 1024
"""The largest message of a browser: a manifest, escaped."""

_PATIENCE_S: Final = 20.0
"""A page may connect so long after it was loaded, or after a connection was lost."""

_MOST_REQUESTS: Final = 256
"""Requests and connections at once."""


ADDRESS: Final = "127.0.0.1"
"""Where nobody but this machine's users can ask."""


@dataclass(frozen=True, slots=True)
class ServedAt:
    """Where the page is served.

    Attributes:
        address: the address to listen on.
        port: the port; 0 for any free one.
        hosts: further names by which browsers may ask for it.
    """

    address: str = ADDRESS
    port: int = 8090
    hosts: tuple[str, ...] = ()


async def run_web(source: Source, at: ServedAt, history: HistoryStore | None = None) -> None:
    """Serve the page until interrupted.

    Args:
        source: the cluster, or files.
        at: where it is served.
        history: where the history of a cluster is recorded.

    Raises:
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
        InvalidValue: a file is invalid.
    """
    async with AsyncExitStack() as stack:
        client = None
        if not source.files:
            client = await stack.enter_async_context(await source.connect())
            await require_rights(client)
        live = LiveCluster(source)
        if client is None:
            live.read_files()
        hub = Hub(live)
        recorder = HistoryRecorder(hub, history) if history is not None and client is not None else None
        server = _Server(
            uvicorn.Config(
                _application(hub, at, recorder),
                host=at.address,
                port=at.port,
                log_level="warning",
                lifespan="on",
                ws_max_size=_MOST_MESSAGE,
                limit_concurrency=_MOST_REQUESTS,
                timeout_graceful_shutdown=1,
                server_header=False,
            )
        )
        async with asyncio.TaskGroup() as tasks:
            followed = tasks.create_task(live.run(client, hub.on_changed))
            decided = tasks.create_task(hub.run())
            recorded = [tasks.create_task(recorder.run())] if recorder is not None else []
            await server.serve()
            for task in (followed, decided, *recorded):
                task.cancel()


class _Server(uvicorn.Server):
    """Says where it listens, once it does."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        for listening in (listening for some in self.servers for listening in some.sockets):
            host, port = listening.getsockname()[:2]
            sys.stdout.write(f"npuctl web: http://{f'[{host}]' if ':' in host else host}:{port}\n")
        sys.stdout.flush()


def _application(hub: Hub, at: ServedAt, recorder: HistoryRecorder | None) -> WebGuard:
    """The page and the snapshot, behind the guard."""

    @asynccontextmanager
    async def nothing(_app: FastAPI) -> AsyncIterator[None]:
        yield

    outer = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, lifespan=nothing)

    @app.get("/livez")
    def live() -> str:
        return "ok"

    @app.get("/readyz")
    def ready() -> Response:
        return Response(status_code=HTTPStatus.OK if hub.has_read else HTTPStatus.SERVICE_UNAVAILABLE)

    @app.get("/wall.json")
    def snapshot() -> dict[str, object]:
        return hub.snapshot()

    @ui.page("/")
    def show() -> None:
        ui.add_css(STYLE)
        ui.add_head_html('<link rel="preload" href="wall.json" as="fetch" crossorigin="anonymous">')
        page = ClusterPage(hub, recorder)
        hub.viewers.add(page)
        ui.context.client.on_delete(lambda: hub.viewers.discard(page))

    ui.run_with(
        outer,
        title="npuctl web",
        dark=None,
        tailwind=False,
        binding_refresh_interval=None,
        message_history_length=0,
        reconnect_timeout=_PATIENCE_S,
        show_welcome_message=False,
        gzip_middleware_factory=None,
    )
    core.sio.eio.max_http_buffer_size = _MOST_MESSAGE
    return WebGuard(outer, LOOPBACK | {at.address, *at.hosts}, lambda: len(Client.instances))
