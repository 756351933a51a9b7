"""Starts gRPC servers so that the start can be cancelled."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    import grpc.aio

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


async def start_server(server: "grpc.aio.Server") -> None:
    """Start a server; if this is cancelled meanwhile, stop it again.

    If its own ``start`` is cancelled, the server runs on, and can't be stopped any more.

    Args:
        server: a server that has not been started.
    """
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:
        stopping = asyncio.ensure_future(_stop(starting, server))
        while not stopping.done():  # it may be cancelled again meanwhile
            with suppress(asyncio.CancelledError):
                await asyncio.wait({stopping})
        if (error := stopping.exception()) is not None:
            log.warning("a server whose start was cancelled can't be stopped", error=str(error))
        raise


async def _stop(starting: "asyncio.Future[None]", server: "grpc.aio.Server") -> None:
    await asyncio.wait({starting})
    if starting.exception() is None:
        await server.stop(None)
