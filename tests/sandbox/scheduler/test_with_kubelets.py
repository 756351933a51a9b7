"""The scheduler, its extender and two kubelets together."""

import tempfile
from functools import partial
from pathlib import Path

from ascend.kube.client import KubeClient
from sandbox.kubelet import Kubelet
from sandbox.scheduler import Scheduler
from tests.sandbox.kubelet.peer import RESOURCE, Plugin
from tests.sandbox.scheduler.extender import FakeExtender
from tests.sandbox.scheduler.world import World, pod


def offers(kubelet: Kubelet) -> bool:
    return kubelet.allocatable(RESOURCE) == 8


async def test_pods_run_until_the_cluster_is_full_and_again_after_a_deletion(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    with tempfile.TemporaryDirectory(prefix="s", dir="/tmp") as path:
        async with (
            Kubelet("n1", client, Path(path) / "1", seed=1) as one,
            Kubelet("n2", client, Path(path) / "2", seed=2) as two,
            Plugin(one.socket_dir) as plugin_one,
            Plugin(two.socket_dir) as plugin_two,
            Scheduler(client, extender.url, seed=1, backoff_s=(0.01, 0.05)),
        ):
            for kubelet, plugin in ((one, plugin_one), (two, plugin_two)):
                await plugin.register()
                await kubelet.until(partial(offers, kubelet))
            names = [f"p{number}" for number in range(8)]
            for name in names:
                await world.create(pod(name, 2))
            for name in names:
                await world.pod(name, lambda each: each.phase == "Running")
            held = [ids for kubelet in (one, two) for ids in kubelet.ledger().values()]
            assert sorted(len(each) for each in held) == [2] * 8
            for kubelet in (one, two):
                assert len({each for ids in kubelet.ledger().values() for each in ids}) == 8
            await world.create(pod("late", 2))
            assert await world.refused("late") == f"0/2 nodes are available: 2 Insufficient {RESOURCE}."
            await client.request("DELETE", "/api/v1/namespaces/default/pods/p3")
            await world.pod("late", lambda each: each.phase == "Running")
