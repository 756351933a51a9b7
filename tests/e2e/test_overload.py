"""Strangers treat the ports of both programs badly: jobs start all the while, and nothing ends."""

import pytest

from tests.e2e.overload import jobs_start_while_attacked
from tests.e2e.world import Setup, World

SETUP = Setup(webhooks="bindings,pods")

HEADERS = ("silent", "slow-headers", "garbage-headers")
BODIES = ("half-bodies", "half-pods", "half-filters", "too-large", "large-filters")
OTHERS = [("large-pods", "half-bodies"), ("many-pods",), ("scrapes", "unread", "slow-headers")]
LONG = pytest.mark.long


@pytest.mark.parametrize(
    "names", [BODIES, *(pytest.param(names, marks=LONG) for names in (HEADERS, *OTHERS))], ids="+".join
)
async def test_jobs_start_while_strangers_overload_the_allocator(world: World, names: tuple[str, ...]) -> None:
    await jobs_start_while_attacked(world, "ascend-allocator", "allocator", world.service.backends[0], names)


@pytest.mark.parametrize("names", [HEADERS, pytest.param(("scrapes", "unread"), marks=LONG)], ids="+".join)
async def test_jobs_start_while_strangers_overload_a_device_plugin(world: World, names: tuple[str, ...]) -> None:
    await jobs_start_while_attacked(world, "ascend-device-plugin", "devicePlugin", world.nodes[0].plugin_url, names)
