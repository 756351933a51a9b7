"""This project's allocator above MindCluster's device plugin, which swaps the chips of pods and reports late.

The plugin is a stand-in with the defects and the pace of the real one (``tests.mindcluster.device_plugin``).
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial, reduce
from operator import or_

import aiohttp
import pytest

from allocator.settings import Settings
from ascend.annotations import ALLOCATED, CLAIMED, CONFIGURATION, KUBELET_IDS, MIN_AVAILABLE, PREDICATE_TIME, REAL
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set, join_names
from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import NotFound, Refusal
from ascend.kube.objects import CONFIG_MAPS, PODS, ConfigMap, Pod
from device_plugin.kubelet.pod_resources import count_healthy
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects
from tests.e2e.node import WorldNode
from tests.e2e.world import Setup, World, annotated
from tests.mindcluster.device_plugin import PERIOD_S, REWRITE_S, Chance, MindClusterPlugin

SETUP = Setup(mindclusters_plugin=True)

pytestmark = pytest.mark.parametrize(
    "shared_world",
    ["sandbox", pytest.param("real", marks=[pytest.mark.real, pytest.mark.long])],
    indirect=True,
    scope="module",
)


@pytest.fixture(autouse=True)
def _chance(world: World) -> Iterator[None]:
    """Whatever a test wants of chance ends with it."""
    yield
    for node in world.nodes:
        chance_of(node).reset()


async def runs(world: World, name: str, annotation: str = REAL) -> Pod:
    """Wait until a pod runs and has an annotation of the plugin."""

    async def check() -> Pod | None:
        pod = await world.pod(name)
        assert pod.status.phase != "Failed", f"{name} failed: {pod.status.reason}: {pod.status.message}"
        return pod if pod.status.phase == "Running" and annotation in pod.metadata.annotations else None

    return await world.eventually(check, f"pod {name} runs and has {annotation}")


async def has(world: World, pod: Pod) -> ChipSet:
    """The chips that the pod's container really has."""
    container = await world.node(pod.spec.node_name).container(pod)
    return chip_set(map(int, container.env["ASCEND_VISIBLE_DEVICES"].split(",")))


async def test_pods_get_their_chips_and_records(world: World) -> None:
    for count in (1, 2, 4):
        await world.create(f"of-{count}", count)
        pod = await runs(world, f"of-{count}")
        assert await has(world, pod) == annotated(pod, RESOURCE) == annotated(pod, REAL)
        assert KUBELET_IDS in pod.metadata.annotations


async def test_a_whole_node_is_recorded_by_the_allocator(world: World) -> None:
    await world.create("whole", 8)
    pod = await runs(world, "whole")
    assert CONFIGURATION in await world.annotations(pod.name)
    assert await has(world, pod) == annotated(pod, REAL) == 0xFF
    # The plugin answers such a pod without a look at it, and writes nothing on it.
    assert KUBELET_IDS not in pod.metadata.annotations


async def test_no_chip_is_held_twice_in_a_full_cluster(world: World) -> None:
    chance = random.Random(7)
    alive = [f"p{number}" for number in range(16)]
    for name in alive:
        await world.create(name, 1, terminationGracePeriodSeconds=1)
    for number in range(16, 22):
        await check_nothing_is_held_twice(world, await settled(world))
        # Two that end, and two that wait for their chips.
        for name in chance.sample(alive, 2):
            await world.client.delete(PODS, name, "default")
            alive.remove(name)
        for name in (f"p{number}", f"q{number}"):
            await world.create(name, 1, terminationGracePeriodSeconds=1)
            alive.append(name)
    await check_nothing_is_held_twice(world, await settled(world))


async def settled(world: World) -> list[Pod]:
    """Wait until all pods run but those for which swaps leave no chip; return those that run."""

    async def check() -> list[Pod] | None:
        pods = await world.pods()
        bound = [pod for pod in pods if pod.spec.node_name]
        if not all(pod.status.phase == "Running" and REAL in pod.metadata.annotations for pod in bound):
            return None
        blocked = 0
        for node in world.nodes:
            here = [pod for pod in bound if pod.spec.node_name == node.name]
            counted = [annotated(pod, ALLOCATED) | annotated(pod, REAL) for pod in here]
            blocked += reduce(or_, counted, 0).bit_count() - len(here)
        return bound if len(pods) - len(bound) <= blocked else None

    return await world.eventually(check, "no pod waits for a chip that is free")


async def check_nothing_is_held_twice(world: World, pods: list[Pod]) -> None:
    held = Counter[tuple[str, int]]()
    for pod in pods:
        held.update((pod.spec.node_name, chip) for chip in chip_ids(await has(world, pod)))
    assert set(held.values()) == {1}, held


