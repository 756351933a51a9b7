"""The scheduler and nominated nodes, as kube-scheduler 1.34 treats them (tests/e2e/test_nominations.py)."""

from ascend.kube.client import KubeClient
from ascend.kube.objects import PODS, JsonObject
from sandbox.scheduler import Scheduler
from tests.sandbox.scheduler.extender import FakeExtender
from tests.sandbox.scheduler.world import World, pod


async def nominate(client: KubeClient, name: str, node: str) -> None:
    body = {"status": {"nominatedNodeName": node}}
    await client.patch(PODS, name, body, namespace="default", subresource="status")


def offered(extender: FakeExtender, name: str) -> list[set[str]]:
    """The nodes of each filter call for a pod."""
    bodies: list[JsonObject] = [body for verb, body in extender.calls if verb == "filter"]
    return [set(body["NodeNames"]) for body in bodies if body["Pod"]["metadata"]["name"] == name]


async def test_a_nominated_pod_is_filtered_on_its_node_alone(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name)
    await world.create(pod("a", 2))
    await nominate(client, "a", "n2")
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n2"
    assert offered(extender, "a") == [{"n2"}]


async def test_all_nodes_are_filtered_if_the_nominated_one_does_not_fit(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    for name, chips in (("n1", 8), ("n2", 8), ("n3", 1)):
        await world.node(name, chips=chips)
    extender.refused = {"n2": "no"}
    for name, node in (("a", "n2"), ("b", "n3"), ("c", "gone")):
        await world.create(pod(name, 2))
        await nominate(client, name, node)
    async with Scheduler(client, extender.url, seed=1):
        for name in ("a", "b", "c"):
            assert await world.bound(name) == "n1"
    assert offered(extender, "a") == [{"n2"}, {"n1", "n2"}]
    assert offered(extender, "b") == offered(extender, "c") == [{"n1", "n2"}]


async def test_a_nominated_pod_counts_for_pods_of_equal_or_lower_priority(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=8)
    await world.create(pod("nominated", 8, schedulerName="later", priority=5))
    await nominate(client, "nominated", "n1")
    async with Scheduler(client, None, seed=1):
        for name, priority in (("lower", 1), ("equal", 5)):
            await world.create(pod(name, 1, priority=priority))
            await world.refused(name)
        await world.create(pod("higher", 1, priority=6))
        assert await world.bound("higher") == "n1"


async def test_the_nomination_of_a_pod_that_fits_nowhere_is_cleared(client: KubeClient, world: World) -> None:
    await world.node("n1", chips=1)
    for name, policy in (("a", "PreemptLowerPriority"), ("never", "Never")):
        await world.create(pod(name, 2, preemptionPolicy=policy))
        await nominate(client, name, "n1")
    async with Scheduler(client, None, seed=1):
        await world.refused("a")
        await world.refused("never")
    assert (await world.pod("a", lambda each: not each.nominated_node)).node_name == ""
    assert (await world.pod("never", lambda each: each.nominated_node)).nominated_node == "n1"


async def test_a_gated_pod_is_not_in_the_queue(client: KubeClient, world: World) -> None:
    await world.node("n1")
    gates = [{"name": "a.b/gate"}]
    await world.create(pod("gated", 1, schedulingGates=gates))
    async with Scheduler(client, None, seed=1) as scheduler:
        await world.create(pod("other", 1))
        await world.bound("other")
        assert scheduler.cycles == 1
        await client.patch(PODS, "gated", {"spec": {"schedulingGates": None}}, namespace="default")
        assert await world.bound("gated") == "n1"
