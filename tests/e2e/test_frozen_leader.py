"""The leader is suspended while kube-scheduler waits for its answer: pods wait for the scheduler's time-out."""

import asyncio
from typing import Final

import pytest

from ascend.kube.objects import Pod
from tests.cluster.cluster import Cluster
from tests.cluster.manifests import extender
from tests.e2e.world import Setup, World

SETUP = Setup(allocators=2)

pytestmark = pytest.mark.parametrize(
    "shared_world",
    [pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])],
    indirect=True,
    scope="module",
)

TIMEOUT: Final = "8s"


async def test_a_leader_suspended_during_filter_delays_pods_until_the_schedulers_time_out(
    world: World, cluster: Cluster
) -> None:
    extenders = [extender(world.extender_url or "", httpTimeout=TIMEOUT)]
    await asyncio.to_thread(cluster.restart_scheduler, extenders=extenders)
    await world.create("first", 1)
    await world.running("first")
    world.service.hold()
    await world.create("asked", 1)

    async def is_asked() -> bool:
        return any(b"/filter" in each for each in world.service.requests)

    await world.eventually(is_asked, "the scheduler asks for the pod")
    leader = await world.pause_leader()
    world.service.release()
    await world.create("without-chips", 0)
    assert "imeout" in await world.pending_because("asked", "imeout")

    async def is_bound() -> Pod | None:
        pod = await world.pod("without-chips")
        return pod if pod.spec.node_name else None

    await world.eventually(is_bound, "the pod without chips is bound")
    await world.running("asked")
    await leader.kill()
