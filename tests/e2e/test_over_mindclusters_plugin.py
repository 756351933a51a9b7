"""This project's allocator above MindCluster's device plugin, which swaps the chips of pods and reports late.

The plugin is a stand-in with the defects and the pace of the real one (``tests.mindcluster.device_plugin``).
"""

import random
from collections import Counter

from ascend.annotations import CONFIGURATION, KUBELET_IDS, REAL
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set
from ascend.kube.objects import PODS, Pod
from tests.e2e.world import Setup, World, annotated

SETUP = Setup(mindclusters_plugin=True)


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
    assert CONFIGURATION in pod.metadata.annotations
    assert await has(world, pod) == annotated(pod, REAL) == 0xFF
    # The plugin answers such a pod without a look at it, and writes nothing on it.
    assert KUBELET_IDS not in pod.metadata.annotations


async def test_no_chip_is_held_twice_in_a_full_cluster(world: World) -> None:
    chance = random.Random(7)
    written, differ = 0, 0
    alive = []
    for number in range(16):
        await world.create(f"p{number}", 1, terminationGracePeriodSeconds=1)
        alive.append(f"p{number}")
    for number in range(16, 22):
        for name in alive:
            await runs(world, name)
        pods = [await world.pod(name) for name in alive]
        held = Counter[tuple[str, int]]()
        for pod in pods:
            held.update((pod.spec.node_name, chip) for chip in chip_ids(await has(world, pod)))
            written += 1
            differ += annotated(pod, RESOURCE) != await has(world, pod)
        assert not [each for each, times in held.items() if times > 1], held
        # Two that end, and two that wait for their chips.
        ending = chance.sample(alive, 2)
        for each in ending:
            await world.client.delete(PODS, each, "default")
            alive.remove(each)
        for each in (f"p{number}", f"q{number}"):
            await world.create(each, 1, terminationGracePeriodSeconds=1)
            alive.append(each)
