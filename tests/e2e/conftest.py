"""The scenarios run in two worlds: on the sandbox and on a real cluster.

Where the machine can run the real cluster, `make test` runs those scenarios on it, and on the sandbox only a few that
show that the sandbox is like it; `make test-long` runs all in both.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster import requirements
from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture
from tests.e2e.real import real_world
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import Setup, World

HERE = Path(__file__).parent
IN_BOTH = ("test_gangs.py", "test_main_job.py", "test_webhook.py")
"""Modules whose tests `make test` runs on the sandbox beside the real cluster."""


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module on one event loop, because they share a world."""
    own = [item for item in items if item.path.parent == HERE]
    for item in own:
        item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
    if requirements.missing():
        return
    real = {item.nodeid for item in own if item.get_closest_marker("long") is None}
    for item in own:
        twin = re.sub(r"\bsandbox\b", "real", item.nodeid)
        if twin != item.nodeid and twin in real and item.path.name not in IN_BOTH:
            item.add_marker(pytest.mark.long)


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
