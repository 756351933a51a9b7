import asyncio

import pytest

from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject
from sandbox.scheduler import Scheduler
from tests.sandbox.scheduler.extender import FakeExtender
from tests.sandbox.scheduler.world import RESOURCE, Patience, World, pod, scheduled


async def test_a_pod_is_filtered_scored_and_bound_by_the_extender(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    for name in ("n1", "n2", "n3"):
        await world.node(name)
    extender.scores = {"n1": 3, "n2": 9, "n3": 1}
    created = await world.create(pod("a", 2))
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n2"
        note = await world.event(lambda each: each.reason == "Scheduled")
    assert extender.verbs() == ["filter", "prioritize", "bind"]
    (_, asked), (_, scored), (_, bound) = extender.calls
    assert asked["Nodes"] is None
    assert set(asked["NodeNames"]) == set(scored["NodeNames"]) == {"n1", "n2", "n3"}
    assert asked["Pod"]["metadata"]["uid"] == created.uid
    assert asked["Pod"]["spec"]["containers"][0]["resources"]["limits"] == {RESOURCE: "2"}
    assert bound == {"PodName": "a", "PodNamespace": "default", "PodUID": created.uid, "Node": "n2"}
    assert note.note == "Successfully assigned default/a to n2"


async def test_a_single_node_is_not_scored(client: KubeClient, world: World, extender: FakeExtender) -> None:
    await world.node("n1")
    await world.node("n2")
    extender.refused = {"n2": "no ring has 4 free chips"}
    await world.create(pod("a", 4))
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n1"
    assert extender.verbs() == ["filter", "bind"]


async def test_a_pod_without_the_resource_is_none_of_the_extenders_business(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=None)
    await world.create(pod("a"))
    async with Scheduler(client, extender.url, seed=1):
        assert await world.bound("a") == "n1"
    assert extender.calls == []


async def test_nodes_that_fail_the_scheduler_are_not_shown_to_the_extender(
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


async def test_the_reasons_of_scheduler_and_extender_are_counted_in_one_sentence(
    client: KubeClient, world: World, extender: FakeExtender
) -> None:
    await world.node("n1", chips=2)
    for name in ("n2", "n3", "n4"):
        await world.node(name)
    extender.refused = {"n2": "no ring has 4 free chips", "n3": "no ring has 4 free chips"}
    extender.unresolvable = {"n3": "chip health is unknown", "n4": "chip health is unknown"}
    await world.create(pod("a", 4))
    sentence = (
        f"0/4 nodes are available: 1 Insufficient {RESOURCE}, 1 no ring has 4 free chips, 2 chip health is unknown."
    )
    async with Scheduler(client, extender.url, seed=1):
        assert await world.refused("a") == sentence
        event = await world.event(lambda each: each.reason == "FailedScheduling")
    assert (event.type, event.note, event.regarding["name"]) == ("Warning", sentence, "a")
    assert extender.verbs() == ["filter"]


async def test_an_error_of_the_filter_fails_the_cycle_and_is_tried_again_after_the_backoff(
    client: KubeClient, world: World, extender: FakeExtender, patience: Patience
) -> None:
    await world.node("n1")
    extender.error = "the view is not complete"
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=patience) as scheduler:
        assert await world.refused("a", "SchedulerError") == "the view is not complete"
        extender.error = ""
        patience.end()
        assert await world.bound("a") == "n1"
        assert scheduler.cycles == 2
    assert patience.asked_s == [1.0]


@pytest.mark.parametrize("status", [404, 500])
async def test_an_answer_that_is_not_200_fails_the_cycle(
    client: KubeClient, world: World, extender: FakeExtender, patience: Patience, status: int
) -> None:
    await world.node("n1")
    extender.status = status
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=patience):
        message = await world.refused("a", "SchedulerError")
    assert message == f"failed filter with extender at URL {extender.url}/filter, code {status}"


async def test_an_extender_that_is_not_there_fails_the_cycle_until_it_is(
    client: KubeClient, world: World, patience: Patience
) -> None:
    await world.node("n1")
    extender = FakeExtender(client)
    async with extender:
        url = extender.url
    await world.create(pod("a", 1))
    async with Scheduler(client, url, seed=1, wait=patience):
        assert f'Post "{url}/filter"' in await world.refused("a", "SchedulerError")
        await world.event(lambda each: each.reason == "FailedScheduling")
        await extender.listen()
        try:
            patience.end()
            assert await world.bound("a") == "n1"
        finally:
            await extender.close()


async def test_the_backoff_doubles_up_to_its_limit(
    client: KubeClient, world: World, extender: FakeExtender, patience: Patience
) -> None:
    await world.node("n1")
    extender.error = "no"
    await world.create(pod("a", 1))
    async with Scheduler(client, extender.url, seed=1, wait=patience) as scheduler:
        for cycle in range(1, 7):
            await patience.asked(cycle)
            patience.end()
        await scheduler.until(lambda: scheduler.cycles == 7)
    assert patience.asked_s[:6] == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0]


async def test_the_next_pods_cycle_goes_on_while_one_is_being_bound(
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


async def test_a_pod_that_is_being_bound_counts_on_its_node(
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


async def test_a_refused_bind_is_forgotten_and_tried_again(
    client: KubeClient, world: World, extender: FakeExtender, patience: Patience
) -> None:
    await world.node("n1", chips=8)
    extender.bind_error = "chip 3 has failed meanwhile"
    await world.create(pod("a", 8))
    async with Scheduler(client, extender.url, seed=1, wait=patience) as scheduler:
        assert await world.refused("a", "SchedulerError") == "chip 3 has failed meanwhile"
        extender.bind_error = ""
        patience.end()
        assert await world.bound("a") == "n1"
        await scheduler.until(lambda: not scheduler.binding)
    assert extender.verbs() == ["filter", "bind", "filter", "bind"]


async def test_a_bind_whose_answer_is_lost_is_not_done_again(
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
