"""The main job: a pod is scheduled, bound with its chips, and gets exactly those chips from the kubelet."""

import asyncio
import json
import time

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import RESOURCE, chip_ids, chip_set
from ascend.kube.objects import Pod
from ascend.products import ASCEND_910A
from tests.e2e.world import World, annotated

REAL = "huawei.com/AscendReal"
LEFT, RIGHT = ASCEND_910A.rings


async def check_hand_over(world: World, name: str, count: int) -> Pod:
    """Check that annotations, kubelet and container have the same chips of the pod, and that they are in one ring."""
    pod = await world.running(name)
    chips = annotated(pod, RESOURCE)
    assert chips.bit_count() == count
    assert count > 4 or chips & LEFT == chips or chips & RIGHT == chips
    assert annotated(pod, REAL) == annotated(pod, KUBELET_IDS) == chips
    assert pod.metadata.annotations[PREDICATE_TIME] == str(CLAIMED)
    node = world.node(pod.spec.node_name)
    assert chip_set((await node.ledger())[pod.key]) == chips
    container = await node.container(pod)
    assert chip_set(map(int, container.env["ASCEND_VISIBLE_DEVICES"].split(","))) == chips
    assert container.env["ASCEND_RUNTIME_OPTIONS"] == ""
    assert container.devices == {"davinci_manager", *(f"davinci{chip_id}" for chip_id in chip_ids(chips))}
    configuration = json.loads((await world.annotations(pod.name))[CONFIGURATION])
    assert [int(device["device_id"]) for device in configuration["devices"]] == list(chip_ids(chips))
    assert configuration["server_id"] == pod.uid
    return pod


async def test_a_node_registers_and_reports(world: World) -> None:
    for node in world.nodes:
        assert await world.allocatable(node.name) == 8
        report = await world.report(node.name)  # fails for a wrong CheckCode
        assert (report.free, report.unhealthy) == (0xFF, 0)
        infos = json.loads((await world.node_object(node.name)).metadata.annotations[BASE_DEVICE_INFOS])
        assert list(infos) == [f"Ascend910-{chip_id}" for chip_id in range(8)]


@pytest.mark.parametrize("count", [1, 2, 4, 8])
async def test_a_container_gets_exactly_the_chips_in_the_annotation(world: World, count: int) -> None:
    await world.create("train", count)
    pod = await check_hand_over(world, "train", count)

    async def reported() -> bool:
        return (await world.report(pod.spec.node_name)).free == 0xFF & ~annotated(pod, RESOURCE)

    await world.eventually(reported, "the node reports the chips as used")


async def test_pods_bound_in_reverse_predicate_time_order_are_not_swapped(world: World) -> None:
    # MindCluster swapped 7 of 17 pairs (docs/spec/measurements.md#two-pods-of-one-size), which tests/conformance
    # reproduces with 17 pairs.
    async def two_pairs(node: str) -> None:
        before: tuple[str, ...] = ()
        for attempt in range(2):
            # These start while the previous pair ends.
            left, right = ((0, 1), (4, 5)) if attempt % 2 else ((2, 3), (6, 7))
            first = await world.create(f"first-{node}-{attempt}", 2, schedulerName="none")
            second = await world.create(f"second-{node}-{attempt}", 2, schedulerName="none")
            now = time.time_ns()
            await world.bind(first, node, *left, predicate_time=now + 1_000_000)
            await world.bind(second, node, *right, predicate_time=now)
            one, two, _ = await asyncio.gather(
                check_hand_over(world, first.name, 2), check_hand_over(world, second.name, 2), world.delete(*before)
            )
            assert (annotated(one, REAL), annotated(two, REAL)) == (chip_set(left), chip_set(right))
            before = first.name, second.name

    await asyncio.gather(*(two_pairs(node.name) for node in world.nodes))


async def test_twelve_pods_created_at_once_share_two_nodes(world: World) -> None:
    sizes = [1, 1, 2, 2, 4, 4, 1, 2, 4, 1, 2, 8]
    names = [f"pod-{number}" for number in range(12)]
    await asyncio.gather(*(world.create(name, size) for name, size in zip(names, sizes, strict=True)))

    async def all_settled() -> list[Pod] | None:
        pods = await world.pods()
        placed = [pod for pod in pods if KUBELET_IDS in pod.metadata.annotations and pod.status.phase == "Running"]
        bound = [pod for pod in pods if pod.spec.node_name]
        if len(placed) != len(bound):
            return None
        free = {node.name: 0xFF for node in world.nodes}
        for pod in placed:
            free[pod.spec.node_name] &= ~annotated(pod, REAL)
        waiting = [sizes[names.index(pod.name)] for pod in pods if not pod.spec.node_name]
        return placed if not any(fits(size, mask) for size in waiting for mask in free.values()) else None

    placed = await world.eventually(all_settled, "no pending pod fits")
    taken: dict[str, int] = {}
    for pod in placed:
        await check_hand_over(world, pod.name, sizes[names.index(pod.name)])
        chips = annotated(pod, REAL)
        assert not taken.get(pod.spec.node_name, 0) & chips, f"{pod.name} shares chips"
        taken[pod.spec.node_name] = taken.get(pod.spec.node_name, 0) | chips
    rest = set(names) - {pod.name for pod in placed}
    assert rest
    for name in rest:
        assert "nodes are available" in await world.pending_because(name)


