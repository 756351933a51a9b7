"""gRPC servers whose start is cancelled."""

import asyncio
from pathlib import Path
from typing import cast

import grpc.aio
import pytest

from ascend.daemon.grpc_start import start_server


async def test_a_start_that_fails_after_it_was_cancelled_is_cancelled() -> None:
    class Failing:
        async def start(self) -> None:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            raise OSError("the address is in use")

    task = asyncio.create_task(start_server(cast("grpc.aio.Server", Failing())))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("cancels", [1, 2])
@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_a_server_whose_start_is_cancelled_does_not_go_on(tmp_path: Path, turns: int, cancels: int) -> None:
    server, path = grpc.aio.server(), f"unix:{tmp_path / 's.sock'}"
    server.add_insecure_port(path)
    task = asyncio.create_task(start_server(server))
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(cancels):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    async with grpc.aio.insecure_channel(path) as channel:
        call = channel.unary_unary("/any/call", request_serializer=bytes, response_deserializer=bytes)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(b"", timeout=5.0)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
