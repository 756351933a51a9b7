"""How the scheduler calls its extender."""

import asyncio

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject
from sandbox.scheduler import Scheduler
from tests.sandbox.scheduler.extender import FakeExtender
from tests.sandbox.scheduler.world import RESOURCE, ManualClock, World, pod, scheduled


async def test_a_pod_is_filtered_and_bound_by_the_extender(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name)
    created = await world.create(pod("a", 2))
    async with Scheduler(client, extender.url, seed=1):
        node = await world.bound("a")
        note = await world.event(lambda each: each.reason == "Scheduled")
    assert extender.verbs() == ["filter", "bind"]
    (_, filtered), (_, bound) = extender.calls
    assert filtered["Nodes"] is None
    assert set(filtered["NodeNames"]) == {"n1", "n2", "n3"}
    assert filtered["Pod"]["metadata"]["uid"] == created.uid
    assert filtered["Pod"]["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: "2"}
    assert bound == {"PodName": "a", "PodNamespace": "default", "PodUID": created.uid, "Node": node}
    assert note.note == f"Successfully assigned default/a to {node}"


async def test_a_pod_goes_only_where_the_extender_lets_it(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1")
    await world.node("n2")
    extender.refused = {"n2": "no ring has 4 free chips"}
    await world.create(pod("a", 4))
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n1"
    assert extender.verbs() == ["filter", "bind"]


async def test_the_extender_is_not_called_for_pods_without_the_resource(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=None)
    await world.create(pod("a"))
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n1"
    assert extender.calls == []


async def test_the_extender_gets_only_nodes_that_pass_the_schedulers_filters(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=2)
    await world.node("n2", unschedulable=True)
    await world.node("n3", ready=False)
    await world.node("n4", chips=None)
    await world.node("n5")
    await world.node("n6")
    async with Scheduler(client, extender.url, seed=1):
        await world.create(pod("a", 4, nodeSelector={"kubernetes.io/hostname": "n5"}))
        assert await world.bound("a") == "n5"
    assert extender.calls[0][1]["NodeNames"] == ["n5"]


async def test_reasons_of_scheduler_and_extender_are_in_one_message(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=2)
    for name in ("n2", "n3", "n4"):
        await world.node(name)
    extender.refused = {"n2": "no ring has 4 free chips", "n3": "no ring has 4 free chips"}
    extender.unresolvable = {"n3": "chip health is unknown", "n4": "chip health is unknown"}
    await world.create(pod("a", 4))
    message = (
        f"0/4 nodes are available: 1 Insufficient {RESOURCE}, 1 no ring has 4 free chips, 2 chip health is unknown."
    )
    async with Scheduler(client, extender.url, seed=1):
        assert await world.refused("a") == message
        event = await world.event(lambda each: each.reason == "FailedScheduling")
    assert (event.type, event.note, event.regarding["name"]) == ("Warning", message, "a")
    assert extender.verbs() == ["filter"]


async def test_a_filter_error_fails_the_cycle_and_the_pod_is_requeued(
    client: KubeClient, world: World, extender: FakeExtender, clock: ManualClock
) -> None:
    await world.node("n1")
    extender.error = "the cache is not synced"
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=clock) as scheduler:
        assert await world.refused("a", "SchedulerError") == "the cache is not synced"
        extender.error = ""
        clock.end()
        assert await world.bound("a") == "n1"
        assert scheduler.cycles == 2
    assert clock.waits_s == [1.0]


@pytest.mark.parametrize("status", [404, 500])
async def test_a_response_that_is_not_200_fails_the_cycle(
    client: KubeClient, world: World, extender: FakeExtender, clock: ManualClock, status: int
) -> None:
    await world.node("n1")
    extender.status = status
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=clock):
        message = await world.refused("a", "SchedulerError")
    assert message == f"failed filter with extender at URL {extender.url}/filter, code {status}"


async def test_an_unreachable_extender_fails_the_cycle(client: KubeClient, world: World, clock: ManualClock) -> None:
    await world.node("n1")
    extender = FakeExtender(client)
    async with extender:
        url = extender.url
    await world.create(pod("a", 1))
    async with Scheduler(client, url, seed=1, wait=clock):
        assert f'Post "{url}/filter"' in await world.refused("a", "SchedulerError")
        await world.event(lambda each: each.reason == "FailedScheduling")
        await extender.listen()
        try:
            clock.end()
            assert await world.bound("a") == "n1"
        finally:
            await extender.close()


async def test_the_backoff_doubles_up_to_its_maximum(
    client: KubeClient, world: World, extender: FakeExtender, clock: ManualClock
) -> None:
    await world.node("n1")
    extender.error = "no"
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=clock) as scheduler:
        for cycle in range(1, 7):
            await clock.waits(cycle)
            clock.end()
        await scheduler.until(lambda: scheduler.cycles == 7)
    assert clock.waits_s[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_scheduling_cycles_continue_while_a_pod_is_being_bound(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=8)
    bind_b = asyncio.Event()

    async def hold_a(body: JsonObject) -> None:
        if body["PodName"] == "a":
            await bind_b.wait()
        else:
            bind_b.set()

    extender.before_bind = hold_a
    await world.create(pod("a", 4))
    async with Scheduler(client, extender.url, seed=1):
        await extender.binding.wait()
        await world.create(pod("b", 4))
        await world.bound("a")
        await world.bound("b")
    assert extender.verbs() == ["filter", "bind", "filter", "bind"]


async def test_a_pod_that_is_being_bound_counts_as_assumed_on_its_node(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=8)
    go_on = asyncio.Event()

    async def hold(_body: JsonObject) -> None:
        await go_on.wait()

    extender.before_bind = hold
    await world.create(pod("a", 6))
    async with Scheduler(client, extender.url, seed=1):
        await extender.binding.wait()
        await world.create(pod("b", 4))
        assert await world.refused("b") == f"0/1 nodes are available: 1 Insufficient {RESOURCE}."
        go_on.set()
        await world.bound("a")


async def test_a_pod_whose_bind_fails_is_no_longer_assumed_and_is_requeued(
    client: KubeClient, world: World, extender: FakeExtender, clock: ManualClock
) -> None:
    await world.node("n1", chips=8)
    extender.bind_error = "chip 3 has failed"
    await world.create(pod("a", 8))
    async with Scheduler(client, extender.url, seed=1, wait=clock) as scheduler:
        assert await world.refused("a", "SchedulerError") == "chip 3 has failed"
        extender.bind_error = ""
        clock.end()
        assert await world.bound("a") == "n1"
        await scheduler.until(lambda: not scheduler.binding)
    assert extender.verbs() == ["filter", "bind", "filter", "bind"]


async def test_a_bind_whose_response_is_lost_is_not_repeated(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=8)

    async def bind_and_break(body: JsonObject) -> None:
        extender.bind_error = "the answer is lost"
        await client.bind(namespace="default", name="a", uid=body["PodUID"], node="n1", annotations={})
        await world.bound("a")

    extender.before_bind = bind_and_break
    await world.create(pod("a", 8))
    async with Scheduler(client, extender.url, seed=1) as scheduler:
        bound = await world.pod("a", lambda each: each.node_name)
        await scheduler.until(lambda: not scheduler.binding)
    assert extender.verbs() == ["filter", "bind"]
    assert scheduled(bound).get("reason") != "SchedulerError"
