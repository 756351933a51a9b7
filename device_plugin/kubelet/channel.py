"""gRPC channels to the kubelet, and how the errors of calls differ from the cancellation of a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from ascend.daemon.grpc_start import require_descriptors
from ascend.errors import Unreachable

CHANNEL_OPTIONS = (
    # Some kubelets refuse a percent-encoded path as authority (docs/spec/kube-api.md#grpc-over-unix-sockets).
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Otherwise all channels to one address share a connection, and its pause of a second after it was refused, until
    # Python has collected a failed call: a new kubelet would be treated as unreachable because of the old one.
    ("grpc.use_local_subchannel_pool", 1),
)


@asynccontextmanager
async def open_channel(socket: Path, *options: tuple[str, int]) -> AsyncIterator[grpc.aio.Channel]:
    """A channel to a socket.

    Args:
        socket: its path.
        options: those of gRPC, beside ``CHANNEL_OPTIONS``.

    Raises:
        Unreachable: there are no file descriptors for it.
    """
    try:
        require_descriptors()
    except OSError as error:
        raise Unreachable(f"{socket}: {error}") from error
    async with grpc.aio.insecure_channel(f"unix://{socket}", options=(*CHANNEL_OPTIONS, *options)) as channel:
        yield channel


def raise_if_cancelled() -> None:
    """Raise if the task was cancelled.

    gRPC swallows a cancellation that arrives at the same moment as the end of a call or of a server's stop (the latter
    through asyncio.wait_for, before Python 3.12); without this check the task would never end.

    Raises:
        CancelledError: the task was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def unreachable(what: str, error: grpc.aio.AioRpcError) -> Unreachable:
    """Return the error of a failed call.

    Args:
        what: the call, for the sentence.
        error: how it failed.

    Raises:
        CancelledError: the task was cancelled.
    """
    raise_if_cancelled()
    return Unreachable(f"{what}: {error.details()}")
