"""A refused pod is requeued once it would fit, although its scheduler saw no change."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import pytest
from msgspec.structs import replace

from allocator.metrics import AllocatorMetrics
from allocator.serving.requeue import AT_ONCE, FORGET_S, LONGEST_WAIT_S, NOWHERE, PERIOD_S, Requeuer
from ascend import turn
from ascend.annotations import MIN_AVAILABLE, REQUEUED
from ascend.errors import ApiError, Conflict, NotFound, Refusal, Unreachable
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod, pod_group, report, stateful_set

MODULE = {TYPE: "module"}
pytestmark = pytest.mark.looptime


class PatchServer:
    """An API server that takes patches, or does not answer."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, str, dict[str, Any]]] = []
        self.answers = True
        self.gone: set[str] = set()
        self.errors: list[ApiError] = []

    async def patch(
        self, _resource: object, name: str, body: dict[str, Any], *, namespace: str, subresource: str = ""
    ) -> Pod:
        if not self.answers:
            raise Unreachable("no answer")
        if self.errors:
            raise self.errors.pop()
        assert namespace in {"default", "quiet"}
        if name in self.gone:
            raise NotFound("gone", status=404)
        assert ("status" in body) == (subresource == "status")
        self.taken.append((asyncio.get_running_loop().time(), name, body))
        return pod(name)  # without a nominated node: there is nothing to clear


async def not_nominated(_uid: str) -> None:
    """Nominations are off."""


@asynccontextmanager
async def requeuing(
    world: World, api: PatchServer, clock: Callable[[], float] | None = None
) -> AsyncIterator[Requeuer]:
    loop = asyncio.get_running_loop()
    requeuer = Requeuer(
        cast("KubeClient", api),
        world.engine,
        AllocatorMetrics(world.ledger, lambda: None, world.cluster.index),
        monotonic=clock or loop.time,
        now_ns=lambda: int(loop.time() * 1e9),
        nominate=not_nominated,
    )
    task = asyncio.create_task(requeuer.run())
    try:
        yield requeuer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_namespace_with_thousands_of_refused_pods_leaves_turns_to_others() -> None:
    world, api = World(), PatchServer()
    world.add(node("n1"))
    async with requeuing(world, api) as requeuer:
        for number in range(2_000):
            each = pod(f"busy-{number}", 1)
            world.add(each)
            requeuer.on_refusal(each)
        mine = pod("mine", 1)
        mine = replace(mine, metadata=replace(mine.metadata, namespace="quiet"))
        world.add(mine)
        requeuer.on_refusal(mine)
        await asyncio.sleep(3 * PERIOD_S)
        assert "mine" in [name for _, name, _ in api.taken][:AT_ONCE]


async def test_only_a_pod_that_fits_again_is_annotated() -> None:
    world, api = World(), PatchServer()
    world.add(node("n1"))
    world.add(report("n1", unhealthy=(5,)))
    waits, too_big = pod("waits", 4), pod("too-big", 8)
    async with requeuing(world, api) as requeuer:
        for each in (waits, too_big):
            world.add(each)
            requeuer.on_refusal(each)
        world.add(pod("other", 4, node="n1", chips=range(4)))
        await asyncio.sleep(10)
        assert not api.taken
        world.add(report("n1"))
        await asyncio.sleep(1)
        ((_, name, body),) = api.taken
        assert name == "waits"
        assert body["metadata"]["uid"] == waits.uid
        assert list(body["metadata"]["annotations"]) == [REQUEUED]


async def test_a_pod_that_its_scheduler_retries_is_left_alone() -> None:
    world, api = World(), PatchServer()
    world.add(node("n1"))
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(pod("retried"))
        for _ in range(20):
            await asyncio.sleep(0.6)
            requeuer.on_refusal(pod("retried"))
        requeuer.on_acceptance("uid-retried")
        await asyncio.sleep(100)
        assert not api.taken


