"""The limits of gRPC."""

import asyncio
import socket
from contextlib import ExitStack

import grpc
import pytest

from allocator.serving import grpc_server
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from protos.ascend.allocator.v1.allocator_pb2_grpc import AllocatorServicer, AllocatorStub


def ended(connection: socket.socket) -> bool:
    """Wait until the server ends a connection."""
    connection.settimeout(20)
    try:
        while connection.recv(1000):
            pass
    except ConnectionError:
        pass
    return True


async def test_connections_that_say_nothing_are_closed_and_calls_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(grpc_server.OPTIONS) | {"grpc.server_handshake_timeout_ms": 500, "grpc.http2.settings_timeout": 500}
    monkeypatch.setattr(grpc_server, "OPTIONS", tuple(options.items()))
    service = AllocatorServicer()  # type: ignore[abstract]  # its calls answer that they are not implemented
    async with grpc_server.serve_grpc(service, "127.0.0.1:0") as server:
        host, _, port = server.address.rpartition(":")
        with ExitStack() as stack:
            silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(100)]
            assert all([await asyncio.to_thread(ended, each) for each in silent])
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = AllocatorStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetState(pb.GetStateRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetState(pb.GetStateRequest(nodes=["n" * 253] * 10_000), timeout=10)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
