"""Gangs whose pods can't share a node, on the real kube-scheduler: the sandbox's knows no affinity and no ports."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from ascend.rules.identity import ACCELERATOR_TYPE, CHIP_NAME
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


@pytest.mark.long
async def test_a_gang_waits_for_servers_with_one_model_of_chips(world: World) -> None:
    b3, b4 = ({**POOL, ACCELERATOR_TYPE: "module-910b-8", CHIP_NAME: model} for model in ("910B3", "910B4"))
    await world.add_fake_nodes("q-0", "q-1", labels=b3)
    await world.add_fake_nodes("q-2", "q-3", labels=b4)
    names = [f"a-{rank}" for rank in range(3)]
    for name in names:
        await world.create(name, 8, annotations=of_gang("a", 3), nodeSelector=POOL)
    await world.pending_because("a-2", "several models of chips (910B3 and 910B4)")
    await world.add_fake_nodes("q-4", labels=b3)
    assert sorted(await nodes_of(world, names)) == ["q-0", "q-1", "q-4"]
