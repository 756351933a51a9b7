"""The scenarios run in two worlds: on the sandbox and on a real cluster.

Where the machine can run the real cluster, `make test` runs on it the scenarios that need a real part, and on the
sandbox the others and a few that show that the sandbox is like it; `make test-long` runs all in both.
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
IN_BOTH = ("test_gangs.py", "test_main_job.py")
"""Modules whose tests `make test` runs on the sandbox beside the real cluster."""
ON_THE_SANDBOX = (
    # What an allocator believes, decides and endures is the same whoever binds the pods.
    "test_believed_pods.py",
    "test_cores.py",
    "test_fairness.py",
    "test_overload.py",
    "test_products.py",
    # tests/conformance shows the same of a plugin on a real kubelet.
    "test_pods_bound_in_reverse_predicate_time_order_are_not_swapped",
    "test_a_free_chip_that_fails_is_not_allocated_until_it_recovers",
    "test_a_chip_that_fails_in_use_keeps_its_pod_and_is_not_reallocated",
    "test_the_chips_of_a_deleted_pod_are_allocated_again",
)
"""Modules and tests that `make test` runs on the sandbox and only `make test-long` on the real cluster."""


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a module on one event loop, because they share a world."""
    own = [item for item in items if item.path.parent == HERE]
    for item in own:
        item.add_marker(pytest.mark.asyncio(loop_scope="module"), append=False)
        is_left = (
            item.path.name in ON_THE_SANDBOX or item.nodeid.partition("[")[0].rpartition("::")[2] in ON_THE_SANDBOX
        )
        if is_left and item.get_closest_marker("real") is not None:
            item.add_marker(pytest.mark.long)
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
