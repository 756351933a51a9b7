"""A refused pod is looked at again once it would fit, although its scheduler saw no reason to."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest

from allocator.metrics import AllocatorMetrics
from allocator.rules.job import VOLCANO
from allocator.serving.requeue import FORGET_S, LONGEST_WAIT_S, PERIOD_S, Requeuer
from ascend.annotations import MIN_AVAILABLE, REQUEUED
from ascend.errors import NotFound, Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Metadata, OwnerReference, Pod, PodGroup, PodGroupSpec, StatefulSet, StatefulSetSpec
from tests.allocator.builders import World, node, pod, report

pytestmark = pytest.mark.looptime


class Patches:
    """The API server as far as it is asked: it takes patches, or does not answer."""

    def __init__(self) -> None:
        self.taken: list[tuple[float, str, dict[str, Any]]] = []
        self.answers = True
        self.gone: set[str] = set()

    async def patch(self, _resource: object, name: str, body: dict[str, Any], *, namespace: str) -> None:
        if not self.answers:
            raise Unreachable("no answer")
        assert namespace == "default"
        if name in self.gone:
            raise NotFound("gone", status=404)
        self.taken.append((asyncio.get_running_loop().time(), name, body))


@asynccontextmanager
async def reconsidering(
    world: World, api: Patches, clock: Callable[[], float] | None = None
) -> AsyncIterator[Requeuer]:
    loop = asyncio.get_running_loop()
    reconsideration = Requeuer(
        cast("KubeClient", api),
        world.cluster,
        world.engine,
        AllocatorMetrics(world.ledger, lambda: None, world.cluster.index),
        monotonic=clock or loop.time,
        now_ns=lambda: int(loop.time() * 1e9),
    )
    task = asyncio.create_task(reconsideration.run())
    try:
        yield reconsideration
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_that_fits_again_is_touched_and_one_that_does_not_is_left() -> None:
    world, api = World(), Patches()
    world.cluster.node_applied(node("n1"))
    world.cluster.report_applied(report("n1", unhealthy=(5,)))
    waits, too_big = pod("waits", 4), pod("too-big", 8)
    async with reconsidering(world, api) as reconsideration:
        for each in (waits, too_big):
            world.cluster.pod_applied(each)
            reconsideration.refused(each)
        world.cluster.pod_applied(pod("other", 4, node="n1", chips=range(4)))
        await asyncio.sleep(10)
        assert not api.taken
        world.cluster.report_applied(report("n1"))
        await asyncio.sleep(1)
        ((_, name, body),) = api.taken
        assert name == "waits"
        assert body["metadata"]["uid"] == waits.uid
        assert list(body["metadata"]["annotations"]) == [REQUEUED]


async def test_a_pod_the_scheduler_asks_about_by_itself_is_left_alone() -> None:
    world, api = World(), Patches()
    world.cluster.node_applied(node("n1"))
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(pod("asked"))
        for _ in range(20):
            await asyncio.sleep(0.6)
            reconsideration.refused(pod("asked"))
        reconsideration.accepted("uid-asked")
        await asyncio.sleep(100)
        assert not api.taken


async def test_a_pod_whose_scheduler_says_no_is_touched_less_and_less_often() -> None:
    # It fits on a node that is none of its candidates: its node selector is the scheduler's business.
    world, api = World(), Patches()
    world.cluster.node_applied(node("n1"))
    picky = pod("picky")
    world.cluster.pod_applied(picky)
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(picky)
        for _ in range(3600):
            await asyncio.sleep(1)
            if api.taken and asyncio.get_running_loop().time() - api.taken[-1][0] < 1:
                reconsideration.refused(picky)
    times = [time for time, _, _ in api.taken]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps == sorted(gaps)
    assert gaps[-1] == pytest.approx(LONGEST_WAIT_S, abs=2)
    assert len(times) < 25


async def test_pods_that_are_bound_finished_or_gone_are_forgotten() -> None:
    world, api = World(), Patches()
    async with reconsidering(world, api) as reconsideration:
        for name in ("bound", "done", "never-seen"):
            reconsideration.refused(pod(name))
        world.cluster.pod_applied(pod("bound", node="n1", chips=[0]))
        world.cluster.pod_applied(pod("done", phase="Failed"))
        await asyncio.sleep(1)
        assert len(reconsideration) == 1
        await asyncio.sleep(FORGET_S)
        assert len(reconsideration) == 0


async def test_an_api_server_that_does_not_answer_is_tried_again_later() -> None:
    world, api = World(), Patches()
    world.cluster.node_applied(node("n1"))
    api.answers = False
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(pod("waits"))
        await asyncio.sleep(5)
        api.answers = True
        await asyncio.sleep(10)
        assert [name for _, name, _ in api.taken] == ["waits"]


async def test_a_pod_deleted_while_it_was_refused_is_forgotten_at_the_first_touch() -> None:
    world, api = World(), Patches()
    world.cluster.node_applied(node("n1"))
    api.gone.add("deleted")
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(pod("deleted"))
        await asyncio.sleep(3)
        assert len(reconsideration) == 0


async def test_when_the_last_pod_of_a_gang_arrives_the_others_are_touched_at_once() -> None:
    world, api = World(), Patches()
    world.add(*(node(f"n{number}") for number in range(3)))
    marks = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "3"}
    pods = [pod(f"train-{number}", 8, annotations=marks) for number in range(3)]
    async with reconsidering(world, api) as reconsideration:
        for each in pods[:2]:
            world.add(each)
            with pytest.raises(Refusal):
                world.engine.place(each)
            reconsideration.refused(each)
        await asyncio.sleep(30)
        assert not api.taken
        arrived_s = asyncio.get_running_loop().time()
        world.add(pods[2])
        world.engine.place(pods[2])
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0", "train-1"]
        assert all(time - arrived_s <= PERIOD_S for time, _, _ in api.taken)


async def test_a_gang_that_fits_again_is_touched_although_each_of_its_pods_fitted_before() -> None:
    world, api = World(), Patches()
    world.add(node("n0"), pod("other", 8, node="n1", chips=range(8)), node("n1"))
    marks = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}
    pods = [pod(f"train-{number}", 8, annotations=marks) for number in range(2)]
    world.add(*pods)
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(pods[0])
        await asyncio.sleep(30)
        assert not api.taken
        world.cluster.pod_deleted(pod("other", 8, node="n1"))
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0"]


async def test_however_many_gangs_wait_others_get_nine_tenths_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    world, api, loop = World(), Patches(), asyncio.get_running_loop()
    pods = [pod(f"train-{number}", 8, annotations={MIN_AVAILABLE: "1000"}) for number in range(600)]
    world.add(*pods)
    looks: list[int] = []
    turns: list[None] = []

    def slow(_pod: Pod) -> bool:
        looks.append(len(turns))
        loop.call_soon(turns.append, None)
        return False

    # A look at one pod takes a millisecond.
    def clock() -> float:
        return loop.time() + len(looks) / 1000

    monkeypatch.setattr(world.engine, "may_fit", slow)
    async with reconsidering(world, api, clock) as reconsideration:
        for each in pods:
            reconsideration.refused(each)
        await asyncio.sleep(54)
    assert 5 < len(looks) / 1000 < 6.6
    assert max(Counter(looks).values()) <= 6


async def test_after_a_look_that_took_very_long_the_next_one_comes_within_half_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, api, loop = World(), Patches(), asyncio.get_running_loop()
    waits = pod("train-0", 8, annotations={MIN_AVAILABLE: "2"})
    world.add(waits)
    looks: list[float] = []

    def held_up(_pod: Pod) -> bool:
        looks.append(loop.time())
        return False

    def clock() -> float:
        return loop.time() + 60 * len(looks)

    monkeypatch.setattr(world.engine, "may_fit", held_up)
    async with reconsidering(world, api, clock) as reconsideration:
        reconsideration.refused(waits)
        await asyncio.sleep(70)
    assert len(looks) >= 3


@pytest.mark.parametrize("change", ["the group comes", "its minimum falls"])
async def test_a_gang_whose_group_changes_is_touched_although_no_node_and_no_pod_does(change: str) -> None:
    world, api = World(), Patches()
    world.add(node("n0"), node("n1"))
    world.cluster.jobs.watched(VOLCANO)
    if change == "its minimum falls":
        world.cluster.jobs.group_applied(VOLCANO, group(3))
    pods = [pod(f"train-{number}", 8, annotations={"scheduling.k8s.io/group-name": "train"}) for number in range(2)]
    world.add(*pods)
    async with reconsidering(world, api) as reconsideration:
        for each in pods:
            reconsideration.refused(each)
        await asyncio.sleep(30)
        assert not api.taken
        world.cluster.jobs.group_applied(VOLCANO, group(2))
        await asyncio.sleep(1)
        assert [name for _, name, _ in api.taken] == ["train-0", "train-1"]


def group(minimum: int) -> PodGroup:
    return PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(minimum))


def of_two(number: int, chips: int = 8) -> Pod:
    """A pod of a StatefulSet of two."""
    made = pod(f"s-{number}", chips)
    owner = OwnerReference(kind="StatefulSet", name="s", uid="u", controller=True)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner]))


def world_of_two() -> World:
    """A 910A server, and a StatefulSet of two."""
    world = World()
    world.add(node("a0", labels={"accelerator-type": "module"}))
    owner = Metadata(name="s", namespace="default")
    world.cluster.jobs.owner_applied(StatefulSet(metadata=owner, spec=StatefulSetSpec(2)))
    return world


async def test_a_pod_refused_again_is_judged_by_what_it_asks_for_now() -> None:
    # Not seen by the informer yet, its request can't be read again.
    world, api = world_of_two(), Patches()
    world.add(of_two(0), pod("busy", 8, node="a0", chips=range(8), phase="Running"))
    async with reconsidering(world, api) as reconsideration:
        reconsideration.refused(of_two(1))
        smaller = pod("s-1", 4)
        world.cluster.jobs.owner_deleted(StatefulSet(metadata=Metadata(name="s", namespace="default")))
        reconsideration.refused(msgspec.structs.replace(smaller, metadata=of_two(1).metadata))
        world.add(
            node("a1", labels={"accelerator-type": "module"}), pod("half", 1, node="a1", chips=[0], phase="Running")
        )
        await asyncio.sleep(2)
        assert [name for _, name, _ in api.taken] == ["s-1"]
