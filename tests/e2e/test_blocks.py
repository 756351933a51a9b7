"""Jobs with blocks: the leader dies while one starts and another waits; and a large one on a cluster of 192 nodes."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from allocator.app import AllocatorApp
from allocator.settings import Settings
from ascend.annotations import BLOCK, BLOCK_SUPER_POD, MIN_AVAILABLE, RANK
from ascend.daemon.settings import fixed_settings
from ascend.kube.objects import NODES, PODS, Pod
from sandbox.cluster import SandboxCluster, pod_manifest
from tests.allocator.harness import until
from tests.e2e.world import Setup, World
from tests.workloads.test_super_pods import CHIPS, server

SETUP = Setup(allocators=2)
SELECTOR = {"accelerator-type": "module-a3-16-super-pod"}


def marks(name: str, pods: int, block: int, rank: int) -> dict[str, str]:
    """The annotations of a pod of a job with blocks of so many servers."""
    return {
        "scheduling.k8s.io/group-name": name,
        MIN_AVAILABLE: str(pods),
        RANK: str(rank),
        "sp-block": str(block * CHIPS),
    }


def check_blocks(pods: Iterable[Pod], block: int) -> None:
    """Check that consecutive ranks form blocks, each in one SuperPod, and that each pod has a server of its own."""
    homes: dict[int, set[str]] = {}
    for pod in pods:
        written, super_pod = pod.metadata.annotations, pod.spec.node_name.split("-")[1]
        assert (written[BLOCK], written[BLOCK_SUPER_POD]) == (str(int(written[RANK]) // block), super_pod)
        homes.setdefault(int(written[RANK]) // block, set()).add(super_pod)
    assert all(len(home) == 1 for home in homes.values()), homes
    assert max(Counter(pod.spec.node_name for pod in pods).values()) == 1


@pytest.mark.long
async def test_one_of_two_jobs_is_completed_after_the_leader_dies_and_the_other_waits(world: World) -> None:
    for super_pod in range(2):
        for index in range(3):
            await world.add_node(server(super_pod, index))

    async def create(name: str) -> None:
        for rank in range(4):
            annotations = marks(name, 4, 2, rank)
            await world.create(f"{name}-{rank}", CHIPS, annotations=annotations, nodeSelector=SELECTOR)

    async with world.api.gate("POST", "/pods/one-2/binding", after=True) as made:
        await create("one")
        await made.reached.wait()  # the Binding is stored, and its response is lost
        await create("two")
        await world.kill_leader()
    await world.eventually(world.allocator_ready, "another allocator leads")
    before = {pod.name: pod.spec.node_name for pod in await world.pods() if pod.spec.node_name}
    assert "one-2" in before

    async def bound() -> list[Pod] | None:
        pods = [pod for pod in await world.pods() if pod.spec.node_name]
        return pods if len(pods) >= 4 else None

    after = await world.eventually(bound, "one job is bound")
    assert {pod.name for pod in after} == {f"one-{rank}" for rank in range(4)}
    check_blocks(after, 2)
    assert before.items() <= {pod.name: pod.spec.node_name for pod in after}.items()

    async def said() -> bool:  # of whichever pod is scheduled first again
        conditions = [each.message for pod in await world.pods() for each in pod.status.conditions]
        return any("2 blocks of 2 servers must be placed at once" in message for message in conditions)

    await world.eventually(said, "the other job is told why it waits")
    assert len([pod for pod in await world.pods() if pod.spec.node_name]) == 4


async def test_a_job_of_64_pods_in_2_blocks_is_placed_on_4_super_pods_of_48_servers() -> None:
    """One SuperPod has room for a block beside its reserve, one only with it, and one has too little."""
    with TemporaryDirectory(prefix="aa-", ignore_cleanup_errors=True) as folder:
        async with SandboxCluster(Path(folder), ()) as cluster:
            for super_pod in range(4):
                for index in range(48):
                    await cluster.client.create(NODES, server(super_pod, index))
            for super_pod, used in ((0, 20), (1, 15), (3, 13)):
                for index in range(used):
                    spec = {"nodeName": f"a3-{super_pod}-{index}"}
                    manifest = pod_manifest(f"on-{super_pod}-{index}", CHIPS, **spec)
                    manifest["metadata"]["annotations"] = {
                        "huawei.com/Ascend910": ",".join(f"Ascend910-{chip}" for chip in range(CHIPS)),
                    }
                    await cluster.client.create(PODS, manifest, "default")
            addresses = {"extender_address": "127.0.0.1:0", "grpc_address": "127.0.0.1:0"}
            kubeconfig = str(cluster.write_kubeconfig("allocator"))
            settings = fixed_settings(Settings, None, {"kubeconfig": kubeconfig, **addresses})
            async with AllocatorApp(settings) as app:
                await app.wait_until_synced()
                await cluster.start_scheduler(f"http://{app.extender_address}/scheduler")
                for rank in range(64):
                    manifest = pod_manifest(f"train-{rank}", CHIPS, nodeSelector=SELECTOR)
                    manifest["metadata"]["annotations"] = marks("train", 64, 32, rank)
                    await cluster.client.create(PODS, manifest, "default")
                seen = app.cluster.pods
                await until(lambda: len([pod for pod in seen.values() if pod.spec.node_name]) == 48 + 64, timeout_s=120)
            pods = [
                pod
                for pod in await cluster.client.list_objects(PODS, "default")
                if pod.spec.node_name and pod.name.startswith("train-")
            ]
    assert len(pods) == 64
    check_blocks(pods, 32)
    # SuperPod 0 has 28 free, 1 has 33, 2 has 48, 3 has 35: beside reserves of 2 only 2 and 3 have room for a block.
    assert Counter(pod.metadata.annotations[BLOCK_SUPER_POD] for pod in pods) == {"3": 32, "2": 32}
