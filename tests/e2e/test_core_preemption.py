"""Preemption for AI cores with the real kube-scheduler, which counts them for every pod that is nominated."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Final

import pytest
import pytest_asyncio

from ascend.errors import Conflict
from ascend.kube.objects import PODS
from ascend.products import ASCEND_910B_8
from ascend.templates import RESOURCE_CORES
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real

_PATH: Final = "/apis/scheduling.k8s.io/v1/priorityclasses"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    setup = Setup(product=ASCEND_910B_8, dynamic_vnpus=True)
    async with real_world(cluster, tmp_path_factory.mktemp("world"), setup) as real:
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}}
        with suppress(Conflict):
            await real.client.request("POST", _PATH, body={**body, "value": 1000})
        yield real


async def create(world: World, name: str, cores: int, priority: str = "") -> None:
    """Create a pod with AI cores on the first node, which takes some seconds to end."""
    spec = {"nodeSelector": {"kubernetes.io/hostname": world.nodes[0].name}, "terminationGracePeriodSeconds": 30}
    manifest = world.pod_manifest(name, 1, **spec, **({"priorityClassName": priority} if priority else {}))
    quantities = {RESOURCE_CORES: str(cores)}
    command = ["sh", "-c", 'trap "sleep 3; exit 0" TERM; sleep 2147483647 & wait']
    manifest["spec"]["containers"][0]["command"] = command
    manifest["spec"]["containers"][0]["resources"] = {"limits": quantities, "requests": quantities}
    await world.client.create(PODS, manifest, "default")


@pytest.mark.long
async def test_pods_that_preempt_for_ai_cores_together_all_run(world: World) -> None:
    world.nodes[0].add_device_nodes(*(f"vdavinci{vdev_id}" for vdev_id in range(100, 160)))
    low = {f"low-{number}": cores for number, cores in enumerate((5, 5, 10) * 8)}
    for name, cores in low.items():
        await create(world, name, cores)
    for name in low:
        await world.running(name)
    high = {"ten": 10, "chip": 20, "five": 5}
    for name, cores in high.items():
        await create(world, name, cores, "urgent")
    for name in high:
        await world.running(name)
    left = {pod.name for pod in await world.pods()}
    victims = low.keys() - left
    # A victim may have five cores more than are needed: pods end whole.
    assert 35 <= sum(low[name] for name in victims) <= 40, victims