async def test_the_wait_doubles_while_the_scheduler_refuses_the_pod() -> None:
    # It fits on a node that is not a candidate: schedulers apply node selectors and taints.
    world, api = World(), PatchServer()
    world.add(node("n1"))
    refused = pod("refused")
    world.add(refused)
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(refused)
        for _ in range(1500):
            await asyncio.sleep(1)
            if api.taken and asyncio.get_running_loop().time() - api.taken[-1][0] < 1:
                requeuer.on_refusal(refused)
    times = [time for time, _, _ in api.taken]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(LONGEST_WAIT_S, abs=2)
    assert len(times) < 15


async def test_bound_finished_and_deleted_pods_are_forgotten() -> None:
    world, api = World(), PatchServer()
    async with requeuing(world, api) as requeuer:
        for name in ("bound", "done", "never-seen"):
            requeuer.on_refusal(pod(name))
        world.add(pod("bound", node="n1", chips=[0]))
        world.add(pod("done", phase="Failed"))
        await asyncio.sleep(1)
        assert len(requeuer._refused) == 1
        await asyncio.sleep(FORGET_S)
        assert len(requeuer._refused) == 0


async def test_a_failed_annotation_is_retried() -> None:
    world, api = World(), PatchServer()
    world.add(node("n1"))
    api.answers = False
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(pod("waits"))
        await asyncio.sleep(5)
        api.answers = True
        await asyncio.sleep(10)
        assert [name for _, name, _ in api.taken] == ["waits"]


async def test_a_pod_found_deleted_is_forgotten() -> None:
    world, api = World(), PatchServer()
    world.add(node("n1"))
    api.gone.add("deleted")
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(pod("deleted"))
        await asyncio.sleep(3)
        assert len(requeuer._refused) == 0


async def test_the_last_pod_of_a_gang_requeues_the_others_at_once() -> None:
    world, api = World(), PatchServer()
    world.add(*(node(f"n{number}") for number in range(3)))
    annotations = {GROUP: "train", MIN_AVAILABLE: "3"}
    pods = [pod(f"train-{number}", 8, annotations=annotations) for number in range(3)]
    async with requeuing(world, api) as requeuer:
        for each in pods[:2]:
            world.add(each)
            with pytest.raises(Refusal):
                world.engine.place(each)
            requeuer.on_refusal(each)
        await asyncio.sleep(30)
        assert not api.taken
        arrived_s = asyncio.get_running_loop().time()
        world.add(pods[2])
        world.engine.place(pods[2])
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0", "train-1"]
        assert all(time - arrived_s <= PERIOD_S for time, _, _ in api.taken)


async def test_a_gang_is_requeued_when_it_fits_as_a_whole() -> None:
    world, api = World(), PatchServer()
    world.add(node("n0"), pod("other", 8, node="n1", chips=range(8)), node("n1"))
    annotations = {GROUP: "train", MIN_AVAILABLE: "2"}
    pods = [pod(f"train-{number}", 8, annotations=annotations) for number in range(2)]
    world.add(*pods)
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(pods[0])
        await asyncio.sleep(30)
        assert not api.taken
        world.cluster.pod_deleted(pod("other", 8, node="n1"))
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0"]


async def test_waiting_gangs_take_at_most_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, api, loop = World(), PatchServer(), asyncio.get_running_loop()
    pods = [
        pod(f"train-{number}", 8, annotations={GROUP: f"train-{number}", MIN_AVAILABLE: "1000"})
        for number in range(600)
    ]
    world.add(*pods)
    examined: list[int] = []
    turns: list[None] = []

    def slow(_pod: Pod) -> bool:
        examined.append(len(turns))
        loop.call_soon(turns.append, None)
        return False

    monkeypatch.setattr(turn, "LIMIT_S", -1.0)

    # To examine one pod takes a millisecond.
    def clock() -> float:
        return loop.time() + len(examined) / 1000

    monkeypatch.setattr(world.engine, "may_fit", slow)
    async with requeuing(world, api, clock) as requeuer:
        for each in pods:
            requeuer.on_refusal(each)
        await asyncio.sleep(54)
    assert 5 < len(examined) / 1000 < 6.6
    assert max(Counter(examined).values()) == 1


