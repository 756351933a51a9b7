"""Pods with AI cores: the allocator says of which chip, and the device plugin cuts the chip when the pod starts."""

import re

from ascend.annotations import CLAIMED, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.products import ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
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
