"""Scheduling without an extender, and the scheduling queue."""

from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS
from sandbox.scheduler import Scheduler
from tests.sandbox.scheduler.world import RESOURCE, ManualClock, World, pod


async def test_without_an_extender_pods_are_placed_by_count(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=4)
    await world.node("n2", chips=4)
    async with Scheduler(client, None, seed=1):
        for name in ("a", "b"):
            await world.create(pod(name, 4))
        assert {await world.bound("a"), await world.bound("b")} == {"n1", "n2"}
        await world.create(pod("c", 1))
        assert await world.refused("c") == f"0/2 nodes are available: 2 Insufficient {RESOURCE}."


async def test_without_nodes_pods_are_unschedulable(client: KubeClient, world: World) -> None:
    await world.create(pod("a"))
    async with Scheduler(client, None, seed=1):
        assert await world.refused("a") == "no nodes available to schedule pods"


async def test_pods_are_scheduled_in_the_order_in_which_they_came(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=2)
    async with Scheduler(client, None, seed=1) as scheduler:
        scheduler.hold()
        for name in ("z", "y", "x"):
            await world.create(pod(name, 1))
        scheduler.release()
        await world.refused("x")
        await world.bound("z")
        await world.bound("y")


async def test_the_seed_chooses_among_nodes_of_equal_score(client: KubeClient, world: World) -> None:
    for number in range(8):
        await world.node(f"n{number}")
    chosen: list[str] = []
    for seed in (1, 1, 2):
        async with Scheduler(client, None, seed=seed):
            await world.create(pod(f"p{len(chosen)}"))
            chosen.append(await world.bound(f"p{len(chosen)}"))
    assert chosen[0] == chosen[1]


async def test_pods_of_other_schedulers_are_ignored(client: KubeClient, world: World) -> None:
    await world.node("n1")
    async with Scheduler(client, None, seed=1, scheduler_name="mine") as scheduler:
        await world.create(pod("other"))
        await world.create(pod("mine", schedulerName="mine"))
        await world.bound("mine")
        assert scheduler.cycles == 1


async def test_finished_pods_use_no_resources(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=4)
    async with Scheduler(client, None, seed=1):
        await world.create(pod("a", 4))
        await world.bound("a")
        await world.set_phase("a", "Succeeded")
        await world.create(pod("b", 4))
        await world.bound("b")


async def test_a_tainted_node_accepts_only_pods_that_tolerate_the_taint(client: KubeClient, world: World) -> None:
    await world.node("n1", taints=[{"key": "npu", "effect": "NoSchedule"}])
    async with Scheduler(client, None, seed=1):
        await world.create(pod("a"))
        assert await world.refused("a") == "0/1 nodes are available: 1 node(s) had untolerated taint {npu: }."
        await world.create(pod("b", tolerations=[{"key": "npu", "operator": "Exists"}]))
        await world.bound("b")


async def test_an_unschedulable_pod_waits_for_its_backoff_and_a_change(
    client: KubeClient, world: World, clock: ManualClock
) -> None:
    await world.node("n1", chips=4)
    async with Scheduler(client, None, seed=1, wait=clock) as scheduler:
        await world.create(pod("a", 4))
        await world.bound("a")
        await world.create(pod("b", 4))
        await world.refused("b")
        await clock.waits(1)
        clock.end()
        await clock.waits(2)  # the backoff is over and nothing has changed
        assert scheduler.cycles == 2
        # The pod is terminating first, which is a change as well, and may be seen before it is gone.
        clock.ends_new = True
        await world.delete("a")
        await world.bound("b")
    assert clock.waits_s[:2] == [1.0, 300.0]


async def test_a_change_during_the_backoff_counts_when_the_backoff_ends(
    client: KubeClient, world: World, clock: ManualClock
) -> None:
    await world.node("n1", chips=0)
    async with Scheduler(client, None, seed=1, wait=clock) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await clock.waits(1)
        await world.set_node("n1", allocatable={RESOURCE: "4"})
        await world.create(pod("b"))
        await world.bound("b")
        assert scheduler.cycles == 2
        clock.end()
        await world.bound("a")


async def test_a_change_of_the_pod_requeues_it_and_one_of_a_configmap_does_not(
    client: KubeClient, world: World, clock: ManualClock
) -> None:
    # kube-scheduler does not watch ConfigMaps: one that frees capacity must come with a change of the pod.
    await world.node("n1", chips=0)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
    async with Scheduler(client, None, seed=1, wait=clock) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await clock.waits(1)
        clock.end()
        await clock.waits(2)
        await client.create(CONFIG_MAPS, body, "default")
        await client.patch(PODS, "a", {"metadata": {"annotations": {"why": "not"}}}, namespace="default")
        await clock.waits(3)
        assert scheduler.cycles == 2


async def test_a_waiting_pod_that_is_deleted_leaves_the_queue(
    client: KubeClient, world: World, clock: ManualClock
) -> None:
    await world.node("n1", chips=0)
    async with Scheduler(client, None, seed=1, wait=clock) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await world.delete("a")
        await world.set_node("n1", allocatable={RESOURCE: "4"})
        clock.end()
        await world.create(pod("b", 4))
        await world.bound("b")
        assert scheduler.cycles == 2
