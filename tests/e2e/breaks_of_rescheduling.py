"""Breaks of docs/failures.md that happen while the allocator reschedules jobs."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from allocator.rescheduling.fault_watch import ZONE_LABEL
from ascend.annotations import MIN_AVAILABLE, RANK, Grant
from ascend.deviceinfo import NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.faults import FaultTime, chip_fault
from ascend.kube.objects import CONFIG_MAPS, NODES, PODS
from tests.e2e.lab import Break, Lab

MEMORY: Final = "ascend-allocator-faults"
REPORT: Final = config_map_name("n1")
_OWNER: Final = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "job", "uid": "of-the-job", "controller": True}


async def _run(lab: Lab, mode: str, **spec: Any) -> None:
    """Run a pod of a job that asks for rescheduling; the allocator has seen the pod without its owner."""
    await lab.run("works", 8, **spec)
    marks = {"metadata": {"ownerReferences": [_OWNER], "labels": {"fault-scheduling": mode}}}
    await lab.mark(PODS, "works", marks, "default")


@asynccontextmanager
async def what_is_stored_of_faults_can_not_be_read(lab: Lab) -> AsyncIterator[None]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": MEMORY, "namespace": "kube-system"}}
    await lab.world.client.create(CONFIG_MAPS, {**body, "data": {"memory": "{"}}, "kube-system")
    await _run(lab, "force")
    async with lab.allocator_with("--reschedule", "on"):
        lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
        yield
    await lab.world.client.delete(CONFIG_MAPS, MEMORY, "kube-system")
    await lab.heal()


@asynccontextmanager
async def a_job_is_rescheduled(lab: Lab) -> AsyncIterator[None]:
    await _run(lab, "grace", terminationGracePeriodSeconds=30)  # which its process makes full use of
    async with lab.allocator_with("--reschedule", "on"):
        lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
        yield
        await lab.world.eventually(partial(lab.world.gone, "works"), "the pod was rescheduled")
    await lab.heal()


@asynccontextmanager
async def all_nodes_have_faults(lab: Lab) -> AsyncIterator[None]:
    await _run(lab, "force")
    other = lab.world.nodes[1]
    other.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])

    async def is_reported() -> bool:
        return bool((await lab.world.report(other.name)).unhealthy)

    await lab.world.eventually(is_reported, "the other node reports the fault")
    async with lab.allocator_with("--reschedule", "on"):
        lab.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
        yield
        assert not (await lab.world.pod("works")).is_terminating
    await lab.world.delete("works")
    await lab.heal()
    await other.restore(lab.world.setup.product)


@asynccontextmanager
async def the_watch_shows_a_fault_that_has_ended(lab: Lab) -> AsyncIterator[None]:
    await _run(lab, "force")
    fault = chip_fault(chip_id=5, level="SeparateNPU", codes={"80E18402": FaultTime(0, "SeparateNPU")})
    now_s = int(time.time())
    async with lab.allocator_with("--reschedule", "on"):
        await lab.node.plugin.kill()  # the test writes its report
        faulty = DeviceReport(0, 1 << 5, 0, now_s + 1, faults=(fault,))
        async with lab.world.api.gate("GET", f"fieldSelector=metadata.name%3D{REPORT}$") as gate:
            await lab.mark(CONFIG_MAPS, REPORT, {"data": encode_report(faulty)}, NAMESPACE)
            await gate.reached.wait()
            async with lab.world.api.silence(r"/configmaps\?.*watch=true"):
                healthy = DeviceReport(0, 0, 0, now_s + 2)
                await lab.mark(CONFIG_MAPS, REPORT, {"data": encode_report(healthy)}, NAMESPACE)
                gate.opened.set()
                yield
        assert not (await lab.world.pod("works")).is_terminating
    await lab.world.delete("works")
    await lab.world.client.delete(CONFIG_MAPS, REPORT, NAMESPACE)
    await lab.node.plugin.start()


@asynccontextmanager
async def a_zone_is_cut_off(lab: Lab) -> AsyncIterator[None]:
    world = lab.world
    await world.add_fake_nodes("far-1", "far-2", labels={ZONE_LABEL: "far"})
    await world.add_fake_nodes("near-1", "near-2")
    made = world.pod_manifest("cut-off", 8, nodeName="far-1")
    made["metadata"] |= {
        "labels": {"fault-scheduling": "force"},
        "ownerReferences": [_OWNER],
        "annotations": {**Grant(tuple(range(8)), 1).annotations(), RANK: "0", MIN_AVAILABLE: "1"},
    }
    await world.client.create(PODS, made, "default")
    running = {"status": {"phase": "Running"}}
    await world.client.patch(PODS, "cut-off", running, namespace="default", subresource="status")
    async with lab.allocator_with("--reschedule", "on", "--reschedule-not-ready-s", "2"):
        for name in ("far-1", "far-2"):
            lost = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
            await world.client.patch(NODES, name, lost, subresource="status")
        yield
        assert not (await world.pod("cut-off")).is_terminating
    await world.clear()


BREAKS: Final[Mapping[str, Break]] = {
    "what a former leader has stored": what_is_stored_of_faults_can_not_be_read,
    "a chip in use fails, and its job": a_job_is_rescheduled,
    "many nodes report faults": all_nodes_have_faults,
    "the allocator's view is old": the_watch_shows_a_fault_that_has_ended,
    "the network of a zone is cut off": a_zone_is_cut_off,
}
