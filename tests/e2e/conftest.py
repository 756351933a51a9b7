"""One scenario suite, two worlds: what holds in the sandbox must hold on a real cluster."""

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
    """The tests of a module share a world, and so the event loop it lives on."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(
    scope="module", loop_scope="module", params=["sandbox", pytest.param("real", marks=pytest.mark.real)]
)
async def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Two nodes, a scheduler, and both programs, as the module's ``SETUP`` says: by default 910A servers."""
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
    """The world: no pods, all chips healthy and offered, both programs running."""
    yield shared_world
    await shared_world.mend()
