"""Gangs that preempt with the real kube-scheduler, though the allocator does not know what their pods require."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from ascend.errors import NotFound
from ascend.kube.client import MERGE_PATCH
from ascend.kube.objects import NODES
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_preemption import create_classes, end, fill, gang, in_pool
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real

ZONE = "topology.kubernetes.io/zone"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as real:
        await create_classes(real)
        yield real


async def nodes_of(world: World, size: int) -> list[str]:
    """The nodes of the gang once it has started; until then each victim ends as soon as it is terminating."""

    async def check() -> list[str]:
        pods = await world.pods()
        for pod in pods:
            if pod.is_terminating:
                try:
                    await end(world, pod)
                except NotFound:
                    continue
        nodes = [pod.spec.node_name for pod in pods if pod.name.startswith("urgent") and pod.spec.node_name]
        return nodes if len(nodes) == size else []

    return await world.eventually(check, "all pods of the gang are bound")


async def requeued(world: World) -> float:
    """How often the allocator has made the scheduler retry a pod."""
    leader = await world.service.leader()
    async with aiohttp.ClientSession() as http, http.get(f"{leader}/metrics") as response:
        lines = (await response.text()).splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("ascend_allocator_requeued_total "))


async def survivors(world: World) -> set[str]:
    return {pod.name for pod in await world.pods() if pod.name.startswith("low") and not pod.is_terminating}


async def test_a_gang_with_one_pod_for_each_zone_preempts_and_starts(world: World) -> None:
    zones = {"a": ("fake-a1", "fake-a2"), "b": ("fake-b1", "fake-b2")}
    names = [name for zone in zones.values() for name in zone]
    for zone, nodes in zones.items():
        await fill(world, *nodes, labels={ZONE: zone})
    spec: dict[str, Any] = in_pool(*names)
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"job": "urgent"}}}
    spec["affinity"]["podAntiAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    for number in range(2):
        await world.create(
            f"urgent-{number}",
            8,
            annotations=gang(2),
            labels={"job": "urgent"},
            priorityClassName="urgent",
            **spec,
        )
    nodes_of_gang = await nodes_of(world, 2)
    assert {name.removeprefix("fake-")[0] for name in nodes_of_gang} == {"a", "b"}
    assert await survivors(world)


async def test_a_gang_whose_pods_may_be_on_different_nodes_preempts_on_both(world: World) -> None:
    await fill(world, "fake-1", "fake-2", "fake-3")
    for number, names in enumerate((("fake-1",), ("fake-2", "fake-3"))):
        spec: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names)}
        await world.create(f"urgent-{number}", 8, **spec)
    assert "fake-1" in await nodes_of(world, 2)
    assert len(await survivors(world)) == 1


async def test_no_pod_is_evicted_for_a_gang_with_a_pod_that_may_be_nowhere(world: World) -> None:
    await fill(world, "fake-1", "fake-2")
    await fill(world, "fake-3", priority="urgent")
    for number, names in enumerate((("fake-1", "fake-2"), ("fake-3",))):
        spec: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names)}
        await world.create(f"urgent-{number}", 8, **spec)
    for number in range(2):
        await world.pending_because(f"urgent-{number}")
    before = await requeued(world)

    async def retried() -> bool:
        return await requeued(world) > before

    await world.eventually(retried, "the scheduler has tried a pod once more")
    assert await survivors(world) == {"low-fake-1", "low-fake-2", "low-fake-3"}


def missing_claim() -> dict[str, Any]:
    return {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]}


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "lacking", [{"cpu": 1000}, missing_claim(), {"nodeSelector": {"no": "node"}}], ids=["cpu", "claim", "selector"]
)
async def test_no_pod_is_evicted_for_a_gang_of_which_one_pod_lacks_something_else(
    world: World, lacking: dict[str, Any], first: int
) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names)
    for number in (first, 1 - first):
        more: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names)}
        await world.create(f"urgent-{number}", 8, **more, **(lacking if number else {"cpu": 1}))
    await world.pending_because("urgent-1")
    before = await requeued(world)

    async def retried() -> bool:
        return await requeued(world) >= before + 2

    await world.eventually(retried, "the scheduler has tried the other pod twice more")
    assert await survivors(world) == {f"low-{name}" for name in names}


async def test_a_gang_preempts_once_there_are_nodes_for_its_last_pod(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names)
    for number in range(2):
        more: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names)}
        await world.create(f"urgent-{number}", 8, **more, nodeSelector={"late": "yes"} if number else {})
    await world.pending_because("urgent-1", "didn't match")
    assert await survivors(world) == {f"low-{name}" for name in names}
    for name in names[1:]:
        label = {"metadata": {"labels": {"late": "yes"}}}
        await world.client.request("PATCH", NODES.path(name=name), body=label, content_type=MERGE_PATCH)
    assert set(await nodes_of(world, 2)) & set(names[1:])
    assert len(await survivors(world)) == 1


async def test_pods_without_chips_end_for_the_cpu_of_a_pod_and_of_a_gang(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await world.add_fake_nodes(*names, cpu=16)
    for name in names:
        here: dict[str, Any] = {"nodeSelector": {"kubernetes.io/hostname": name}, "terminationGracePeriodSeconds": 30}
        await world.create(f"plain-{name}", 0, cpu=14, priorityClassName="least", **here)

    async def all_bound() -> bool:
        return all(pod.spec.node_name for pod in await world.pods())

    await world.eventually(all_bound, "the pods without chips are bound")
    for number in range(2):
        more: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names[:2])}
        await world.create(f"urgent-{number}", 8, cpu=8, **more)
    await world.create("urgent-alone", 8, cpu=8, priorityClassName="urgent", **in_pool(names[2]))
    assert set(await nodes_of(world, 3)) == set(names)


async def still_running(world: World, names: tuple[str, ...]) -> None:
    """Wait until kube-scheduler has tried a gang of two; nobody is evicted for it."""
    for number in range(2):
        await world.pending_because(f"urgent-{number}")
    assert await survivors(world) == {f"low-{name}" for name in names}


async def test_no_pod_is_evicted_for_a_gang_with_a_pod_that_preempts_nobody(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names)
    for number, priority in enumerate(("urgent", "urgent-never")):
        await world.create(f"urgent-{number}", 8, annotations=gang(2), priorityClassName=priority, **in_pool(*names))
    await still_running(world, names)


async def test_no_pod_is_evicted_that_is_more_important_than_one_pod_of_the_gang(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names, priority="modest")
    for number, priority in enumerate(("urgent", "least")):
        await world.create(f"urgent-{number}", 8, annotations=gang(2), priorityClassName=priority, **in_pool(*names))
    await still_running(world, names)


async def test_of_two_gangs_that_preempt_at_once_one_starts_and_no_more_end_than_it_needs(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names)
    for job in ("urgent-a", "urgent-b"):
        for number in range(2):
            spec: dict[str, Any] = {"annotations": gang(2, job), "priorityClassName": "urgent", **in_pool(*names)}
            await world.create(f"{job}-{number}", 8, **spec)
    await nodes_of(world, 2)
    bound = [pod.name for pod in await world.pods() if pod.name.startswith("urgent") and pod.spec.node_name]
    waiting = "urgent-b" if bound[0].startswith("urgent-a") else "urgent-a"
    assert not [name for name in bound if name.startswith(waiting)]
    await world.pending_because(f"{waiting}-0")
    assert len(await survivors(world)) == 1
