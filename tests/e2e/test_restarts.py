"""A program or the kubelet is killed during an allocation: no chip is allocated twice, and none is lost."""

import asyncio
import time

import pytest

from ascend.chips import RESOURCE
from ascend.products import ASCEND_910A
from tests.e2e.test_main_job import REAL, check_hand_over
from tests.e2e.world import World, annotated


@pytest.mark.long  # tests/conformance/test_restarts.py shows it
async def test_after_a_kubelet_restart_pods_keep_their_chips(world: World) -> None:
    await world.create("before", 4)
    before = await world.running("before")
    node = world.node(before.spec.node_name)
    await node.restart_kubelet()
    await world.all_ready()
    await check_hand_over(world, "before", 4)
    await world.create("after", 4, nodeSelector={"kubernetes.io/hostname": node.name})
    after = await check_hand_over(world, "after", 4)
    assert not annotated(before, REAL) & annotated(after, REAL)


@pytest.mark.long  # tests/conformance/test_records.py shows it
async def test_a_plugin_killed_after_allocate_still_claims_the_pod(world: World) -> None:
    node = world.nodes[0]
    pod = await world.create("train", 2, schedulerName="none")
    async with world.api.gate("PATCH", "/pods/train") as claim:
        await world.bind(pod, node.name, 5, 6, predicate_time=time.time_ns())
        await claim.reached.wait()
        await node.plugin.kill()
    await node.plugin.start()
    assert annotated(await check_hand_over(world, "train", 2), REAL) == 0b01100000


async def test_a_plugin_killed_during_allocate_loses_no_chip(world: World) -> None:
    # The kubelet rejects a pod whose plugin dies during its admission; the controller of the pod creates another one.
    node = world.nodes[0]
    await node.plugin.pause()
    pod = await world.create("train", 8, schedulerName="none")
    await world.bind(pod, node.name, *range(8), predicate_time=time.time_ns())

    async def is_listed() -> bool | None:
        return "train" in await node.listed() or None

    # The kubelet lists a pod right before it admits it, so it calls the plugin now.
    await world.eventually(is_listed, "the kubelet admits the pod")
    await node.plugin.kill()
    await world.failed("train")
    await node.plugin.start()
    await world.delete("train")
    await world.all_ready()
    await world.create("train", 8, nodeSelector={"kubernetes.io/hostname": node.name})
    await check_hand_over(world, "train", 8)


@pytest.mark.parametrize("bound", [False, True], ids=["before the binding", "after the binding"])
async def test_an_allocator_killed_around_a_binding_allocates_no_chip_twice(
    world: World,
    bound: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    async with world.api.gate("POST", "/pods/first/binding", after=bound) as binding:
        await world.create("first", 8)
        await binding.reached.wait()
        await world.allocator.kill()
    await world.allocator.start()
    await world.eventually(world.allocator_ready, "the allocator is ready")
    await world.create("second", 8)
    first, second = await asyncio.gather(check_hand_over(world, "first", 8), check_hand_over(world, "second", 8))
    assert first.spec.node_name != second.spec.node_name
    assert annotated(first, RESOURCE) == annotated(second, RESOURCE) == ASCEND_910A.all_chips
