"""Pods with AI cores of a node without a kubelet: the scheduler counts them, the allocator says of which chip."""

from typing import Any

from ascend.annotations import PREDICATE_TIME
from ascend.chips import RESOURCE
from ascend.kube.objects import Pod
from ascend.templates import RESOURCE_CORES
from tests.bench.fake_cluster import fake_node
from tests.e2e.test_vnpus import bound
from tests.e2e.world import World


async def create(world: World, name: str, cores: int, **spec: Any) -> Pod:
    (container,) = world.pod_manifest(name, 1)["spec"]["containers"]
    quantities = {RESOURCE_CORES: str(cores)}
    container["resources"] = {"limits": quantities, "requests": quantities}
    return await world.create(name, 1, containers=[container], **spec)


async def test_pods_get_parts_of_chips_and_whole_ones(world: World) -> None:
    node = fake_node("cores")
    node["metadata"]["labels"] |= {
        "accelerator-type": "module-910b-8", "servertype": "Ascend910B-20", "mind-cluster/npu-chip-memory": "64G"
    }  # fmt: skip
    for quantities in (node["status"]["capacity"], node["status"]["allocatable"]):
        quantities |= {RESOURCE: "0", RESOURCE_CORES: "160"}
    await world.add_node(node)
    found = []
    for number, cores in enumerate((5, 10, 5, 40, 5)):
        await create(world, f"part-{number}", cores)
        pod = await bound(world, f"part-{number}")
        assert pod.spec.node_name == "cores"
        assert PREDICATE_TIME in pod.metadata.annotations
        found.append(pod.metadata.annotations[RESOURCE_CORES])
    assert found == ["0-vir05_1c_16g", "0-vir10_3c_32g", "0-vir05_1c_16g", "1,2", "3-vir05_1c_16g"]
    await create(world, "late", 100)
    assert f"Insufficient {RESOURCE_CORES}" in await world.pending_because("late")
