"""Strangers at hundreds of addresses leave no garbage in an allocator's memory: over TLS, each has its buffers."""

import pytest

from tests.e2e.overload import jobs_start_while_attacked
from tests.e2e.world import Setup, World

SETUP = Setup(by_webhook=True, webhooks="bindings,pods")


@pytest.mark.long
@pytest.mark.parametrize("name", ["refused-values", "after-upgrades", "refused-sizes", "trickled-pods"])
async def test_jobs_start_while_many_strangers_send_nonsense(world: World, name: str) -> None:
    await jobs_start_while_attacked(world, "ascend-allocator", "allocator", world.service.backends[0], (name,))
