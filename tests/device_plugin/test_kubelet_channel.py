"""An error of a call to the kubelet never hides that its task was cancelled."""

import asyncio

import grpc
import pytest

from ascend.errors import Unreachable
from device_plugin.kubelet.channel import unreachable

ERROR = grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), grpc.aio.Metadata(), "not today")


async def call(asked: asyncio.Event) -> None:
    """A call that fails when its task is cancelled; gRPC raises the call's error."""
    asked.set()
    try:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ERROR from None
    except grpc.aio.AioRpcError as error:
        raise unreachable("the kubelet", error) from error


async def test_a_call_that_fails_while_it_is_cancelled_ends_its_task() -> None:
    asked = asyncio.Event()
    task = asyncio.create_task(call(asked))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_that_fails_raises_an_error_that_names_it() -> None:
    assert str(unreachable("the kubelet", ERROR)) == "the kubelet: not today"
    assert isinstance(unreachable("the kubelet", ERROR), Unreachable)
