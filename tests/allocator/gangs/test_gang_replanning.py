"""Plans that break and plans after a restart: a plan is remade as a whole, or seat by seat once a pod is bound."""

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest

from allocator.state.job import Job
from allocator.state.reservation import Stage
from ascend.chips import chip_ids
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.takes import Take
from tests.allocator.builders import World, node, pod, report
from tests.allocator.gangs.builders import MESHES, bind, gang, reason, world_of


def test_a_plan_is_remade_if_a_node_fails_before_a_pod_is_bound() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    world.add(*pods)
    world.engine.place(pods[0])
    world.add(node("n0", ready=False))
    assert [world.engine.place(each).node for each in pods] == ["n1", "n2", "n3"]
    world.add(report("n2", unhealthy=[3]))
    assert reason(world, pods[1]) is Reason.GANG_DOES_NOT_FIT
    assert len(world.ledger) == 0


def test_resuming_a_gang_drops_the_broken_plan_of_another() -> None:
    world = world_of(4)
    world.add(*(broken := gang("broken", 2)), *(begun := gang("train", 1, minimum=2)))
    world.engine.place(broken[0])
    world.add(node("n0", cordoned=True))
    bound = pod(begun[0].name, 8, node="n2", chips=range(8), phase="Running", annotations=begun[0].metadata.annotations)
    world.add(bound, *(rest := gang("train", 1, minimum=2, first=1)))
    assert asyncio.run(world.engine.resume()) == []
    assert {each.uid for each in world.ledger} == {rest[0].uid}


@pytest.mark.parametrize("bound", [False, True])
def test_filter_returns_the_node_of_the_next_plan(bound: bool) -> None:  # noqa: FBT001 - a column of the table
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    if bound:
        bind(world, pods[1])
    world.add(*(node(f"n{number}", cordoned=True) for number in range(2)), *(node(f"o{number}") for number in range(2)))
    kept = {each.uid: each for each in world.ledger} if bound else {}
    assert world.engine.filter(pods[0]).fitting == ["o0"]
    assert world.engine.rank(pods[0])[0].nodes == ["o0"]
    assert {each.uid: each for each in world.ledger} == kept
    assert world.engine.place(pods[0]).node == "o0"


def test_filter_drops_a_broken_plan_as_a_whole() -> None:
    world = world_of(2, **MESHES)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    # The peer's seat is still usable, but a plan is dropped as a whole.
    world.add(node("n0", labels=MESHES, cordoned=True), *(node(f"o{number}", labels=MESHES) for number in range(2)))
    assert world.engine.filter(pods[0]).fitting == ["n1"]
    assert [world.engine.place(each).node for each in pods] == ["n1", "o0"]


def test_filter_counts_the_chips_of_a_pods_broken_seat_as_free() -> None:
    world = world_of(1, **MESHES)
    pods = gang("train", 2, chips=2)
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    bind(world, pods[1])
    held = world.engine.place(pods[0])
    free = chip_ids(0xFF & ~held.take.chip_set & ~world.cluster.nodes["n0"].held)
    world.add(pod("busy", len(free) - 1, node="n0", chips=free[1:], phase="Running"))
    world.add(report("n0", unhealthy=[held.take.chips[0]]))
    assert world.engine.filter(pods[0]).fitting == ["n0"]
    assert world.engine.place(pods[0]).node == "n0"


@pytest.mark.parametrize("number", range(3))
def test_no_pod_is_placed_while_a_peers_seat_is_broken(number: int) -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    world.add(node("n1", cordoned=True))
    assert reason(world, pods[number]) is Reason.GANG_DOES_NOT_FIT
    assert len(world.ledger) == 0
    world.add(node("n3"))
    assert {bind(world, each).spec.node_name for each in pods} == {"n0", "n2", "n3"}


def test_a_broken_seat_of_a_begun_gang_is_examined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Job] = []
    newest = vars(Job)["newest"].fget

    def counted(job: Job) -> Iterator[Pod]:
        reads.append(job)
        yield from newest(job)

    monkeypatch.setattr(Job, "newest", property(counted))
    world = world_of(6)
    world.add(*(pods := gang("train", 4)))
    bound = [bind(world, each) for each in pods[:2]]
    reads.clear()
    world.add(node("n2", cordoned=True))
    for number in range(5):
        world.engine.place(pod(f"other-{number}", 1))
    assert len(reads) == 1
    for each, left in zip(reversed(bound), (2, 0), strict=True):
        assert world.ledger.count(Stage.PLANNED) == 2
        world.cluster.pod_deleted(each)
        world.engine.place(pod("other", 1))
        assert world.ledger.count(Stage.PLANNED) == left


def test_seats_that_were_just_planned_are_not_examined_again() -> None:
    world = world_of(20)
    world.add(*(pods := gang("train", 20)))
    world.engine.place(pods[0])
    with mock.patch.object(world.cluster, "suits", wraps=world.cluster.suits) as suits:
        world.engine.place(pods[1])
    assert suits.call_count < 5
    world.add(node("n19", cordoned=True))
    assert reason(world, pods[1]) is Reason.GANG_DOES_NOT_FIT


