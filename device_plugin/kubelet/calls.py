"""Calls to the kubelet: where it is dialled, and how their errors are told from being asked to stop."""

import asyncio

import grpc

from ascend.errors import Unreachable

CHANNEL_OPTIONS = (
    # A percent-encoded path as authority is refused by some kubelets (spec/kubernetes.md §8.3).
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
)


def unreachable(what: str, error: grpc.aio.AioRpcError) -> Unreachable:
    """The error of a call that failed.

    Args:
        what: the call, for the sentence.
        error: how it failed.

    Raises:
        CancelledError: the task has been cancelled at the same moment. gRPC then shows the call's error alone, and who
            takes that for all there is goes on for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
    return Unreachable(f"{what}: {error.details()}")
