"""MindCluster's scheduler above this project's device plugin, at the kubelets' default period of status updates.

The scheduler is a stand-in with the rules and the pace of the real one (``tests.mindcluster.scheduler``).
"""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Mapping
from functools import partial

import pytest
import pytest_asyncio

from ascend.annotations import REAL
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from tests.e2e.programs import stands_by
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import Setup, World, annotated
from tests.mindcluster.scheduler import FAULT_SCHEDULING, JOB, NAME, MindClusterScheduler

SETUP = Setup(node_status_period_s=10.0, faults_in_use="healthy")

pytestmark = pytest.mark.parametrize(
    "shared_world",
    ["sandbox", pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])],
    indirect=True,
    scope="module",
)

GAP_S = 0.5
"""Between two pods."""
FAULT = {"health": "Unhealthy", "fault_codes": ["80E18402"]}
HEALTHY = {"health": "Healthy", "fault_codes": []}


@pytest_asyncio.fixture(loop_scope="module")
async def scheduler(world: World) -> AsyncIterator[MindClusterScheduler]:
    async with MindClusterScheduler(world.client) as made:
        yield made


async def create(world: World, name: str, count: int, labels: Mapping[str, str] | None = None) -> Pod:
    """Create a pod for MindCluster's scheduler."""
    return await world.create(name, count, labels=dict(labels or {}), schedulerName=NAME)


@pytest.mark.usefixtures("scheduler")
async def test_bursts_of_all_sizes_get_what_was_written(world: World) -> None:
    for wave in range(2):
        sizes = {f"w{wave}-{number}": size for number, size in enumerate((1, 1, 1, 1, 2, 2, 4, 4))}
        await asyncio.gather(*(create(world, name, size) for name, size in sizes.items()))
        pods = [await check_hand_over(world, name, size) for name, size in sizes.items()]
        for node in world.nodes:
            held = [annotated(pod, REAL) for pod in pods if pod.spec.node_name == node.name]
            assert not any(one & other for one, other in itertools.combinations(held, 2))
        await world.delete(*sizes)


@pytest.mark.usefixtures("scheduler")
async def test_whole_nodes_on_which_the_scheduler_has_written_ascendreal(world: World) -> None:
    for name in ("first", "second"):
        await create(world, name, 8)
    pods = [await check_hand_over(world, name, 8) for name in ("first", "second")]
    assert {pod.spec.node_name for pod in pods} == {node.name for node in world.nodes}


@pytest.mark.usefixtures("scheduler")
async def test_chips_change_hands_in_a_full_cluster(world: World) -> None:
    chance = random.Random(3)
    alive = [f"p{number}" for number in range(16)]
    await asyncio.gather(*(create(world, name, 1) for name in alive))
    for number in range(16, 19):
        for name in alive:
            await check_hand_over(world, name, 1)
        ending = chance.sample(alive, 4)
        arriving = [f"p{number}-{each}" for each in range(4)]
        await asyncio.gather(*(create(world, name, 1) for name in arriving), world.delete(*ending))
        alive = [name for name in alive if name not in ending] + arriving
    pods = [await check_hand_over(world, name, 1) for name in alive]
    assert len({(pod.spec.node_name, pod.metadata.annotations[REAL]) for pod in pods}) == 16


async def test_a_fault_and_its_end_leave_the_node_in_use(world: World, scheduler: MindClusterScheduler) -> None:
    """The scheduler asks each node once a second, because a pod waits, and never finds one that is not stable."""
    await create(world, "other", 8)
    full = (await check_hand_over(world, "other", 8)).spec.node_name
    node = next(each for each in world.nodes if each.name != full)
    await create(world, "one", 1)
    await check_hand_over(world, "one", 1)
    await create(world, "waits", 8)
    node.edit_chip(7, **FAULT)
    await world.eventually(lambda: lacks(world, node.name, 7), "the fault is reported")
    await create(world, "during", 2)
    await check_hand_over(world, "during", 2)
    await world.eventually(lambda: offers(world, node.name, 7), "the kubelet shows the fault, after up to a period")
    node.edit_chip(7, **HEALTHY)
    await world.eventually(lambda: has_again(world, node.name), "the end of the fault is reported")
    await create(world, "after", 4)
    await check_hand_over(world, "after", 4)
    await world.eventually(lambda: offers(world, node.name, 8), "the kubelet shows the end of the fault")
    assert set(scheduler.refusals["waits"]) == {each.name for each in world.nodes}
    assert not scheduler.unstable


@pytest.mark.long
async def test_a_faulty_chip_in_use_costs_only_itself(world: World, scheduler: MindClusterScheduler) -> None:
    await create(world, "other", 8)
    await check_hand_over(world, "other", 8)
    await create(world, "uses", 2)
    pod = await check_hand_over(world, "uses", 2)
    node = world.node(pod.spec.node_name)
    chip = annotated(pod, RESOURCE).bit_length() - 1
    node.edit_chip(chip, **FAULT)
    await world.eventually(lambda: lacks(world, node.name, chip), "the fault is reported")
    for name, count in (("four", 4), ("two", 2)):
        await create(world, name, count)
        await check_hand_over(world, name, count)
    assert not scheduler.unstable


