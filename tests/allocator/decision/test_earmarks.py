"""A waiting gang is not starved by smaller pods: nodes that drain are kept for it."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.earmarks import PATIENCE_S
from allocator.decision.engine import DecisionEngine
from allocator.state.promises import Promise
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.kubeflow import KubeflowJob
from ascend.kube.objects import Metadata, Pod
from ascend.kube.workloads import BatchJob, BatchJobSpec, BatchJobStatus
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod, report

MESHES = {TYPE: "module-910b-8"}
NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def gang(job: str, count: int, *, chips: int = 8, **more: Any) -> list[Pod]:
    annotations = {GROUP: job, MIN_AVAILABLE: str(count)}
    return [pod(f"{job}-{number}", chips, annotations=annotations, **more) for number in range(count)]


def world_of(nodes: int, *pods: Pod, share: float = 1.0, loans: int = 0) -> World:
    world = World()
    world.engine = DecisionEngine(
        world.cluster, world.ledger, earmark_share=share, loans=loans, now_s=lambda: NOW_S + world.now_s - 100
    )
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(nodes)), *pods)
    return world


def holder(name: str, on: str, chips: Iterable[int] = range(8), *, limit_s: int | None = None, **more: Any) -> Pod:
    """A running pod that holds chips, and may have to end in time."""
    held = list(chips)
    running = pod(name, len(held), node=on, chips=held, phase="Running", **more)
    return replace(
        running,
        spec=replace(running.spec, active_deadline_seconds=limit_s),
        status=replace(running.status, start_time="2026-01-01T00:00:00Z"),
    )


def limited(each: Pod, limit_s: int) -> Pod:
    return replace(each, spec=replace(each.spec, active_deadline_seconds=limit_s))


def end(world: World, name: str) -> None:
    world.cluster.pod_deleted(world.cluster.pods[f"uid-{name}"])


def places(world: World, each: Pod) -> str:
    """The node of a pod; empty if it has to wait."""
    world.add(each)
    try:
        return world.engine.place(each).node
    except Refusal:
        return ""


def test_servers_that_become_free_are_kept_for_the_gang_one_after_the_other() -> None:
    pods = gang("big", 2)
    world = world_of(4, *(holder(f"s{number}", f"n{number}") for number in range(4)), *pods)
    assert not places(world, pods[0])
    for number in (3, 1):
        end(world, f"s{number}")
        assert not places(world, pod(f"late-{number}", 1))
    assert {places(world, each) for each in pods} == {"n1", "n3"}
    assert "job default/big" not in {each.what for each in world.ledger.promises}


def test_a_gang_that_no_scheduler_has_called_for_is_kept_nodes_as_well() -> None:
    # kube-scheduler does not call while no node has enough chips.
    world = world_of(3, *(holder(f"s{number}", f"n{number}") for number in range(3)), *gang("big", 2))
    end(world, "s2")
    assert not places(world, pod("late", 8))


def test_more_important_pods_and_other_nodes_are_not_affected() -> None:
    world = world_of(4, *(holder(f"s{number}", f"n{number}", range(6)) for number in range(4)), *gang("big", 2))
    assert places(world, pod("other", 2)) == "n2"
    assert places(world, pod("important", 2, priority=1)) == "n3"  # it takes kept chips only if it fits nowhere else
    assert not places(world, pod("third", 2))
    assert places(world, pod("urgent", 2, priority=1)) == "n0"
    assert world.ledger.promises  # and that does not end the earmark


@pytest.mark.parametrize(("share", "kept"), [(0.0, False), (0.49, False), (0.5, True)])
def test_no_more_than_a_share_of_the_cluster_is_kept(share: float, kept: bool) -> None:  # noqa: FBT001 - a parameter
    world = world_of(4, *(holder(f"s{number}", f"n{number}") for number in range(4)), *gang("big", 2), share=share)
    end(world, "s0")
    assert bool(places(world, pod("late", 8))) is not kept


def test_nothing_is_kept_for_a_gang_that_would_not_fit_on_an_empty_cluster() -> None:
    world = world_of(2, holder("s0", "n0"), holder("s1", "n1"), *gang("big", 3))
    end(world, "s0")
    assert places(world, pod("late", 8)) == "n0"


def test_the_oldest_gang_of_the_highest_priority_comes_first() -> None:
    young = gang("young", 2, since="2026-01-02T00:00:00Z")
    old = gang("old", 2, since="2026-01-01T00:00:00Z")
    urgent = gang("urgent", 2, since="2026-01-03T00:00:00Z", priority=1)
    world = world_of(4, *(holder(f"s{number}", f"n{number}", priority=2) for number in range(4)), *young, *old)
    world.engine.filter(pod("any", 1))
    assert [promise.what for promise in world.ledger.promises] == ["job default/old"]
    world.add(*urgent)
    world.engine.filter(pod("any", 1))
    assert [promise.what for promise in world.ledger.promises] == ["job default/urgent"]
    for each in urgent:
        world.cluster.pod_deleted(each)
    world.engine.filter(pod("any", 1))
    assert [promise.what for promise in world.ledger.promises] == ["job default/old"]
    end(world, "s0")
    assert not places(world, young[0])


@pytest.mark.parametrize(("tries", "first"), [((0, 0), "old"), ((1, 0), "new"), ((1, 1), "old")])
def test_a_gang_that_has_had_chips_in_vain_less_often_comes_before_an_older_one(
    tries: tuple[int, int], first: str
) -> None:
    gangs = [gang("old", 2), gang("new", 2, since="2026-01-02T00:00:00Z")]
    world = world_of(2, *gangs[0], *gangs[1])
    gone = [holder(f"s{number}", f"n{number}") for number in range(2)]
    for pods, times in zip(gangs, tries, strict=True):
        for _ in range(times):
            for each in pods:
                places(world, each)
            job = world.cluster.jobs.job_of(pods[0])
            world.engine.gangs.step_back(job, (), "a test says so")
            world.add(*gone)
            for each in pods:
                assert not places(world, each)
            assert world.engine.gangs.queue.get(job) is None
            for each in gone:
                world.cluster.pod_deleted(each)
    world.add(*gone)
    for pods in gangs:
        assert not places(world, pods[0])
    assert [promise.what for promise in world.ledger.promises] == [f"job default/{first}"]


def test_a_pod_that_ends_before_the_nodes_have_drained_may_use_them() -> None:
    world = world_of(2, holder("s0", "n0", limit_s=1000), holder("s1", "n1", limit_s=500), *gang("big", 2))
    end(world, "s1")
    assert not places(world, pod("unlimited", 8))
    assert not places(world, limited(pod("long", 8), 1001))
    assert places(world, limited(pod("short", 8), 999)) == "n1"
    assert world.ledger.promises


def test_no_pod_may_use_the_nodes_if_it_is_unknown_when_they_have_drained() -> None:
    world = world_of(3, holder("s0", "n0"), holder("s1", "n1", limit_s=1000), holder("s2", "n2"), *gang("big", 2))
    end(world, "s2")
    assert not places(world, limited(pod("short", 8), 1))
    world.add(holder("s0", "n0", limit_s=10))
    assert places(world, limited(pod("shorter", 8), 9)) == "n2"


def batch(name: str, limit_s: int | None, *, started: str = "", uid: str = "u") -> BatchJob:
    return BatchJob(
        metadata=Metadata(name, "default", uid),
        spec=BatchJobSpec(active_deadline_seconds=limit_s),
        status=BatchJobStatus(started),
    )


def torch(limit_s: int | None, *, started: str | None = None) -> KubeflowJob:
    run = {"activeDeadlineSeconds": limit_s} if limit_s is not None else {}
    spec = {"runPolicy": run, "pytorchReplicaSpecs": {"Master": {"replicas": 1}}}
    document = {"metadata": {"name": "torch", "namespace": "default"}, "spec": spec, "status": {"startTime": started}}
    return msgspec.convert(document, KubeflowJob)


def test_the_deadline_of_a_kubeflow_job_counts_for_its_pods_from_its_start() -> None:
    world = world_of(2, holder("s0", "n0"), holder("s1", "n1", limit_s=301), *gang("big", 2))
    end(world, "s0")
    short, jobs = owned_by(pod("short", 8), "PyTorchJob", "kubeflow.org/v1", name="torch"), world.cluster.jobs
    for limit_s, started in ((None, None), (302, None), (600, "2025-12-31T23:55:02Z")):
        jobs.source_applied("PyTorchJob", torch(limit_s, started=started))
        assert not places(world, short)
    jobs.source_applied("PyTorchJob", torch(600, started="2025-12-31T23:55:00Z"))  # it has 300 s left
    assert places(world, short) == "n0"


def test_the_deadline_of_a_job_counts_for_its_pods_from_its_start() -> None:
    held = [holder("s0", "n0"), owned_by(holder("s1", "n1"), "Job", "batch/v1", name="running")]
    world = world_of(2, *held, *gang("big", 2))
    end(world, "s0")
    late = owned_by(pod("late", 8), "Job", "batch/v1", name="waiting")
    jobs = world.cluster.jobs
    jobs.owners.apply(batch("waiting", 600, started="2025-12-31T23:55:00Z"))  # it has 300 s left
    assert not places(world, late)  # it is unknown when the other one ends
    jobs.owners.apply(batch("running", 299, started="2026-01-01T00:00:00Z"))
    assert not places(world, late)
    jobs.owners.apply(batch("running", 301, started="2026-01-01T00:00:00Z", uid="of a former one"))
    assert not places(world, late)
    jobs.owners.apply(batch("running", 301, started="2026-01-01T00:00:00Z"))
    assert not places(world, limited(pod("long", 8), 302))
    assert places(world, late) == "n0"


def test_of_the_deadlines_of_a_pod_and_its_job_the_earlier_counts() -> None:
    world = world_of(2, holder("s0", "n0"), holder("s1", "n1", limit_s=100), *gang("big", 2))
    end(world, "s0")
    world.cluster.jobs.owners.apply(batch("long", 1000))  # it has not started yet
    late = owned_by(pod("late", 8), "Job", "batch/v1", name="long")
    assert not places(world, late)
    assert not places(world, limited(late, 101))
    assert places(world, limited(late, 99)) == "n0"


def test_a_gang_that_does_not_use_free_nodes_lets_others_pass() -> None:
    world = world_of(2, holder("s0", "n0"), *gang("big", 2))  # its scheduler never places it
    end(world, "s0")
    late = pod("late", 8)
    assert not places(world, late)
    world.now_s += 10
    assert not places(world, late)
    world.now_s += PATIENCE_S + 1
    assert places(world, late)


@given(
    held=st.lists(st.integers(0, 8), min_size=2, max_size=6),
    ends=st.lists(st.integers(0, 5), max_size=12),
    size=st.integers(2, 4),
)
def test_a_gang_starts_once_enough_servers_have_drained(held: list[int], ends: list[int], size: int) -> None:
    # One pod per chip, so that servers are free in part; after every end small pods try to take what is free.
    world = world_of(len(held), *gang("big", size))
    for number, chips in enumerate(held):
        world.add(*(holder(f"s{number}-{chip}", f"n{number}", [chip]) for chip in range(chips)))
    thieves = 0
    while size <= len(held):
        if places(world, world.cluster.pods["uid-big-0"]):
            break
        drained = [each.name for each in world.cluster.pods.values() if each.name.startswith("s")]
        order = ends.pop() if ends else 0
        end(world, drained[order % len(drained)])
        for _ in range(8):
            thieves += bool(places(world, pod(f"thief-{world.ledger.expired_total}-{thieves}", 1)))
    else:
        assert not world.ledger.promises
    assert thieves <= 8 * max(len(held) - size, 0)


def kept(world: World) -> dict[str, int]:
    """The chips that are kept, by node."""
    return {name: chips for promise in world.ledger.promises for name, chips in promise.chips.items()}


@example(held=[0, 0, 0], gangs=[2], alone=0, steps=[("come", 0), ("sick", 1)])
@given(
    held=st.lists(st.integers(0, 8), min_size=3, max_size=6),
    gangs=st.lists(st.integers(1, 3), max_size=3),
    alone=st.integers(0, 2),
    steps=st.lists(
        st.tuples(st.sampled_from(["end", "come", "place", "sick", "wait"]), st.integers(0, 47)), max_size=15
    ),
)
def test_what_is_kept_is_what_would_be_chosen_from_all_that_is_known(
    held: list[int], gangs: list[int], alone: int, steps: list[tuple[str, int]]
) -> None:
    pods = [each for number, size in enumerate(gangs) for each in gang(f"g{number}", size + 1)]
    world = world_of(len(held), *pods)
    running = [holder(f"s{on}-{chip}", f"n{on}", [chip]) for on, count in enumerate(held) for chip in range(count)]
    world.add(*running)
    names = [each.name for each in running]
    pods += [pod(f"alone-{number}", 8) for number in range(alone)]
    for what, number in steps:
        on = number % len(held)
        if what == "end" and names:
            end(world, names.pop(number % len(names)))
        elif what == "come":
            places(world, pod(f"late-{number}", 1 + number % 4))
        elif what == "place" and pods:
            places(world, pods[number % len(pods)])
        elif what == "sick":
            world.add(report(f"n{on}", unhealthy=range(number % 3)))
        else:
            world.now_s += number
        world.engine.filter(pod("any", 1))
        earmarks = world.engine.earmarks
        earmarks.choose()  # on nodes that are no longer kept for another job
        found, earmarks._basis = kept(world), None
        earmarks._seen = (-1, (0, 0, 0), earmarks._seen[-1])
        earmarks.choose()
        assert kept(world) == found


async def choose(world: World, between: Iterable[Callable[[], object]] = ()) -> int:
    """Have nodes chosen in the background, while one thing happens in each turn of the loop; the number of turns."""
    world.engine.earmarks.update()
    choosing, turns = asyncio.create_task(world.engine.earmarks.run()), 0
    things, seen = iter(between), -1
    while seen != world.cluster.changes.revision or turns < 500:
        seen = world.cluster.changes.revision
        await asyncio.sleep(0)
        turns += 1
        if (thing := next(things, None)) is not None:
            thing()
    choosing.cancel()
    await asyncio.gather(choosing, return_exceptions=True)
    return turns


@pytest.fixture
def in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each step takes a turn
    monkeypatch.setattr("allocator.decision.earmarks._STEP", 1)
    monkeypatch.setattr("allocator.decision.waiting_jobs.MANY", 1)
    monkeypatch.setattr("allocator.decision.earmarks.MANY", 1)


@pytest.mark.usefixtures("in_small_pieces")
async def test_nodes_for_a_large_gang_are_chosen_in_the_background() -> None:
    world = world_of(60, *(holder(f"s{number}", f"n{number}") for number in range(60)), *gang("big", 40))
    world.engine.filter(pod("any", 1))
    assert not kept(world)
    sizes = set()
    await choose(world, [lambda: sizes.add(len(kept(world)))] * 400)
    assert len(kept(world)) == 40
    assert sizes >= set(range(1, 40))  # other tasks have run in between


@pytest.mark.usefixtures("in_small_pieces")
@given(held=st.lists(st.integers(0, 8), min_size=2, max_size=8), size=st.integers(2, 5))
def test_the_choice_in_the_background_is_that_before_a_decision(held: list[int], size: int) -> None:
    def crowded() -> World:
        world = world_of(len(held), *gang("big", size))
        for number, chips in enumerate(held):
            world.add(*(holder(f"s{number}-{chip}", f"n{number}", [chip]) for chip in range(chips)))
        return world

    at_once = crowded()
    with mock.patch("allocator.decision.waiting_jobs.MANY", 64), mock.patch("allocator.decision.earmarks.MANY", 64):
        at_once.engine.filter(pod("any", 1))
    world = crowded()
    asyncio.run(choose(world))
    assert kept(world) == kept(at_once)


@pytest.mark.usefixtures("in_small_pieces")
@pytest.mark.parametrize("turn", range(40))
async def test_a_promise_made_while_nodes_are_chosen_is_not_overwritten(turn: int) -> None:
    world = world_of(5, *(holder(f"s{number}", f"n{number}") for number in range(5)), *gang("big", 4))
    other = Promise("uid-other", "pod default/other", 9, {"n3": 0xFF}, 1e9)
    await choose(world, [*[lambda: None] * turn, lambda: world.ledger.promises.keep(other)])
    assert world.ledger.promises.get("uid-other") is other
    assert "n3" not in {name for each in world.ledger.promises if each.drains for name in each.chips}


@pytest.mark.usefixtures("in_small_pieces")
async def test_the_nodes_of_a_large_gang_are_given_back_in_the_background() -> None:
    world = world_of(60, *(holder(f"s{number}", f"n{number}") for number in range(60)), *(pods := gang("big", 40)))
    await choose(world)
    for number in range(40):
        end(world, f"s{number}")
    assert places(world, pods[0])
    assert len(kept(world)) == 40
    sizes = set()
    await choose(world, [lambda: sizes.add(len(kept(world)))] * 400)
    assert not kept(world)
    assert sizes >= set(range(1, 40))


def test_seats_that_are_held_in_vain_on_the_nodes_do_not_prolong_the_patience() -> None:
    # For reasons that only their scheduler knows neither the older gang starts, nor the one that the nodes drain for.
    big, old = gang("big", 3), gang("old", 2, chips=4, since="2025-01-01T00:00:00Z")
    world = world_of(3, holder("s0", "n0"), holder("s1", "n1"), holder("s2", "n2"), *big)
    for number in range(3):
        assert not places(world, pod(f"late-{number}", 1))
        end(world, f"s{number}")
    world.add(*old)
    job = world.cluster.jobs.job_of(old[0])
    world.engine.gangs.step_back(job, (), "a test says so")
    for _ in range(round(PATIENCE_S / 10) + 2):
        for each in old:
            places(world, each)  # the first time at least; then it may be the turn of the other gang
        world.now_s += 10
        with pytest.raises(Refusal):
            world.engine.place(big[0], ["n0", "n1"])
        world.engine.gangs.step_back(job, (), "a test says so")
    assert places(world, pod("late", 8))
