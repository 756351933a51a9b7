"""Pods on vNPUs of a node without a kubelet: the scheduler counts them, the allocator says which one."""

import json

from ascend.annotations import BASE_DEVICE_INFOS, PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from ascend.vnpus import Vnpu
from tests.bench.fake_cluster import fake_node
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
