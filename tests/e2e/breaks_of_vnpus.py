"""Breaks of docs/failures.md that happen to pods with static vNPUs, and to the chips that were cut into them."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from ascend.annotations import PREDICATE_TIME, REAL
from ascend.kube.objects import PODS
from ascend.vnpus import Vnpu, parse_vnpu
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from tests.e2e.lab import Break, Lab
from tests.e2e.test_vnpus import SIZE, create, cut_chip

IDS: Final = (100, 101)


async def run_part(lab: Lab) -> Vnpu:
    """Cut chip 0 into two vNPUs, and run a pod with one of them; returns that one."""
    await cut_chip(lab.world, lab.node, *IDS)
    await create(lab.world, "part")
    return parse_vnpu((await lab.world.running("part")).metadata.annotations[REAL])


@asynccontextmanager
async def a_chip_with_vnpus_fails(lab: Lab) -> AsyncIterator[None]:
    await run_part(lab)
    lab.node.edit_chip(0, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.world.delete("part")
    await lab.heal()


@asynccontextmanager
async def a_cut_chip_is_lost_at_the_start(lab: Lab) -> AsyncIterator[None]:
    await cut_chip(lab.world, lab.node, *IDS)
    await lab.node.stop_plugin()
    lab.node.edit_chip(0, present=False)
    await lab.node.plugin.start()
    yield
    await lab.heal()


def recut(template: str) -> Break:
    """The vNPU of a running pod is removed, and its id may be given to one of another size."""

    @asynccontextmanager
    async def changed(lab: Lab) -> AsyncIterator[None]:
        lost = await run_part(lab)
        new = {other: "vir02" for other in IDS if other != lost.vdev_id} | (
            {lost.vdev_id: template} if template else {}
        )
        lab.node.edit_chip(0, vnpus=[SimulatedVirtualNpu(*each) for each in new.items()])
        yield
        await lab.world.delete("part")
        await lab.heal()

    return changed


@asynccontextmanager
async def a_pod_requests_two(lab: Lab) -> AsyncIterator[None]:
    await cut_chip(lab.world, lab.node, *IDS)
    (container,) = lab.world.pod_manifest("two", 1)["spec"]["containers"]
    container["resources"] = {"limits": {SIZE: "2"}, "requests": {SIZE: "2"}}
    pod = await lab.world.create("two", 1, containers=[container], schedulerName="none")
    await lab.world.client.bind(namespace="default", name="two", uid=pod.uid, node="n1", annotations={})
    await lab.world.failed("two")
    yield
    await lab.world.delete("two")
    await lab.heal()


@asynccontextmanager
async def the_kubelet_counts_the_vnpu_of_an_ended_pod(lab: Lab) -> AsyncIterator[None]:
    vnpu = await run_part(lab)
    kubelet = lab.cluster.node("n1")
    await asyncio.to_thread(kubelet.kubelet.stop)
    await lab.world.client.delete(PODS, "part", "default", grace_s=0)
    (container,) = lab.world.pod_manifest("late", 1)["spec"]["containers"]
    container["resources"] = {"limits": {SIZE: "1"}, "requests": {SIZE: "1"}}
    pod = await lab.world.create("late", 1, containers=[container], schedulerName="none")
    written = {SIZE: vnpu.name, PREDICATE_TIME: "1"}
    await lab.world.client.bind(namespace="default", name="late", uid=pod.uid, node="n1", annotations=written)
    await asyncio.to_thread(kubelet.start_kubelet)
    await lab.world.failed("late")
    yield
    await lab.world.delete("late")
    await lab.heal()


BREAKS: Final[Mapping[str, Break]] = {
    "a chip with vNPUs fails": a_chip_with_vnpus_fails,
    "a chip with vNPUs is off the bus": a_cut_chip_is_lost_at_the_start,
    "a vNPU is removed while a pod has it": recut(""),
    "a chip is cut anew while a pod runs": recut("vir04"),
    "a pod requests several vNPUs": a_pod_requests_two,
    "the kubelet has chosen another vNPU": the_kubelet_counts_the_vnpu_of_an_ended_pod,
}
