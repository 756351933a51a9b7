"""An API server and its clients."""

from collections.abc import AsyncIterator, Callable

import aiohttp
import pytest

from sandbox.apiserver import ApiServer
from tests.sandbox.apiserver.client import Client

Connect = Callable[[str], Client]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    clients: list[Client] = []

    async with aiohttp.ClientSession() as session:

        def client_of(url: str) -> Client:
            clients.append(Client(session, url))
            return clients[-1]

        yield client_of
        for client in clients:
            client.close()


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as server:
        yield server


@pytest.fixture
def client(connect: Connect, server: ApiServer) -> Client:
    return connect(server.url)
