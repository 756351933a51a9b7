"""Gangs whose pods can't share a node, on the real kube-scheduler: the sandbox's knows no affinity and no ports."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.test_gang_barrier import POOL, nodes_of, of_gang
from tests.e2e.world import Setup, World

pytestmark = pytest.mark.real


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared_world(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    async with real_world(cluster, tmp_path_factory.mktemp("world"), Setup()) as world:
        yield world


@pytest.mark.parametrize("kind", ["anti-affinity", "host port"])
async def test_a_gang_whose_pods_repel_each_other_is_spread(world: World, kind: str) -> None:
    await world.add_fake_nodes(*(f"q-{number}" for number in range(3)), labels=POOL)
    term = {"labelSelector": {"matchLabels": {"job": "a"}}, "topologyKey": "kubernetes.io/hostname"}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for rank in range(3):
        name = f"a-{rank}"
        manifest = world.pod_manifest(name, 4, nodeSelector=POOL)
        manifest["metadata"]["annotations"] = of_gang("a", 3)
        manifest["metadata"]["labels"] = {"job": "a"}
        if kind == "anti-affinity":
            manifest["spec"]["affinity"] = affinity
        else:
            manifest["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": 8080}]
            manifest["spec"]["hostNetwork"] = False
        await world.client.request("POST", "/api/v1/namespaces/default/pods", body=manifest)
    assert len(set(await nodes_of(world, [f"a-{rank}" for rank in range(3)]))) == 3
