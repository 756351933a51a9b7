"""Pods on vNPUs: the scheduler counts them, the allocator says which one, and the device plugin gives that."""

import json
from functools import partial

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from ascend.vnpus import Vnpu, parse_vnpu
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from tests.bench.fake_cluster import fake_node
from tests.e2e.node import WorldNode
from tests.e2e.programs import is_ready
from tests.e2e.world import World

SIZE = f"{RESOURCE}-2c"
VNPUS = [Vnpu("2c", chip, 100 + number) for number, chip in enumerate((0, 0, 1, 1))]


async def create(world: World, name: str) -> Pod:
    (container,) = world.pod_manifest(name, 1)["spec"]["containers"]
    container["resources"] = {"limits": {SIZE: "1"}, "requests": {SIZE: "1"}}
    return await world.create(name, 1, containers=[container])


async def bound(world: World, name: str) -> Pod:
    async def check() -> Pod | None:
        pod = await world.pod(name)
        return pod if pod.spec.node_name else None

    return await world.eventually(check, f"pod {name} is bound")


async def test_pods_get_different_vnpus_chip_after_chip(world: World) -> None:
    node = fake_node("cut")
    infos = json.loads(node["metadata"]["annotations"][BASE_DEVICE_INFOS])
    whole = {f"Ascend910-{chip}": infos[f"Ascend910-{chip}"] for chip in range(2, 8)}
    named = {**whole, **{each.name: {} for each in VNPUS}}
    node["metadata"]["annotations"][BASE_DEVICE_INFOS] = json.dumps(named)
    for quantities in (node["status"]["capacity"], node["status"]["allocatable"]):
        quantities |= {RESOURCE: "6", SIZE: "4"}
    await world.add_node(node)
    found = []
    for number in range(4):
        await create(world, f"part-{number}")
        pod = await bound(world, f"part-{number}")
        assert pod.spec.node_name == "cut"
        annotations = pod.metadata.annotations
        assert PREDICATE_TIME in annotations
        assert RESOURCE not in annotations
        found.append(annotations[SIZE])
    assert found == [each.name for each in VNPUS]
    await create(world, "late")
    assert f"Insufficient {SIZE}" in await world.pending_because("late")


async def cut_chip(world: World, node: WorldNode, *ids: int) -> None:
    """Cut chip 0 of a node into vNPUs while its device plugin is away, and wait until they are allocatable."""
    node.add_device_nodes(*(f"vdavinci{number}" for number in ids))
    await node.plugin.stop()
    node.edit_chip(0, vnpus=[SimulatedVirtualNpu(number, "vir02") for number in ids])
    await node.plugin.start()

    async def offered() -> bool:
        allocatable = (await world.node_object(node.name)).status.allocatable
        return allocatable.get(SIZE) == str(len(ids)) and allocatable.get(RESOURCE) == "7"

    await world.eventually(offered, "the vNPUs are allocatable")


async def check_hand_over(world: World, name: str) -> Vnpu:
    """Check that annotations, kubelet and container have the same vNPU of a pod; return it."""
    pod = await world.running(name)
    annotations = pod.metadata.annotations
    vnpu = parse_vnpu(annotations[SIZE])
    assert annotations[REAL] == annotations[KUBELET_IDS] == vnpu.name
    assert annotations[PREDICATE_TIME] == str(CLAIMED)
    (device,) = json.loads((await world.annotations(name))[CONFIGURATION])["devices"]
    assert device == {"device_id": str(vnpu.chip), "device_ip": "127.0.0.1"}
    container = await world.node(pod.spec.node_name).container(pod)
    assert container.env["ASCEND_VISIBLE_DEVICES"] == str(vnpu.vdev_id)
    assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
    assert container.devices == {"davinci_manager", f"davinci{vnpu.vdev_id}"}
    return vnpu


async def test_the_parts_of_a_chip_are_in_the_containers_of_two_pods(world: World) -> None:
    node = world.nodes[0]
    await cut_chip(world, node, 100, 101)
    await create(world, "one")
    await create(world, "two")
    found = {await check_hand_over(world, "one"), await check_hand_over(world, "two")}
    assert found == {Vnpu("2c", 0, 100), Vnpu("2c", 0, 101)}
    assert (await world.report(node.name)).free == 0xFE  # the chip is cut, so nobody gets it as a whole

    await node.plugin.kill()
    await node.plugin.start()
    await world.eventually(partial(is_ready, node.plugin_url), "the plugin is ready")
    await world.delete("one")
    await create(world, "three")
    assert await check_hand_over(world, "three") in found
    assert await check_hand_over(world, "two") != await check_hand_over(world, "three")
