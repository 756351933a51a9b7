"""One allocator for the tests of a module, which run on one event loop (``asyncio(loop_scope="module")``)."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from sandbox.apiserver import ApiServer
from tests.allocator.harness import Allocator, running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_allocator(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Allocator]:
    """An allocator that the tests of a module share."""
    async with ApiServer() as server, running(server, tmp_path_factory.mktemp("allocator")) as allocator:
        yield allocator


@pytest_asyncio.fixture(loop_scope="module")
async def allocator(shared_allocator: Allocator) -> AsyncIterator[Allocator]:
    """The shared allocator, on a cluster without nodes and pods."""
    yield shared_allocator
    await shared_allocator.reset()
