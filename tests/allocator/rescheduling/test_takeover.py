"""A new leader knows the chips of pods deleted by force before it places any pod."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from allocator.rescheduling.actions import Actions
from allocator.rescheduling.memory import Deleted, Memory, Recovery
from allocator.state.previous_nodes import RankSpot
from ascend.chips import chip_set
from ascend.kube.client import KubeClient
from sandbox.apiserver import ApiServer
from tests.allocator.harness import node_manifest, running, write_kubeconfig
from tests.allocator.rescheduling.scene import encode

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


async def test_a_large_job_and_thousands_of_forced_deletions_are_known_to_the_next_leader(tmp_path: Path) -> None:
    names = [f"node-pool-a-{number:05}" for number in range(5_000)]
    held = {str(uuid4()): Deleted(f"team/worker-{name}", name, 1.0, list(range(8)), at_once=True) for name in names}
    spots = {rank: RankSpot(name, rank // 8, str(uuid4())) for rank, name in enumerate(names[:3_000])}
    recovery = Recovery(["u"], 1.0, chosen=list(held)[:3_000], spots=spots, faulty_nodes=names[:3_000])
    memory, told = Memory({"StatefulSet default/big": recovery}, held), list[int]()
    async with ApiServer() as server:
        await server.create(node_manifest("n1"))
        async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server))) as client:
            actions = Actions(client, "default", NAME, evicts=False, shortened=told.append)
            await actions.save(memory)
            assert await actions.load(2.0) == memory
            recovery.spots = {rank: RankSpot(str(uuid4()), 0, str(uuid4())) for rank in range(30_000)}
            await actions.save(memory)
            kept = await actions.load(2.0)
        assert (kept.force_deleted, kept.jobs["StatefulSet default/big"].spots, told) == (held, {}, [0, 1])
        async with running(server, tmp_path, **SETTINGS) as allocator:
            assert {uid for each in allocator.app.cluster.nodes.values() for uid in each.holdings} == set(held)
