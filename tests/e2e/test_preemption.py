"""Preemption with the real kube-scheduler, which by itself only counts chips."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

import pytest
import pytest_asyncio

from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Conflict, NotFound
from ascend.kube.objects import PODS, Pod
from tests.cluster.binaries import MINOR
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_main_job import REAL, RIGHT, check_hand_over
from tests.e2e.world import Setup, World, annotated

pytestmark = pytest.mark.real

CLASSES: Final = {"least": 1, "modest": 10, "urgent": 1000, "urgent-never": 1000}
_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


async def create_classes(world: World) -> None:
    """Create the priority classes, unless they exist."""
    for name, value in CLASSES.items():
        policy = "Never" if name.endswith("never") else "PreemptLowerPriority"
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        with suppress(Conflict):
            await world.client.request("POST", _PATH, body={**body, "value": value, "preemptionPolicy": policy})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as real:
        await create_classes(real)
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


def gang(count: int, name: str = "urgent") -> dict[str, str]:
    return {"scheduling.k8s.io/group-name": name, MIN_AVAILABLE: str(count)}


async def fill(world: World, *names: str, labels: Mapping[str, str] | None = None, priority: str = "least") -> None:
    """Add fake nodes, each with a running pod on all of its chips."""
    await world.add_fake_nodes(*names, labels=labels)
    for name in names:
        here = {"kubernetes.io/hostname": name}
        ends: dict[str, Any] = {"terminationGracePeriodSeconds": 30}  # without it they would be gone at once
        await world.create(f"low-{name}", 8, priorityClassName=priority, nodeSelector=here, **ends)

    async def bound() -> bool:
        return all(pod.spec.node_name for pod in await world.pods())

    await world.eventually(bound, "all pods are bound")


async def terminating(world: World) -> list[Pod]:
    """Wait until pods are terminating; on fake nodes they stay so."""

    async def check() -> list[Pod]:
        return [pod for pod in await world.pods() if pod.is_terminating]

    return await world.eventually(check, "pods are terminating")


async def end(world: World, pod: Pod) -> None:
    """The containers of a terminating pod on a fake node have ended."""
    path = PODS.path(namespace="default", name=pod.name)
    await world.client.request("DELETE", path, query={"gracePeriodSeconds": "0"})


def in_pool(*names: str) -> dict[str, Any]:
    """A spec that allows these nodes only."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(names)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


async def test_no_pod_is_evicted_for_a_gang_that_would_not_fit_anyway(world: World) -> None:
    await fill(world, "fake-1", "fake-2")
    pool = in_pool("fake-1", "fake-2")
    # One of four pods, then all of them: two nodes are too few.
    for count in (1, 4):
        for number in range(count - 1 if count > 1 else 0, count):
            await world.create(f"urgent-{number}", 8, annotations=gang(4), priorityClassName="urgent", **pool)
        await world.pending_because(f"urgent-{count - 1}")
    for number in (1, 2):
        await world.create(f"urgent-{number}", 8, annotations=gang(4), priorityClassName="urgent", **pool)
        await world.pending_because(f"urgent-{number}")
    assert not [pod.name for pod in await world.pods() if pod.is_terminating]
    assert {pod.name for pod in await world.pods() if pod.spec.node_name} == {"low-fake-1", "low-fake-2"}


async def test_a_gang_starts_in_the_place_of_its_victims_and_nobody_else(world: World) -> None:
    names = ("fake-1", "fake-2", "fake-3")
    await fill(world, *names)
    for number in range(2):
        await world.create(f"urgent-{number}", 8, annotations=gang(2), priorityClassName="urgent", **in_pool(*names))
    first, *others = await terminating(world)
    preempted = {first.spec.node_name}

    async def nominated() -> bool:
        pods = [await world.pod(f"urgent-{number}") for number in range(2)]
        return first.spec.node_name in {pod.status.nominated_node_name for pod in pods}

    await world.eventually(nominated, "a pod is nominated")
    await world.create("thief", 8, priorityClassName="least", **in_pool(*names))
    await world.pending_because("thief")
    # Another allocator knows only the nomination.
    await world.allocator.kill()
    await world.allocator.start()
    await world.eventually(world.allocator_ready, "the allocator is ready")
    await end(world, first)
    # kube-scheduler schedules the other pod again now; the node that is free is kept for its peer.
    others = others or await terminating(world)
    for other in others:
        preempted.add(other.spec.node_name)
        assert not (await world.pod("thief")).spec.node_name
        await end(world, other)

    async def started() -> bool:
        pods = [await world.pod(f"urgent-{number}") for number in range(2)]
        return {pod.spec.node_name for pod in pods} == preempted

    await world.eventually(started, "both pods are bound to the nodes of their victims")
    assert len(preempted) == 2
    assert not (await world.pod("thief")).spec.node_name
    assert sum(pod.name.startswith("low") for pod in await world.pods()) == 1


async def test_the_first_pods_of_a_gang_preempt_once_its_last_one_exists(world: World) -> None:
    names = ("fake-1", "fake-2")
    await fill(world, *names)
    spec: dict[str, Any] = {"annotations": gang(2), "priorityClassName": "urgent", **in_pool(*names)}
    await world.create("urgent-0", 8, **spec)
    assert "GangIncomplete" not in await world.pending_because("urgent-0")  # only `preempt` was called for it
    await world.create("urgent-1", 8, **spec)
    remaining = set(names)
    if MINOR < 33:  # there the end of a nomination makes kube-scheduler try no pod again, only that of a pod
        (first,) = await terminating(world)
        await end(world, first)
        remaining.remove(first.spec.node_name)

    async def all_terminating() -> bool:
        return {pod.spec.node_name for pod in await world.pods() if pod.is_terminating} == remaining

    await world.eventually(all_terminating, "the victims of both pods are terminating, and none has ended")


async def test_a_pod_alone_is_evicted_rather_than_one_of_a_running_gang(world: World) -> None:
    names = [f"fake-{number}" for number in range(5)]
    await world.add_fake_nodes(*names)
    ends: dict[str, Any] = {"terminationGracePeriodSeconds": 30, "priorityClassName": "least"}
    # By name the nodes of the gang come first.
    await world.create("lone", 8, nodeSelector={"kubernetes.io/hostname": names[-1]}, **ends)
    for number in range(4):
        await world.create(f"big-{number}", 8, annotations=gang(4, "big"), **in_pool(*names[:-1]), **ends)

    async def all_bound() -> bool:
        return all(pod.spec.node_name for pod in await world.pods())

    await world.eventually(all_bound, "all pods are bound")
    await world.create("urgent", 8, priorityClassName="urgent", **in_pool(*names))
    assert [pod.name for pod in await terminating(world)] == ["lone"]
