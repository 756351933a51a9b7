"""Preemption with the real kube-scheduler, which by itself only counts chips."""

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import pytest
import pytest_asyncio

from ascend.errors import Conflict, NotFound
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_main_job import REAL, RIGHT, check_hand_over
from tests.e2e.world import Setup, World, annotated

pytestmark = pytest.mark.real

CLASSES: Final = {"least": 1, "modest": 10, "urgent": 1000}
_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as real:
        for name, value in CLASSES.items():
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
            with suppress(Conflict):
                await real.client.request("POST", _PATH, body={**body, "value": value})
        yield real


async def test_the_victims_are_the_pods_whose_chips_complete_a_ring(world: World) -> None:
    # Chips 3, 6 and 7 are free. By count, evicting `least` (chip 2) frees enough for four, but not four in one ring.
    node = world.nodes[0].name
    for name, chips, priority in (
        ("least", (2,), "least"),
        ("left", (0, 1), "modest"),
        ("right", (4, 5), "modest"),
    ):
        pod = await world.create(name, len(chips), schedulerName="none", priorityClassName=priority)
        await world.bind(pod, node, *chips, predicate_time=time.time_ns())
        await check_hand_over(world, name, len(chips))
    here = {"kubernetes.io/hostname": node}
    await world.create("urgent", 4, priorityClassName="urgent", nodeSelector=here)
    urgent = await check_hand_over(world, "urgent", 4)
    assert annotated(urgent, REAL) == RIGHT
    assert {pod.name for pod in await world.pods()} == {"least", "left", "urgent"}
    with pytest.raises(NotFound):
        await world.pod("right")


async def test_no_pod_is_evicted_if_the_preemptor_would_not_fit_anyway(world: World) -> None:
    node, other = (each.name for each in world.nodes)
    important = await world.create("important", 2, schedulerName="none", priorityClassName="urgent")
    await world.bind(important, node, 0, 4, predicate_time=time.time_ns())
    await world.create("least", 4, nodeSelector={"kubernetes.io/hostname": other})
    await world.running("least")
    pod = await world.create("victim", 4, schedulerName="none")
    await world.bind(pod, node, 1, 2, 5, 6, predicate_time=time.time_ns())
    await world.running("victim")
    # Without the victim six chips are free, enough by count; but `important` holds a chip of each ring.
    await world.create("urgent", 4, priorityClassName="modest", nodeSelector={"kubernetes.io/hostname": node})
    await world.pending_because("urgent")
    assert (await world.pod("victim")).status.phase == "Running"