@pytest.mark.parametrize("how", ["grace", "force"])
async def test_pods_of_faulty_chips_are_evicted_and_run_on_others(
    world: World, scheduler: MindClusterScheduler, how: str
) -> None:
    await create(world, "train", 2, {FAULT_SCHEDULING: how, JOB: "train"})
    pod = await check_hand_over(world, "train", 2)
    node = world.node(pod.spec.node_name)
    chip = annotated(pod, RESOURCE).bit_length() - 1
    node.edit_chip(chip, **FAULT)

    async def evicted() -> bool:
        return scheduler.evicted == ["train"] and await world.gone("train")

    await world.eventually(evicted, "the pod is evicted")
    await create(world, "train", 2, {FAULT_SCHEDULING: how, JOB: "train"})
    again = await check_hand_over(world, "train", 2)
    assert again.spec.node_name != node.name or not annotated(again, RESOURCE) >> chip & 1


@pytest.mark.long
@pytest.mark.usefixtures("scheduler")
async def test_a_restart_of_the_plugin_hides_no_fault_from_the_scheduler(world: World) -> None:
    """At its end the plugin writes an UpdateTime of 0, of which that scheduler takes no notice."""
    await create(world, "other", 8, {JOB: "other"})
    full = (await check_hand_over(world, "other", 8)).spec.node_name
    node = next(each for each in world.nodes if each.name != full)
    before = await world.report(node.name)
    await node.plugin.stop()
    assert (await world.report(node.name)).update_time_s == 0
    node.edit_chip(0, **FAULT)
    await node.plugin.start()
    await world.eventually(lambda: lacks(world, node.name, 0), "the fault is reported")
    assert (await world.report(node.name)).update_time_s > before.update_time_s
    await create(world, "four", 4)
    assert annotated(await check_hand_over(world, "four", 4), REAL) == 0xF0


@pytest.mark.long
@pytest.mark.usefixtures("scheduler")
async def test_an_upgrade_of_all_nodes_fails_no_pod(world: World) -> None:
    """As a DaemonSet with ``maxSurge`` does it, node by node, while that scheduler places pods of all sizes."""
    for wave, node in enumerate(world.nodes):
        old = node.renew_plugin()
        await node.plugin.start()
        await world.eventually(partial(stands_by, node.plugin_url), "the new one stands by")
        sizes, ending = {f"w{wave}-{number}": size for number, size in enumerate((4, 2, 1, 1, 8))}, None
        for number, (name, size) in enumerate(sizes.items()):
            await create(world, name, size)
            if number == 1:
                ending = asyncio.create_task(old.stop())
            await asyncio.sleep(GAP_S)
        assert ending is not None
        await ending
        pods = [await check_hand_over(world, name, size) for name, size in sizes.items()]
        held = [(pod.spec.node_name, annotated(pod, REAL)) for pod in pods]
        assert not any(one[0] == other[0] and one[1] & other[1] for one, other in itertools.combinations(held, 2))
        await world.delete(*sizes)


@pytest.mark.long
@pytest.mark.usefixtures("scheduler")
async def test_a_second_fault_within_a_second_is_taken_notice_of(world: World) -> None:
    """That scheduler reads a report only if its UpdateTime, in seconds, is larger than the last one."""
    await create(world, "other", 8)
    full = (await check_hand_over(world, "other", 8)).spec.node_name
    node = next(each for each in world.nodes if each.name != full)
    times = [(await world.report(node.name)).update_time_s]
    for chip in (4, 5):
        node.edit_chip(chip, **FAULT)
        await world.eventually(partial(lacks_at_least, world, node.name, chip), "the fault is reported")
        times.append((await world.report(node.name)).update_time_s)
    assert times == sorted(set(times))
    await create(world, "two", 2)
    assert annotated(await check_hand_over(world, "two", 2), REAL) == 0b1100_0000


async def test_a_job_starts_whole_and_is_evicted_whole(world: World, scheduler: MindClusterScheduler) -> None:
    scheduler.minimum["train"] = 2
    await create(world, "other", 4)
    blocked = (await check_hand_over(world, "other", 4)).spec.node_name
    both = dict.fromkeys(("train-0", "train-1"), 8)
    for name, count in both.items():
        await create(world, name, count, {JOB: "train", FAULT_SCHEDULING: "force"})
    await world.eventually(lambda: refused(scheduler, "train-1", blocked), "the scheduler has tried")
    assert not [name for name in both if (await world.pod(name)).spec.node_name]
    await world.delete("other")
    pods = [await check_hand_over(world, name, count) for name, count in both.items()]
    assert {pod.metadata.annotations["distributed-job"] for pod in pods} == {"true"}
    world.node(pods[0].spec.node_name).edit_chip(3, **FAULT)

    async def evicted() -> bool:
        return sorted(scheduler.evicted) == sorted(both)

    await world.eventually(evicted, "all pods of the job are evicted")


async def refused(scheduler: MindClusterScheduler, pod: str, node: str) -> bool:
    return node in scheduler.refusals[pod]


async def lacks(world: World, node: str, chip: int) -> bool:
    return (await world.report(node)).unhealthy == 1 << chip


async def lacks_at_least(world: World, node: str, chip: int) -> bool:
    return bool((await world.report(node)).unhealthy >> chip & 1)


async def offers(world: World, node: str, number: int) -> bool:
    return await world.allocatable(node) == number


async def has_again(world: World, node: str) -> bool:
    return not (await world.report(node)).unhealthy
