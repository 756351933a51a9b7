from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS
from sandbox.scheduler import Scheduler
from tests.sandbox.scheduler.world import RESOURCE, Patience, World, pod


async def test_without_an_extender_pods_are_counted_and_bound_plainly(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=4)
    await world.node("n2", chips=4)
    async with Scheduler(client, None, seed=1):
        for name in ("a", "b"):
            await world.create(pod(name, 4))
        assert {await world.bound("a"), await world.bound("b")} == {"n1", "n2"}
        await world.create(pod("c", 1))
        assert await world.refused("c") == f"0/2 nodes are available: 2 Insufficient {RESOURCE}."


async def test_without_nodes_nothing_can_be_done(client: KubeClient, world: World) -> None:
    await world.create(pod("a"))
    async with Scheduler(client, None, seed=1):
        assert await world.refused("a") == "no nodes available to schedule pods"


async def test_pods_are_looked_at_in_the_order_they_came(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=2)
    async with Scheduler(client, None, seed=1) as scheduler:
        scheduler.hold()
        for name in ("z", "y", "x"):
            await world.create(pod(name, 1))
        scheduler.release()
        await world.refused("x")
        await world.bound("z")
        await world.bound("y")


async def test_nodes_of_equal_score_are_drawn_by_the_seed(client: KubeClient, world: World) -> None:
    for number in range(8):
        await world.node(f"n{number}")
    drawn: list[str] = []
    for seed in (1, 1, 2):
        async with Scheduler(client, None, seed=seed):
            await world.create(pod(f"p{len(drawn)}"))
            drawn.append(await world.bound(f"p{len(drawn)}"))
    assert drawn[0] == drawn[1]


async def test_pods_of_other_schedulers_are_left_alone(client: KubeClient, world: World) -> None:
    await world.node("n1")
    async with Scheduler(client, None, seed=1, scheduler_name="mine") as scheduler:
        await world.create(pod("theirs"))
        await world.create(pod("mine", schedulerName="mine"))
        await world.bound("mine")
        assert scheduler.cycles == 1


async def test_finished_pods_take_nothing(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=4)
    async with Scheduler(client, None, seed=1):
        await world.create(pod("a", 4))
        await world.bound("a")
        await world.set_phase("a", "Succeeded")
        await world.create(pod("b", 4))
        await world.bound("b")


async def test_a_tainted_node_is_for_pods_that_tolerate_it(client: KubeClient, world: World) -> None:
    await world.node("n1", taints=[{"key": "npu", "effect": "NoSchedule"}])
    async with Scheduler(client, None, seed=1):
        await world.create(pod("a"))
        assert await world.refused("a") == "0/1 nodes are available: 1 node(s) had untolerated taint {npu: }."
        await world.create(pod("b", tolerations=[{"key": "npu", "operator": "Exists"}]))
        await world.bound("b")


async def test_a_pod_that_fits_nowhere_waits_for_a_change_and_for_its_backoff(
    client: KubeClient, world: World, patience: Patience
) -> None:
    await world.node("n1", chips=4)
    async with Scheduler(client, None, seed=1, wait=patience) as scheduler:
        await world.create(pod("a", 4))
        await world.bound("a")
        await world.create(pod("b", 4))
        await world.refused("b")
        await patience.asked(1)
        patience.end()
        await patience.asked(2)  # the back-off is over and nothing has changed
        assert scheduler.cycles == 2
        await world.delete("a")
        await world.bound("b")
    assert patience.asked_s == [1.0, 300.0]


async def test_a_change_during_the_backoff_counts_when_it_is_over(
    client: KubeClient, world: World, patience: Patience
) -> None:
    await world.node("n1", chips=0)
    async with Scheduler(client, None, seed=1, wait=patience) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await patience.asked(1)
        await world.set_node("n1", allocatable={RESOURCE: "4"})
        await world.create(pod("b"))
        await world.bound("b")
        assert scheduler.cycles == 2
        patience.end()
        await world.bound("a")


async def test_a_changed_config_map_is_no_reason_to_try_again_a_change_of_the_pod_is(
    client: KubeClient, world: World, patience: Patience
) -> None:
    # kube-scheduler does not watch ConfigMaps: who makes room by one must touch the pod.
    await world.node("n1", chips=0)
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}}
    async with Scheduler(client, None, seed=1, wait=patience) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await patience.asked(1)
        patience.end()
        await patience.asked(2)
        await client.create(CONFIG_MAPS, body, "default")
        await client.patch(PODS, "a", {"metadata": {"annotations": {"why": "not"}}}, namespace="default")
        await patience.asked(3)
        assert scheduler.cycles == 2


async def test_a_pod_deleted_while_it_waits_is_forgotten(client: KubeClient, world: World, patience: Patience) -> None:
    await world.node("n1", chips=0)
    async with Scheduler(client, None, seed=1, wait=patience) as scheduler:
        await world.create(pod("a", 4))
        await world.refused("a")
        await world.delete("a")
        await world.set_node("n1", allocatable={RESOURCE: "4"})
        patience.end()
        await world.create(pod("b", 4))
        await world.bound("b")
        assert scheduler.cycles == 2
