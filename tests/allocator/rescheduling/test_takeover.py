"""A new leader knows the chips of pods deleted by force before it places any pod."""

from pathlib import Path
from typing import Any

from allocator.rescheduling.memory import Deleted, Memory, encode
from ascend.chips import chip_set
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, running

NAME = "ascend-allocator-faults"
SETTINGS: dict[str, Any] = {"reschedule": "on", "lease_namespace": "default", "lease_name": "ascend-allocator"}


def remembered(data: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": "default"},
        "data": data,
    }


async def test_chips_of_pods_deleted_by_force_are_held_before_the_first_call(tmp_path: Path) -> None:
    held = Memory(force_deleted={"u": Deleted("default/gone", "n1", 1.0, list(range(8)))})
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        await server.create(remembered(encode(held)))
        async with running(server, tmp_path, **SETTINGS) as allocator:
            record = allocator.app.cluster.nodes["n1"]
            assert record.holdings["u"].chips == chip_set(range(8))
            assert await allocator.schedule(await allocator.pod("a", 1), ["n1"]) == ""


async def test_pods_are_placed_where_the_right_to_read_what_is_remembered_is_missing(tmp_path: Path) -> None:
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        server.fail_next("GET", f"/configmaps/{NAME}$", 403, times=1000)
        async with running(server, tmp_path, **SETTINGS) as allocator:
            assert await allocator.schedule(await allocator.pod("a", 1), ["n1"]) == "n1"
