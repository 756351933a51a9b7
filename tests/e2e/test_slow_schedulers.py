"""Gangs whose scheduler can't filter all pods while a Binding is held: each starts whole, or not at all."""

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from allocator.rules.scheduled import verdict_on
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.e2e.test_gang_barrier import POOL, create_gang
from tests.e2e.world import Setup, World

SETUP = Setup(gang_hold_s=2.0)
SIZE: Final = 60
"""At 10 pods per second a scheduler takes three times as long for them as a Binding is held."""


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def slow(world: World) -> AsyncIterator[None]:
    """The scheduler filters 10 pods per second."""
    world.service.filter_s = 0.1
    yield
    world.service.filter_s = 0.0


async def started(world: World, name: str, size: int) -> list[Pod]:
    """Wait until a gang has started."""

    async def check() -> list[Pod] | None:
        pods = [pod for pod in await world.pods() if pod.name.startswith(f"{name}-") and pod.spec.node_name]
        return pods if len(pods) == size else None

    return await world.eventually(check, f"gang {name} starts")


async def test_a_gang_starts_although_its_scheduler_takes_longer_than_a_binding_is_held(world: World) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(SIZE // 2)), labels=POOL)
    await create_gang(world, "a", SIZE, cpu=0)
    pods = await started(world, "a", SIZE)
    assert len({pod.spec.node_name for pod in pods}) == SIZE // 2


async def lapsed(world: World) -> None:
    """Wait until the Binding of a pod was given up, and the pod is nominated for its node."""

    async def check() -> bool:
        verdicts = [verdict_on(pod) for pod in await world.pods() if pod.status.nominated_node_name]
        return any(verdict is not None and Reason.GANG_AWAITED in verdict.message for verdict in verdicts)

    await world.eventually(check, "the Binding of a pod has lapsed")


@pytest.mark.long
async def test_a_gang_starts_whole_although_its_allocator_dies_in_the_middle(world: World) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(SIZE // 2)), labels=POOL)
    await create_gang(world, "a", SIZE, cpu=0)
    await lapsed(world)
    await world.kill_leader()
    assert not await bound(world)
    await world.allocator.start()
    await started(world, "a", SIZE)


@pytest.mark.long
async def test_a_gang_starts_whole_although_its_scheduler_restarts_in_the_middle(world: World) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(SIZE // 2)), labels=POOL)
    await create_gang(world, "a", SIZE, cpu=0)
    await lapsed(world)
    await world.restart_scheduler()
    await started(world, "a", SIZE)


async def bound(world: World) -> list[str]:
    return [pod.name for pod in await world.pods() if pod.spec.node_name]


@pytest.mark.long
async def test_a_gang_that_lacks_cpu_starts_when_there_is_enough_and_not_before(world: World) -> None:
    half = SIZE // 2
    await world.add_fake_nodes(*(f"q-{number}" for number in range(half)), labels=POOL, cpu=8)
    await world.create("other", 0, cpu=6, nodeSelector=POOL)
    await world.eventually(lambda: bound(world), "the other pod is bound")
    await create_gang(world, "a", SIZE)

    async def refused() -> bool:
        verdicts = [verdict_on(pod) for pod in await world.pods() if pod.name.startswith("a-")]
        assert await bound(world) == ["other"]
        return any(verdict is not None and "Insufficient cpu" in verdict.message for verdict in verdicts)

    await world.eventually(refused, "a pod is refused")
    await world.add_fake_nodes("q-last", labels=POOL, cpu=8)
    pods = await started(world, "a", SIZE)
    used = Counter(pod.spec.node_name for pod in pods)
    assert max(used.values()) == 2
    assert used[(await world.pod("other")).spec.node_name] == 0
