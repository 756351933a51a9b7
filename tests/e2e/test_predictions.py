"""What ``npuctl plan`` says of waiting pods is what kube-scheduler and the allocator then do, preemption included."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from allocator.settings import Settings
from ascend.errors import NotFound
from ascend.kube.objects import PODS
from npuctl.plan.placement import PlacementPlan, Planning
from npuctl.reading.listing import list_objects
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.test_preemption import create_classes, end, fill, gang
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real

GATE = "example.com/not-yet"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as real:
        await create_classes(real)
        yield real


async def create(world: World, name: str, chips: int, priority: str, **more: Any) -> None:
    """Create a pod that no scheduler looks at yet; the API server writes its priority."""
    await world.create(name, chips, priorityClassName=priority, schedulingGates=[{"name": GATE}], **more)


async def plan(world: World) -> PlacementPlan:
    """The plan for the pods, as if they had no gates."""
    objects = (await list_objects(world.client)).without_gates(lambda _pod: True)
    return await Planning(objects, Settings(), time.time_ns()).rest()


async def admit(world: World, *names: str) -> None:
    for name in names:
        await world.client.patch(PODS, name, {"spec": {"schedulingGates": None}}, namespace="default")


async def outcome(world: World, *names: str) -> dict[str, str]:
    """The nodes of pods once all are bound; their victims end as soon as they are terminating."""

    async def check() -> dict[str, str]:
        for pod in await world.pods():
            if pod.is_terminating and pod.spec.node_name.startswith("fake"):
                try:
                    await end(world, pod)
                except NotFound:
                    continue
        nodes = {name: (await world.pod(name)).spec.node_name for name in names}
        return nodes if all(nodes.values()) else {}

    return await world.eventually(check, "the pods are bound")


async def test_the_victims_of_a_pod_are_those_that_are_planned(world: World) -> None:
    node = world.nodes[0].name
    for name, chips, priority in (("least", (2,), "least"), ("left", (0, 1), "modest"), ("right", (4, 5), "modest")):
        pod = await world.create(name, len(chips), schedulerName="none", priorityClassName=priority)
        await world.bind(pod, node, *chips, predicate_time=time.time_ns())
        await check_hand_over(world, name, len(chips))
    await create(world, "urgent", 4, "urgent", nodeSelector={"kubernetes.io/hostname": node})
    (planned,) = (await plan(world)).pods
    assert (planned.name, planned.node, planned.preempts) == ("urgent", node, ("default/right",))
    await admit(world, "urgent")
    await check_hand_over(world, "urgent", 4)
    assert {f"default/{pod.name}" for pod in await world.pods()} == {"default/least", "default/left", "default/urgent"}


@pytest.mark.long  # tests/npuctl/test_plan.py shows it of one queue for both
async def test_a_pod_of_higher_priority_comes_first_and_the_other_waits(world: World) -> None:
    node = world.nodes[0].name
    here = {"kubernetes.io/hostname": node}
    await create(world, "low", 8, "least", nodeSelector=here)
    await create(world, "high", 8, "modest", nodeSelector=here)
    planned = await plan(world)
    assert [each.name for each in planned.pods] == ["high"]
    assert [each.name for each in planned.pending] == ["low"]
    await admit(world, "high", "low")
    await check_hand_over(world, "high", 8)
    await world.pending_because("low")


async def test_the_victims_of_a_gang_are_those_that_are_planned(world: World) -> None:
    await fill(world, "fake-1", "fake-2", "fake-3")
    for node in world.nodes:
        here = {"kubernetes.io/hostname": node.name}
        await world.create(f"keeps-{node.name}", 1, priorityClassName="urgent", nodeSelector=here)
        await world.running(f"keeps-{node.name}")
    names = ("urgent-0", "urgent-1")
    for name in names:
        await create(world, name, 8, "urgent", annotations=gang(2))
    planned = {each.name: each for each in (await plan(world)).pods if each.name in names}
    victims = {key for each in planned.values() for key in each.preempts}
    assert len(victims) == len(names)
    await admit(world, *names)
    nodes = await outcome(world, *names)
    assert sorted(nodes.values()) == sorted(each.node for each in planned.values())
    left = {f"default/{pod.name}" for pod in await world.pods() if not pod.is_terminating}
    assert not victims & left
