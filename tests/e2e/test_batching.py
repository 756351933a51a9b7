"""Opportunistic batching (KEP-5598): kube-scheduler may place a pod by the ranking of nodes of an equal one before it.

With an extender it never does. Without one it does, and the webhook for Bindings still gives each chip to one pod.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from ascend.annotations import ALLOCATED
from tests.cluster.binaries import MINOR
from tests.cluster.cluster import Cluster
from tests.e2e.real import real_world
from tests.e2e.world import Setup, World, annotated

pytestmark = [
    pytest.mark.real,
    pytest.mark.long,
    pytest.mark.skipif(MINOR < 35, reason="kube-scheduler reuses rankings from 1.35 on"),
]
NODES: Final = 12
SIGNABLE: Final = [
    {
        "name": "PodTopologySpread",
        "args": {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "PodTopologySpreadArgs",
            "defaultingType": "List",
        },
    }
]
"""Only pods that are not spread by default are compared at all."""
WAYS: Final = {"extender": Setup(), "webhook": Setup(by_webhook=True)}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS.values(), ids=WAYS)
async def shared_world(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    cluster.control_plane.plugin_config = SIGNABLE
    try:
        async with real_world(cluster, tmp_path_factory.mktemp("world"), request.param) as real:
            yield real
    finally:
        cluster.control_plane.plugin_config = []


def reused(cluster: Cluster) -> float:
    """How many pods kube-scheduler has placed by the ranking of another."""
    page = cluster.control_plane.scheduler_metrics()
    line = r'^scheduler_batch_attempts_total\{.*result="hint_used".*\} (\S+)$'
    return sum(map(float, re.findall(line, page, re.MULTILINE)))


async def test_pods_by_a_reused_ranking_share_no_chip(world: World, cluster: Cluster) -> None:
    await world.add_fake_nodes(*(f"f-{number}" for number in range(NODES)), labels={"pool": "f"})
    before = reused(cluster)
    names = [f"pod-{number}" for number in range(NODES + 1)]
    await asyncio.gather(*(world.create(name, 8, nodeSelector={"pool": "f"}) for name in names))

    async def filled() -> bool:
        return sum(bool(pod.spec.node_name) for pod in await world.pods()) == NODES

    await world.eventually(filled, "every server has a pod")
    bound = [pod for pod in await world.pods() if pod.spec.node_name]
    assert {(pod.spec.node_name, annotated(pod, ALLOCATED)) for pod in bound} == {
        (f"f-{number}", 0xFF) for number in range(NODES)
    }
    assert (reused(cluster) > before) == world.setup.by_webhook
