"""Pods are nominated ahead of their scheduler, which then filters one node."""

import json

from ascend.annotations import NOMINATED
from ascend.kube.objects import NODES, PODS, Pod
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import Setup, World

SETUP = Setup(nominate="pending", allocators=2)


async def nominated(world: World, name: str) -> str:
    """Wait until a pod is nominated; return the node."""

    async def check() -> str:
        return (await world.pod(name)).status.nominated_node_name

    return await world.eventually(check, f"pod {name} is nominated")


async def bound(world: World, name: str) -> Pod:
    """Wait until a pod is bound; return it."""

    async def check() -> Pod | None:
        pod = await world.pod(name)
        return pod if pod.spec.node_name else None

    return await world.eventually(check, f"pod {name} is bound")


async def hold_scheduler(world: World) -> None:
    """Let the scheduler wait for the answer to its call for the pod ``taken``."""
    world.service.hold()
    await world.create("taken", 1)

    async def called() -> bool:
        return any(b'"taken"' in chunk for chunk in world.service.requests)

    await world.eventually(called, "the scheduler calls the allocator")


def offered(world: World, name: str) -> list[set[str]]:
    """The nodes of each filter call for a pod."""
    bodies = [part for chunk in world.service.requests for part in chunk.split(b"\r\n\r\n") if part.startswith(b"{")]
    calls = [json.loads(body) for body in bodies if b'"NodeNames"' in body]
    return [set(call["NodeNames"]) for call in calls if call["Pod"]["metadata"]["name"] == name]


async def test_a_nominated_pod_is_filtered_on_its_node_alone(world: World) -> None:
    await world.add_fake_nodes("f1", "f2", "f3")
    await hold_scheduler(world)
    await world.create("train", 4)
    node = await nominated(world, "train")
    assert (await world.pod("train")).metadata.annotations[NOMINATED] == node
    world.service.release()
    assert (await bound(world, "train")).spec.node_name == node
    assert offered(world, "train") == [{node}]
    assert len(offered(world, "taken")[0]) > 1


async def test_a_nominated_pod_gets_its_chips_from_the_kubelet(world: World) -> None:
    await hold_scheduler(world)
    await world.create("train", 4)
    node = await nominated(world, "train")
    world.service.release()
    assert (await check_hand_over(world, "train", 4)).spec.node_name == node


async def test_a_node_turned_down_for_another_resource_is_replaced(world: World) -> None:
    # The allocator does not know what a pod requests besides chips: it nominates the first of equal nodes.
    await world.add_fake_nodes("f1", "f2", "z1", "z2")
    slots = {"example.com/slots": "1"}
    for name in ("z1", "z2"):
        await world.client.patch(
            NODES, name, {"status": {"capacity": slots, "allocatable": slots}}, subresource="status"
        )
    await hold_scheduler(world)
    manifest = world.pod_manifest("train", 8)
    manifest["spec"]["containers"][0]["resources"]["limits"] |= slots
    await world.client.create(PODS, manifest, "default")
    node = await nominated(world, "train")
    assert node not in {"z1", "z2"}
    world.service.release()
    pod = await bound(world, "train")
    assert pod.spec.node_name in {"z1", "z2"}
    assert offered(world, "train") == [{"z1", "z2"}]

    async def cleared() -> bool:
        return not (await world.pod("train")).status.nominated_node_name

    await world.eventually(cleared, "the nomination of the other node is cleared")


async def test_the_next_leader_keeps_a_nomination(world: World) -> None:
    await world.add_fake_nodes("f1", "f2")
    await hold_scheduler(world)
    await world.create("train", 8)
    node = await nominated(world, "train")
    await world.stop_leader()
    await world.eventually(world.allocator_ready, "the other allocator leads")
    # It is the first of several equal nodes: another pod would get the same one.
    await world.create("other", 8)
    world.service.release()
    pods = {name: await bound(world, name) for name in ("train", "other")}
    assert pods["train"].spec.node_name == node != pods["other"].spec.node_name


async def test_a_pod_counts_on_its_nominated_node_for_equal_priorities(world: World) -> None:
    await hold_scheduler(world)
    for name in ("first", "second"):
        await world.create(name, 8, nodeSelector={"kubernetes.io/hostname": world.nodes[1].name})
    assert await nominated(world, "first") == world.nodes[1].name
    world.service.release()
    await bound(world, "first")
    await world.pending_because("second")
    assert offered(world, "second") == []
