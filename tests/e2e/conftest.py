"""One scenario suite, two worlds: what holds in the sandbox must hold on a real cluster."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture
from tests.e2e.real import real_world
from tests.e2e.sandboxed import sandbox_world
from tests.e2e.world import World


@pytest.fixture(params=["sandbox", pytest.param("real", marks=pytest.mark.real)])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    """Two nodes with 8 chips each, a scheduler, and both programs."""
    if request.param == "sandbox":
        async with sandbox_world(tmp_path) as sandboxed:
            yield sandboxed
    else:
        async with real_world(request.getfixturevalue("cluster"), tmp_path) as real:
            yield real
