"""Fixtures of the tests of real job controllers: a module's controllers run once, for all of its tests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.cluster.fixtures import require_cluster, require_controllers
from tests.workloads.world import Workloads, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module on one event loop, because they share a control plane."""
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def control_plane(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Workloads]:
    """A control plane with the module's ``CONTROLLERS``, their ``FLAGS``, ``DEFINITIONS`` and ``SETTINGS``."""
    require_cluster()
    module = request.module
    require_controllers(module.CONTROLLERS)
    settings, flags = getattr(module, "SETTINGS", {}), getattr(module, "FLAGS", {})
    folder = tmp_path_factory.mktemp("controllers")
    async with running(
        folder, *module.CONTROLLERS, definitions=module.DEFINITIONS, flags=flags, **settings
    ) as workloads:
        yield workloads


@pytest_asyncio.fixture(loop_scope="module")
async def workloads(control_plane: Workloads) -> AsyncIterator[Workloads]:
    """The control plane without workloads and nodes."""
    yield control_plane
    await control_plane.clear()
