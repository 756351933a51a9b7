"""Pods with AI cores: the allocator says of which chip, and the device plugin cuts the chip when the pod starts."""

import re

import msgspec
import pytest

from ascend.annotations import CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.products import ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.driver.simulated_file import SimulatedServer
from sandbox.cluster import save_server
from tests.e2e.node import WorldNode
from tests.e2e.test_cores import create
from tests.e2e.world import Setup, World

SETUP = Setup(product=ASCEND_910B_8, dynamic_vnpus=True)


async def check_hand_over(world: World, name: str, written: str) -> int:
    """Check that annotations and container have the same part of a chip; return its vdev id."""
    pod = await world.running(name)
    annotations = pod.metadata.annotations
    assert annotations[RESOURCE_CORES] == written
    assert annotations[PREDICATE_TIME] == str(CLAIMED)
    found = re.fullmatch(r"Ascend910-5c\.1cpu\.16g-([0-9]+)-0_[0-9]+", annotations[REAL])
    assert found is not None, annotations[REAL]
    assert len(annotations[KUBELET_IDS].split(",")) == 5
    container = await world.node(pod.spec.node_name).container(pod)
    assert container.env["ASCEND_VISIBLE_DEVICES"] == found[1]
    assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
    assert container.devices == {"davinci_manager", f"davinci{found[1]}"}
    return int(found[1])


async def test_two_pods_share_a_chip_and_others_get_whole_ones(world: World) -> None:
    for node in world.nodes:
        node.add_device_nodes(*(f"vdavinci{vdev_id}" for vdev_id in range(100, 110)))
    await create(world, "one", 5)
    first = await check_hand_over(world, "one", "0-vir05_1c_16g")
    await create(world, "two", 5)
    second = await check_hand_over(world, "two", "0-vir05_1c_16g")
    assert first != second

    await create(world, "whole", 40)
    pod = await world.running("whole")
    assert pod.metadata.annotations[RESOURCE_CORES] == "1,2"
    assert pod.metadata.annotations[REAL] == "Ascend910-1,Ascend910-2"
    container = await world.node(pod.spec.node_name).container(pod)
    assert container.devices == {"davinci_manager", "davinci1", "davinci2"}

    node = world.node(pod.spec.node_name)
    await node.plugin.kill()
    await node.plugin.start()
    await world.all_ready()
    await world.delete("one")
    await create(world, "three", 5)
    assert await check_hand_over(world, "three", "0-vir05_1c_16g") != second


def say(node: WorldNode, cuts: SimulatedCuts) -> None:
    """Let the driver of a node say something else about its vNPUs."""
    server = msgspec.json.decode(node.state_file.read_bytes(), type=SimulatedServer)
    save_server(msgspec.structs.replace(server, cuts=cuts), node.state_file)


@pytest.mark.long
async def test_no_pod_is_sent_to_a_chip_whose_vnpu_is_not_given_back(world: World) -> None:
    for node in world.nodes:
        node.add_device_nodes(*(f"vdavinci{vdev_id}" for vdev_id in range(100, 110)))
    await create(world, "old", 10)
    pod = await world.running("old")
    node, name = world.node(pod.spec.node_name), pod.spec.node_name

    async def is_free() -> bool:
        return bool((await world.report(name)).free & 1)

    async def is_used() -> bool:
        return not await is_free()

    await world.eventually(is_used, "the report has the pod")
    say(node, SimulatedCuts(destroy_error="busy"))
    await world.delete("old")
    # For as long as its report may only be late, the chip comes last.
    for number in range(2):
        await create(world, f"two-{number}", 40)
        two = await world.running(f"two-{number}")
        assert two.spec.node_name != name or "0" not in two.metadata.annotations[RESOURCE_CORES].split(",")
    await world.delete("two-0", "two-1")

    async def others_are_free() -> bool:
        return (await world.report(name)).free == 0xFE

    await world.eventually(others_are_free, "the other chips are reported free")
    here = {"nodeSelector": {"kubernetes.io/hostname": name}}
    await create(world, "rest", 140, **here)
    await world.running("rest")
    await create(world, "late", 20, **here)

    async def waits() -> bool:
        pod = await world.pod("late")
        if pod.status.phase == "Failed":
            await world.delete("late")
            await create(world, "late", 20, **here)
        return not pod.spec.node_name and any(each.type == "PodScheduled" for each in pod.status.conditions)

    await world.eventually(waits, "a pod that needs the chip waits instead of failing there")
    say(node, SimulatedCuts())
    assert (await world.running("late")).metadata.annotations[RESOURCE_CORES] == "0"
    await world.delete("late", "rest")
    await world.eventually(is_free, "the chip is free again")
