"""Breaks of docs/failures.md that happen to pods with AI cores, whose chips are cut when they start."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from ascend.annotations import REAL
from ascend.kube.objects import PODS
from ascend.templates import RESOURCE_CORES
from device_plugin.driver.simulated_cuts import SimulatedCuts
from tests.e2e.lab import Break, Lab
from tests.e2e.test_cores import create

_ON_N1: Final = {"nodeSelector": {"kubernetes.io/hostname": "n1"}}


async def _run_part(lab: Lab) -> int:
    """Run a pod with a part of chip 0; returns the id of its vNPU."""
    lab.node.add_device_nodes(*(f"vdavinci{vdev_id}" for vdev_id in range(100, 110)))
    await create(lab.world, "part", 5, **_ON_N1)
    annotations = (await lab.world.running("part")).metadata.annotations
    assert annotations[RESOURCE_CORES] == "0-vir05_1c_16g"
    return int(annotations[REAL].split("-")[2])


@asynccontextmanager
async def the_driver_refuses_to_create(lab: Lab) -> AsyncIterator[None]:
    lab.edit(cuts=SimulatedCuts(error="dcmi_create_vdevice: -8020"))
    await create(lab.world, "fails", 5, **_ON_N1)
    await lab.world.failed("fails")
    yield
    await lab.world.delete("fails")
    await lab.heal()


@asynccontextmanager
async def a_chip_with_parts_fails(lab: Lab) -> AsyncIterator[None]:
    await _run_part(lab)
    lab.node.edit_chip(0, health="Unhealthy", fault_codes=["80E18402"])
    yield
    await lab.world.delete("part")
    await lab.heal()


@asynccontextmanager
async def a_container_keeps_the_vnpu_of_an_ended_pod(lab: Lab) -> AsyncIterator[None]:
    vdev_id = await _run_part(lab)
    lab.edit(cuts=SimulatedCuts(in_containers=(vdev_id,)))
    await lab.world.delete("part")
    yield
    await lab.heal()


@asynccontextmanager
async def somebody_changes_what_the_allocator_wrote(lab: Lab) -> AsyncIterator[None]:
    await _run_part(lab)
    await lab.node.stop_plugin()
    other = {"metadata": {"annotations": {RESOURCE_CORES: "1-vir05_1c_16g"}}}
    await lab.mark(PODS, "part", other, "default")
    await lab.node.plugin.start()
    yield
    await lab.world.delete("part")


@asynccontextmanager
async def the_vnpu_of_a_pod_is_destroyed(lab: Lab) -> AsyncIterator[None]:
    await _run_part(lab)
    cuts = lab.node.state_file.with_name(f"{lab.node.state_file.stem}.cuts.json")
    cuts.write_text(json.dumps([]))
    yield
    await lab.world.delete("part")


BREAKS: Final[Mapping[str, Break]] = {
    "with `dynamic_vnpus`, the driver refuses": the_driver_refuses_to_create,
    "with `dynamic_vnpus`, a chip fails": a_chip_with_parts_fails,
    "a vNPU can't be given back": a_container_keeps_the_vnpu_of_an_ended_pod,
    "with `dynamic_vnpus`, a pod claims": somebody_changes_what_the_allocator_wrote,
    "a vNPU of a running pod is gone": the_vnpu_of_a_pod_is_destroyed,
}