def test_a_seat_with_a_failed_chip_is_dropped() -> None:
    world = world_of(1, **MESHES)
    world.add(*(pods := gang("train", 2, chips=2)))
    failed = world.engine.place(pods[0]).take.chips[0]
    world.add(report("n0", unhealthy=[failed]))
    seats = [world.engine.place(each).take.chips for each in pods]
    assert failed not in {chip for seat in seats for chip in seat}


def test_a_seat_on_a_server_of_another_product_is_dropped() -> None:
    world = World(default_product="910B-8")
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(2)), *(pods := gang("train", 2, chips=2)))
    assert [world.engine.place(each).node for each in pods] == ["n0", "n0"]
    world.add(node("n0"))
    assert [world.engine.place(each).node for each in pods] == ["n1", "n1"]


def test_a_gang_that_can_no_longer_begin_releases_its_seats() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    world.add(report("n1", unhealthy=[3]))
    assert world.engine.place(pod("other", 8)).node == "n0"


def test_a_pod_gets_another_seat_beside_its_bound_peers() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    world.add(*pods)
    bind(world, pods[0])
    place = world.engine.place(pods[1])
    world.add(node(place.node, ready=False))
    assert world.engine.place(pods[1]).node == "n3"
    assert {world.engine.place(each).node for each in pods[1:]} == {"n3", "n2"}


def test_a_new_job_does_not_inherit_the_broken_plan_of_its_name() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    running = bind(world, pods[0])
    broken = world.engine.place(pods[1]).node
    world.add(node(broken, ready=False))
    world.engine.filter(pod("another"))
    for each in (pods[1], running):
        world.cluster.pod_deleted(each)
    world.engine.filter(pod("another"))
    world.add(node(broken), *(pods := gang("train", 2, first=2)))
    world.engine.place(pods[0])
    world.add(node("n2"))
    world.engine.filter(pod("another"))
    assert all(world.ledger.get(each.uid) for each in pods)


def test_after_a_restart_the_rest_of_a_gang_is_planned_first() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    before = World()
    before.add(*(node(f"n{number}") for number in range(3)), *pods)
    world.add(bind(before, pods[0]), *pods[1:])
    assert asyncio.run(world.engine.resume()) == []
    assert world.ledger.count(Stage.PLANNED) == 2
    assert reason(world, pod("other", 1)) is Reason.NOT_ENOUGH_CHIPS
    assert {world.engine.place(each).node for each in pods[1:]} == {"n1", "n2"}


def test_after_a_restart_an_invalid_pod_does_not_hold_up_its_gang() -> None:
    world = world_of(3)
    pods = gang("train", 4, minimum=3)
    bound = pod("train-0", 8, node="n0", chips=range(8), phase="Running", annotations=pods[0].metadata.annotations)
    invalid = pod("train-1", 17, annotations=pods[1].metadata.annotations)
    world.add(bound, invalid, *pods[2:])
    assert asyncio.run(world.engine.resume()) == []
    assert {each.uid for each in world.ledger} == {each.uid for each in pods[2:]}


def test_after_a_restart_a_gang_is_planned_beside_bindings_in_flight() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    bound = pod("train-0", 8, node="n0", chips=range(8), phase="Running", annotations=pods[0].metadata.annotations)
    world.add(bound, *pods[1:])
    stage = Stage.DOUBTFUL
    world.ledger.reserve(uid=pods[1].uid, pod=pods[1].key, node="n1", take=Take.whole(range(8)), stage=stage)
    world.add(node("n1", cordoned=True))
    assert asyncio.run(world.engine.resume()) == []
    assert [(each.node, each.stage) for each in world.ledger] == [("n1", stage), ("n2", Stage.PLANNED)]


def test_after_a_restart_a_gang_without_bound_pods_is_not_planned() -> None:
    world = world_of(3)
    world.add(*gang("train", 3))
    assert asyncio.run(world.engine.resume()) == []
    assert len(world.ledger) == 0


def test_the_pods_of_a_gang_that_has_stepped_back_are_not_all_examined_for_each_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(6)
    world.add(*(pods := gang("train", 4)))
    world.engine.gangs.step_back(world.cluster.jobs.job_of(pods[0]), (), "a test says so")
    newest = mock.PropertyMock(return_value=iter(()))
    monkeypatch.setattr(Job, "newest", newest)
    for each in pods[:3]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    newest.assert_not_called()


async def test_resuming_many_jobs_yields_to_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ascend.turn.LIMIT_S", -1.0)  # each job takes a turn
    world = world_of(2)
    world.add(*(pod(f"alone-{number}", 1) for number in range(100)))
    resuming = asyncio.create_task(world.engine.resume())
    turns = 0
    while not resuming.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 100
