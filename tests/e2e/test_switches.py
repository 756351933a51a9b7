"""Jobs with switch affinity: one starts as a whole though the leader dies, and the next one knows its switches."""

import json

import pytest

from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.deviceinfo import NAMESPACE
from ascend.kube.objects import CONFIG_MAPS, Pod
from tests.bench.fake_cluster import fake_node
from tests.e2e.world import Setup, World

# With 2 shared switches, what is assumed of pods without annotations leads to the same servers.
SETUP = Setup(allocators=2, nslb_version="2.0", shared_tor_num=1)
LABELS = {"accelerator-type": "module-910b-8"}


async def add_switches(world: World, *servers: int) -> None:
    """Create the table of switches, and so many servers below each."""
    listed = [
        {
            "tor_id": switch,
            "tor_ip": f"192.168.0.{switch}",
            "server": [
                {"server_ip": f"10.9.{switch}.{slot}", "npu_count": 8, "slice_id": slot} for slot in range(number)
            ],
        }
        for switch, number in enumerate(servers)
    ]
    info = json.dumps({"version": "1.0", "tor_count": max(servers), "server_list": listed})
    metadata = {"name": "basic-tor-node-cm", "namespace": NAMESPACE}
    await world.client.create(CONFIG_MAPS, {"metadata": metadata, "data": {"tor_info": info}}, NAMESPACE)
    for switch, number in enumerate(servers):
        for slot in range(number):
            node = fake_node(f"t{switch}-{slot}")
            node["metadata"]["labels"].update(LABELS)
            node["status"]["addresses"] = [{"type": "InternalIP", "address": f"10.9.{switch}.{slot}"}]
            await world.add_node(node)


async def create(world: World, name: str, pods: int) -> None:
    for rank in range(pods):
        marks = {"scheduling.k8s.io/group-name": name, MIN_AVAILABLE: str(pods), RANK: str(rank)}
        labels = {"tor-affinity": "large-model-schema"}
        await world.create(f"{name}-{rank}", 8, annotations=marks, labels=labels, nodeSelector=LABELS)


async def bound(world: World, name: str, pods: int) -> list[Pod]:
    """Wait until a job is bound; its pods by rank."""

    async def check() -> list[Pod] | None:
        found = [pod for pod in await world.pods() if pod.name.startswith(f"{name}-") and pod.spec.node_name]
        return found if len(found) == pods else None

    found = await world.eventually(check, f"job {name} is bound")
    return sorted(found, key=lambda pod: int(pod.metadata.annotations[RANK]))


@pytest.mark.long
async def test_the_next_leader_completes_a_job_that_spans_switches(world: World) -> None:
    await add_switches(world, 3, 3, 3)
    async with world.api.gate("POST", "/pods/first-2/binding", after=True) as made:
        await create(world, "first", 4)
        await made.reached.wait()  # the Binding is stored, and its response is lost
        await world.kill_leader()
    await world.eventually(world.allocator_ready, "another allocator leads")
    first = await bound(world, "first", 4)
    assert [pod.spec.node_name for pod in first] == ["t0-0", "t0-1", "t0-2", "t1-0"]
    assert [pod.metadata.annotations["isSharedTor"] for pod in first] == ["2", "2", "2", "1"]
    assert first[3].metadata.annotations["sharedTorIp"] == "192.168.0.1"
    await create(world, "second", 5)
    second = await bound(world, "second", 5)  # the free switch as a whole, and the rest of the shared one
    assert [pod.spec.node_name for pod in second] == ["t2-0", "t2-1", "t2-2", "t1-1", "t1-2"]
    await world.client.delete(CONFIG_MAPS, "basic-tor-node-cm", NAMESPACE)
