"""One API server for the tests of a module, which run on one event loop (``asyncio(loop_scope="module")``)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_server() -> AsyncIterator[ApiServer]:
    """An API server that the tests of a module share."""
    async with ApiServer(tokens=TOKENS) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_client(
    shared_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[KubeClient]:
    """A client of the shared server."""
    kubeconfig = write_kubeconfig(tmp_path_factory.mktemp("client"), shared_server, "secret")
    async with await KubeClient.connect(str(kubeconfig)) as connected:
        yield connected


@pytest_asyncio.fixture(loop_scope="module")
async def server(shared_server: ApiServer) -> AsyncIterator[ApiServer]:
    """The shared server, without objects and watches."""
    yield shared_server
    shared_server.resume_watches()
    await shared_server.watches.wait_for_count(0)
    for entry in shared_server.store.objects_in("default"):
        shared_server.store.remove(entry)


@pytest_asyncio.fixture(loop_scope="module")
async def client(server: ApiServer, shared_client: KubeClient) -> KubeClient:
    """A client of the server."""
    assert server.url
    return shared_client
