"""Calls to the kubelet: where it is dialled, and how their errors are told from being asked to stop."""

import asyncio

import grpc

from ascend.errors import Unreachable

CHANNEL_OPTIONS = (
    # A percent-encoded path as authority is refused by some kubelets (spec/kubernetes.md §8.3).
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Else all channels to an address share one connection, and with it the pause of a second after it was refused, for
    # as long as Python has not collected a call that failed: a new kubelet would be refused in the name of a dead one.
    ("grpc.use_local_subchannel_pool", 1),
)


def give_way() -> None:
    """End here if the task has been asked to end.

    gRPC swallows that where it comes in the same moment as the end of a call or of a server's stop (the latter by
    asyncio.wait_for, before Python 3.12); who does not look goes on for ever.

    Raises:
        CancelledError: it has.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def unreachable(what: str, error: grpc.aio.AioRpcError) -> Unreachable:
    """The error of a call that failed.

    Args:
        what: the call, for the sentence.
        error: how it failed.

    Raises:
        CancelledError: the task has been asked to end.
    """
    give_way()
    return Unreachable(f"{what}: {error.details()}")