async def test_after_a_slow_pass_the_next_one_starts_within_30_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, api, loop = World(), PatchServer(), asyncio.get_running_loop()
    waits = pod("train-0", 8, annotations={GROUP: "train", MIN_AVAILABLE: "2"})
    world.add(waits)
    examined: list[float] = []

    def slow(_pod: Pod) -> bool:
        examined.append(loop.time())
        return False

    def clock() -> float:
        return loop.time() + 60 * len(examined)

    monkeypatch.setattr(world.engine, "may_fit", slow)
    async with requeuing(world, api, clock) as requeuer:
        requeuer.on_refusal(waits)
        await asyncio.sleep(70)
    assert len(examined) >= 3


@pytest.mark.parametrize("change", ["the group is created", "its minimum falls"])
async def test_a_changed_pod_group_requeues_its_gang(change: str) -> None:
    world, api = World(), PatchServer()
    world.add(node("n0"), node("n1"))
    world.cluster.jobs.on_watched(VOLCANO)
    if change == "its minimum falls":
        world.cluster.jobs.group_applied(VOLCANO, pod_group(3))
    pods = [pod(f"train-{number}", 8, annotations={GROUP: "train"}) for number in range(2)]
    world.add(*pods)
    async with requeuing(world, api) as requeuer:
        for each in pods:
            requeuer.on_refusal(each)
        await asyncio.sleep(30)
        assert not api.taken
        world.cluster.jobs.group_applied(VOLCANO, pod_group(2))
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0", "train-1"]


async def test_a_pod_refused_again_is_judged_by_its_current_request() -> None:
    # The informers have not seen it yet, so its request can't be read again.
    world, api = World(), PatchServer()
    world.cluster.jobs.owners.apply(stateful_set(2))
    world.add(node("a0", labels=MODULE), owned_by(pod("train-0", 8), "StatefulSet"))
    world.fill("a0")
    async with requeuing(world, api) as requeuer:
        requeuer.on_refusal(owned_by(pod("train-1", 8), "StatefulSet"))
        world.cluster.jobs.owners.delete(stateful_set(2))
        requeuer.on_refusal(owned_by(pod("train-1", 4), "StatefulSet"))
        world.add(node("a1", labels=MODULE))
        world.fill("a1", [0])
        await asyncio.sleep(2)
        assert [name for _, name, _ in api.taken] == ["train-1"]


async def test_one_pod_is_nominated_for_all_that_may_preempt() -> None:
    world, api = World(), PatchServer()
    world.add(node("n0"), low := pod("low", 8), high := pod("high", 8, priority=1))
    world.fill("n0")
    async with requeuing(world, api) as requeuer:
        for each in (low, high, pod("invalid", None)):
            requeuer.retry(each)
        await asyncio.sleep(1)
        # kube-scheduler retries those of lower priority, too.
        assert [(name, body["status"]) for _, name, body in api.taken] == [("high", {"nominatedNodeName": NOWHERE})]


async def test_pods_that_could_not_preempt_are_retried_ever_less_often() -> None:
    world, api = World(), PatchServer()
    annotations = {GROUP: "train", MIN_AVAILABLE: "2"}
    first, last = (pod(f"train-{number}", 8, annotations=annotations) for number in range(2))
    world.add(node("n0"), first)
    world.fill("n0")
    async with requeuing(world, api) as requeuer:
        requeuer.waits_for_peers(first)
        await asyncio.sleep(30)
        assert not api.taken
        world.add(last)
        await asyncio.sleep(30)
        times = [time for time, _, _ in api.taken]
        gaps = [later - earlier for earlier, later in pairwise(times)]
        assert times[0] == pytest.approx(30, abs=2 * PERIOD_S)
        assert gaps == pytest.approx([2, 4, 8], abs=2 * PERIOD_S)
        requeuer.on_judgement(first.uid)
        await asyncio.sleep(60)
        assert len(api.taken) == len(times)


@pytest.mark.parametrize("error", [Conflict("changed", status=409), ApiError("forbidden", status=403)])
async def test_a_retry_that_fails_is_tried_again(error: ApiError) -> None:
    world, api = World(), PatchServer()
    world.add(node("n0"), waits := pod("waits", 8))
    world.fill("n0")
    api.errors = [error]
    async with requeuing(world, api) as requeuer:
        requeuer.retry(waits)
        await asyncio.sleep(2.9)
        assert [name for _, name, _ in api.taken] == ["waits"]