async def test_chips_of_swapped_pods_are_given_to_others_once_both_have_ended(world: World) -> None:
    node, other = world.nodes
    await world.create("elsewhere", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    await swap(world, node, (0, 1), (2, 3))
    await world.delete("first")
    # What the second pod really has, and what was written on it, is all that is in its ring.
    await world.create("four", 4)
    await runs(world, "four")
    await world.create("waits", 2)
    await world.pending_because("waits", "0 free")
    await world.delete("second")
    await runs(world, "waits")
    await check_nothing_is_held_twice(world, [await world.pod(name) for name in ("four", "waits")])


async def test_a_pod_of_which_the_plugin_has_written_a_false_chip_keeps_its_own(world: World) -> None:
    """The container has the chip that was written on the pod, and AscendReal names another one."""
    node, other = world.nodes
    chance_of(node).misread["first"] = (7,)
    here = {"kubernetes.io/hostname": node.name}
    await world.create("first", 1, nodeSelector=here)
    first = await runs(world, "first")
    assert annotated(first, REAL) == 1 << 7 != await has(world, first)
    await world.create("elsewhere", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    names = [f"p{number}" for number in range(6)]
    for name in names:
        await world.create(name, 1)
    await check_nothing_is_held_twice(world, [first, *[await runs(world, name) for name in names]])
    chance_of(node).reset()
    await world.create("waits", 1)
    await world.delete("first")
    await check_nothing_is_held_twice(world, [await runs(world, name) for name in ("waits", *names)])


def plugin_of(node: WorldNode) -> MindClusterPlugin:
    assert isinstance(node.plugin, MindClusterPlugin)
    return node.plugin


def chance_of(node: WorldNode) -> Chance:
    return plugin_of(node).chance


async def handed_over(world: World, *names: str) -> list[Pod]:
    """Wait until the plugin has handed over the chips of pods; AscendReal comes later."""

    async def check() -> list[Pod] | None:
        pods = [await world.pod(name) for name in names]
        times = {pod.metadata.annotations.get(PREDICATE_TIME) for pod in pods}
        return pods if times == {str(CLAIMED)} else None

    return await world.eventually(check, f"the plugin has claimed {names}")


async def test_a_pod_without_ascendreal_keeps_its_chips(world: World) -> None:
    """The plugin is killed between Allocate and AscendReal, and never writes it."""
    node, other = world.nodes
    here = {"kubernetes.io/hostname": node.name}
    chance_of(node).reports.clear()
    await world.create("first", 4, nodeSelector=here)
    await handed_over(world, "first")
    await restart_plugin(world, node)
    chance_of(node).reset()
    await world.create("elsewhere", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    await world.create("second", 4, nodeSelector=here)
    second = await runs(world, "second")
    first = await world.pod("first")
    assert REAL not in first.metadata.annotations
    await check_nothing_is_held_twice(world, [first, second])


@pytest.mark.parametrize(
    "how", ["restart", *(pytest.param(how, marks=pytest.mark.long) for how in ("reported", "operator"))]
)
async def test_chips_of_a_pod_that_ends_are_not_given_while_another_may_have_them(world: World, how: str) -> None:
    """Two pods have each other's chips, and one ends before the plugin says so.

    It never does after a restart, and on pods of operators, on which the allocator has written AscendReal.
    """
    node, other = world.nodes
    here = {"kubernetes.io/hostname": node.name}
    await world.create("elsewhere", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    await world.create("four", 4, nodeSelector=here)
    four = await runs(world, "four")
    low, high = ((4, 5), (6, 7)) if annotated(four, REAL) == 0x0F else ((0, 1), (2, 3))
    chance_of(node).reports.clear()
    await bind_to_be_swapped(world, node, low, high, is_of_operator=how == "operator")
    await handed_over(world, "first", "second")
    if how == "restart":
        await restart_plugin(world, node)
    if how != "reported":
        chance_of(node).reset()
    await world.delete("first")
    await world.create("third", 2, nodeSelector=here)
    # The allocator has seen the end of the first one before it refuses a pod that came after that.
    await world.pending_because("third", "0 free")
    chance_of(node).reset()
    if how == "reported":
        assert annotated(await runs(world, "second", KUBELET_IDS), REAL) == chip_set(low)
    await check_nothing_is_held_twice(world, [four, await world.pod("second")])
    assert not (await world.pod("third")).spec.node_name
    await world.delete("second")
    await check_nothing_is_held_twice(world, [four, await runs(world, "third")])


async def swap(world: World, node: WorldNode, first: tuple[int, ...], second: tuple[int, ...]) -> None:
    """Have the plugin swap the chips of the pods ``first`` and ``second``."""
    await bind_to_be_swapped(world, node, first, second)
    swapped = [await runs(world, name) for name in ("first", "second")]
    assert [annotated(pod, REAL) for pod in swapped] == [chip_set(second), chip_set(first)]


async def bind_to_be_swapped(
    world: World,
    node: WorldNode,
    first: tuple[int, ...],
    second: tuple[int, ...],
    *,
    is_of_operator: bool = False,
) -> None:
    """Bind two pods so that the kubelet admits the one with the later time first, when both are bound."""
    now = time.time_ns()
    pods = []
    for name, chips in (("first", first), ("second", second)):
        real = {REAL: join_names(chips)} if is_of_operator else {}
        pods.append(await world.create(name, len(chips), annotations=real, schedulerName="none"))
    chance_of(node).answers.clear()
    await world.bind(pods[0], node.name, *first, predicate_time=now + 1_000_000)
    await world.eventually(lambda: is_asked(node), "the kubelet admits the first one")
    await world.bind(pods[1], node.name, *second, predicate_time=now)
    await world.eventually(lambda: plugin_of(node).knows("second"), "the plugin has seen the second one")
    chance_of(node).answers.set()


async def is_asked(node: WorldNode) -> bool:
    return bool(chance_of(node).waiting)


@pytest.mark.long
async def test_a_faulty_chip_is_not_used_and_its_pod_keeps_running(world: World) -> None:
    await world.create("uses", 2)
    pod = await runs(world, "uses")
    node = world.node(pod.spec.node_name)
    await world.create("elsewhere", 8)
    await runs(world, "elsewhere", ALLOCATED)
    chip = max(chip_ids(annotated(pod, ALLOCATED)))
    node.edit_chip(chip, health="Unhealthy")

    async def is_reported() -> bool:
        return (await world.report(node.name)).unhealthy == 1 << chip

    await world.eventually(is_reported, "the fault is reported")
    await world.create("four", 4)
    assert not annotated(await runs(world, "four"), ALLOCATED) >> chip & 1
    await world.delete("uses")
    for name, count in (("two", 2), ("one", 1)):
        await world.create(name, count)
        assert not annotated(await runs(world, name), ALLOCATED) >> chip & 1
    await world.create("waits", 1)
    await world.delete("one")
    assert not annotated(await runs(world, "waits"), ALLOCATED) >> chip & 1


async def test_pods_outlive_a_restart_of_the_plugin_and_new_ones_follow(world: World) -> None:
    await world.create("before", 2)
    before = await runs(world, "before")
    node = world.node(before.spec.node_name)
    await restart_plugin(world, node)
    await world.create("after", 4, nodeSelector={"kubernetes.io/hostname": node.name})
    after = await runs(world, "after")
    assert not await has(world, after) & await has(world, await world.pod("before"))


async def restart_plugin(world: World, node: WorldNode) -> None:
    """Kill the plugin, start it again, and wait until the Node offers all chips again."""
    await node.plugin.kill()
    await world.eventually(partial(offers, node, 0), "the kubelet has lost the chips")
    await node.plugin.start()
    await world.eventually(partial(offers, node, 8), "the kubelet has the chips again")
    await world.all_ready()


async def offers(node: WorldNode, number: int) -> bool:
    return await count_healthy(node.pod_resources_socket, RESOURCE) == number


async def test_a_gang_starts_whole(world: World) -> None:
    group = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}
    await world.create("train-0", 8, annotations=group)
    await world.pending_because("train-0", "2 pods must be placed together")
    await world.create("train-1", 8, annotations=group)
    pods = [await runs(world, f"train-{number}") for number in range(2)]
    assert {pod.spec.node_name for pod in pods} == {node.name for node in world.nodes}
    for pod in pods:
        assert await has(world, pod) == annotated(pod, REAL) == 0xFF


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_reports_that_are_written_every_five_minutes_are_used_all_the_time(world: World) -> None:
    async def updated() -> int:
        return min([(await world.report(node.name)).update_time_s for node in world.nodes])

    for node in world.nodes:
        await first_report(world, node.name)

    async def all_are_usable() -> bool:
        async with aiohttp.ClientSession() as http, http.get(f"{await world.service.leader()}/metrics") as response:
            return 'ascend_allocator_free_chips{product="910A"} 16.0' in await response.text()

    await world.eventually(all_are_usable, "the gauge, which is measured every few seconds, shows all chips")
    first, began_s = await updated(), time.monotonic()
    while await updated() == first:
        assert time.monotonic() - began_s < REWRITE_S + 10
        assert await all_are_usable()
        await asyncio.sleep(1)
    await world.create("last", 8)
    await runs(world, "last")


async def first_report(world: World, node: str) -> ConfigMap:
    """Wait for the first report of a node, which comes after five seconds."""

    async def written() -> ConfigMap | None:
        with suppress(NotFound):
            return await world.client.get(CONFIG_MAPS, config_map_name(node), NAMESPACE)
        return None

    return await world.eventually(written, "the first report is written")


async def test_a_report_that_is_written_late_is_in_use_until_then(world: World) -> None:
    """The allocator reads it with a clock that stands still but for this test."""
    name = world.nodes[0].name
    report = await first_report(world, name)
    written_s = decode_report(report.data).update_time_s
    for late_s, is_usable in ((REWRITE_S + PERIOD_S, True), (Settings().max_report_age_s + 1, False)):
        objects = ClusterObjects.of([await world.node_object(name), report])
        cluster = OfflineAllocator(objects, Settings(), int((written_s + late_s) * 1e9)).cluster
        assert isinstance(cluster.nodes[name].offer, Refusal) is not is_usable