def fits(size: int, free: int) -> bool:
    """The ring rule, implemented independently: up to four chips in one ring, or the whole server."""
    if size <= 4:
        return max((free & LEFT).bit_count(), (free & RIGHT).bit_count()) >= size
    return free == 0xFF


async def test_a_free_chip_that_fails_is_not_allocated_until_it_recovers(world: World) -> None:
    broken, other = world.nodes
    await world.create("other", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    await world.running("other")
    broken.edit_chip(2, health="Unhealthy", fault_codes=["80E18402"])

    async def reported(unhealthy: int, offered: int) -> bool:
        report = await world.report(broken.name)
        return report.unhealthy == unhealthy and await world.allocatable(broken.name) == offered

    await world.eventually(lambda: reported(0b100, 7), "the failure is reported and reduces the allocatable chips")
    (fault,) = (await world.report(broken.name)).faults
    assert (fault.npu_name, fault.fault_code) == ("Ascend910-2", "80E18402")
    await world.create("four", 4)
    assert annotated(await check_hand_over(world, "four", 4), REAL) == RIGHT
    await world.create("four-more", 4)
    await world.pending_because("four-more")
    broken.edit_chip(2, health="Healthy", fault_codes=[])
    await world.eventually(lambda: reported(0, 8), "the recovery is reported and the chip is allocatable")
    assert annotated(await check_hand_over(world, "four-more", 4), REAL) == LEFT


async def test_a_chip_that_fails_in_use_keeps_its_pod_and_is_not_reallocated(world: World) -> None:
    node, other = world.nodes
    await world.create("other", 8, nodeSelector={"kubernetes.io/hostname": other.name})
    await world.running("other")
    await world.create("user", 1)
    chips = annotated(await world.running("user"), REAL)
    node.edit_chip(chip_ids(chips)[0], health="Unhealthy", fault_codes=["80E18402"])

    async def reported() -> bool:
        return (await world.report(node.name)).unhealthy == chips

    await world.eventually(reported, "the failure is reported")
    assert (await world.pod("user")).status.phase == "Running"

    async def offered() -> bool:
        return await world.allocatable(node.name) == 7

    await world.eventually(offered, "the kubelet knows of the failure")
    assert (await world.pod("user")).status.phase == "Running"
    await world.delete("user")
    for number in range(7):
        await world.create(f"next-{number}", 1)
    allocated = [annotated(await check_hand_over(world, f"next-{number}", 1), REAL) for number in range(7)]
    assert chips not in allocated


async def test_a_forged_annotation_does_not_get_chips_of_another_pod(world: World) -> None:
    await world.create("holder", 4)
    holder = await world.running("holder")
    forged = {RESOURCE: holder.metadata.annotations[RESOURCE], PREDICATE_TIME: "1"}
    await world.create("forged", 4, annotations=forged, nodeName=holder.spec.node_name)
    refused = await world.failed("forged")
    assert refused.status.reason == "UnexpectedAdmissionError"
    assert "held by pod default/holder" in refused.status.message
    assert REAL not in refused.metadata.annotations
    await check_hand_over(world, "holder", 4)
    await world.create("next", 4)
    assert (
        not annotated(await check_hand_over(world, "next", 4), REAL) & annotated(holder, REAL)
        or (await world.pod("next")).spec.node_name != holder.spec.node_name
    )


async def test_a_pod_with_a_node_name_set_by_hand_is_rejected_with_the_reason(world: World) -> None:
    await world.create("by-hand", 2, nodeName=world.nodes[0].name)
    refused = await world.failed("by-hand")
    assert "was not placed by the allocator" in refused.status.message


async def test_the_chips_of_a_deleted_pod_are_allocated_again(world: World) -> None:
    for node in world.nodes:
        await world.create(f"all-{node.name}", 8)
    first, second = [await world.running(f"all-{node.name}") for node in world.nodes]
    assert first.spec.node_name != second.spec.node_name
    await world.create("waits", 8)
    await world.pending_because("waits")
    await world.delete(first.name)
    assert (await check_hand_over(world, "waits", 8)).spec.node_name == first.spec.node_name
