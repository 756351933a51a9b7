"""Breaks of docs/failures.md that happen while the allocator reschedules jobs."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from ascend.deviceinfo import config_map_name
from ascend.kube.objects import CONFIG_MAPS, PODS
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


BREAKS: Final[Mapping[str, Break]] = {
    "what a former leader has stored": what_is_stored_of_faults_can_not_be_read,
}
