"""The scenarios run in two worlds: on the sandbox and on a real cluster."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture
from tests.e2e.real import real_world
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import Setup, World

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module on one event loop, because they share a world."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.real)]
)
async def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Two nodes, a scheduler and both programs, configured by the module's ``SETUP``; by default 910A servers."""
    setup = getattr(request.module, "SETUP", Setup())
    folder = tmp_path_factory.mktemp("world")
    making: AbstractAsyncContextManager[World] = (
        sandbox_world(folder, setup)
        if request.param == "sandbox"
        else real_world(request.getfixturevalue("cluster"), folder, setup)
    )
    async with making as world:
        yield world


@pytest_asyncio.fixture(loop_scope="module")
async def world(shared_world: World) -> AsyncIterator[World]:
    """The world without pods, with all chips healthy and allocatable, and both programs running."""
    yield shared_world
    await shared_world.restore()
