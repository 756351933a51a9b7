"""Starts gRPC servers so that the start can be cancelled, and keeps gRPC from ending the process."""

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    import grpc.aio

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


_DESCRIPTORS: Final = 16
"""More than gRPC opens with a server or a channel: 6, if there was none before."""


def require_descriptors() -> None:
    """Make sure that a gRPC server or channel can be made.

    gRPC aborts the process if it finds no file descriptor then.

    Raises:
        OSError: there are too few descriptors left.
    """
    opened = list[int]()
    try:
        for _ in range(_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    finally:
        for server in opened:
            os.close(server)


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
