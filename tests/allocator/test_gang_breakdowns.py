"""A planned place that is no good any more: the whole plan is given up, or only that place where somebody is bound."""

from collections.abc import Iterator
from unittest import mock

import pytest

from allocator.state.job import Job
from allocator.state.reservation import Stage
from ascend.chips import chip_ids
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod, report
from tests.allocator.gangs import MESHES, bind, gang, reason, world_of


def test_a_plan_whose_node_breaks_down_is_made_anew_while_nobody_is_bound() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    world.add(*pods)
    world.engine.place(pods[0])
    world.add(node("n0", ready=False))
    assert [world.engine.place(each).node for each in pods] == ["n1", "n2", "n3"]
    world.add(report("n2", unhealthy=[3]))
    assert reason(world, pods[1]) == "GangDoesNotFit"
    assert len(world.ledger) == 0


def test_when_the_rest_of_a_gang_is_resumed_the_broken_plan_of_another_is_given_up() -> None:
    world = world_of(4)
    world.add(*(broken := gang("broken", 2)), *(begun := gang("train", 1, minimum=2)))
    world.engine.place(broken[0])
    world.add(node("n0", cordoned=True))
    bound = pod(begun[0].name, 8, node="n2", chips=range(8), phase="Running", annotations=begun[0].metadata.annotations)
    world.add(bound, *(rest := gang("train", 1, minimum=2, first=1)))
    assert world.engine.gangs.resume() == []
    assert {each.uid for each in world.ledger} == {rest[0].uid}


@pytest.mark.parametrize("bound", [False, True])
def test_a_filter_answers_the_node_of_the_next_plan_where_the_planned_one_has_broken_down(bound: bool) -> None:  # noqa: FBT001 - a column of the table
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


def test_a_filter_gives_up_the_peers_places_with_the_planned_one_that_has_broken_down() -> None:
    world = world_of(2, **MESHES)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    # The peer's seat is still usable, but a plan is dropped as a whole.
    world.add(node("n0", labels=MESHES, cordoned=True), *(node(f"o{number}", labels=MESHES) for number in range(2)))
    assert world.engine.filter(pods[0]).fitting == ["n1"]
    assert [world.engine.place(each).node for each in pods] == ["n1", "o0"]


def test_a_filter_counts_a_late_pod_s_own_chips_as_free_where_its_planned_place_has_broken_down() -> None:
    world = world_of(1, **MESHES)
    pods = gang("train", 2, chips=2)
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    bind(world, pods[1])
    held = world.engine.place(pods[0])
    free = chip_ids(0xFF & ~held.taken & ~world.cluster.nodes["n0"].held)
    world.add(pod("busy", len(free) - 1, node="n0", chips=free[1:], phase="Running"))
    world.add(report("n0", unhealthy=[held.chips[0]]))
    assert world.engine.filter(pods[0]).fitting == ["n0"]
    assert world.engine.place(pods[0]).node == "n0"


@pytest.mark.parametrize("asking", range(3))
def test_no_pod_of_a_gang_is_bound_whose_peer_s_place_has_broken_down(asking: int) -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    world.add(node("n1", cordoned=True))
    assert reason(world, pods[asking]) == "GangDoesNotFit"
    assert len(world.ledger) == 0
    world.add(node("n3"))
    assert {bind(world, each).spec.node_name for each in pods} == {"n0", "n2", "n3"}


def test_a_broken_seat_of_a_gang_that_has_begun_costs_later_decisions_no_look_at_its_pods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[Job] = []
    newest = vars(Job)["newest"].fget

    def counted(job: Job) -> Iterator[Pod]:
        looks.append(job)
        yield from newest(job)

    monkeypatch.setattr(Job, "newest", property(counted))
    world = world_of(6)
    world.add(*(pods := gang("train", 4)))
    bound = [bind(world, each) for each in pods[:2]]
    looks.clear()
    world.add(node("n2", cordoned=True))
    for number in range(5):
        world.engine.place(pod(f"other-{number}", 1))
    assert len(looks) == 1
    for each, left in zip(reversed(bound), (2, 0), strict=True):
        assert world.ledger.count(Stage.PLANNED) == 2
        world.cluster.pod_deleted(each)
        world.engine.place(pod("other", 1))
        assert world.ledger.count(Stage.PLANNED) == left


def test_places_that_were_found_just_now_are_not_looked_at_again() -> None:
    world = world_of(20)
    world.add(*(pods := gang("train", 20)))
    world.engine.place(pods[0])
    with mock.patch.object(world.cluster, "suits", wraps=world.cluster.suits) as looks:
        world.engine.place(pods[1])
    assert looks.call_count < 5
    world.add(node("n19", cordoned=True))
    assert reason(world, pods[1]) == "GangDoesNotFit"


def test_a_seat_one_chip_of_which_has_failed_is_given_up_however_many_others_are_free_there() -> None:
    world = world_of(1, **MESHES)
    world.add(*(pods := gang("train", 2, chips=2)))
    failed = world.engine.place(pods[0]).chips[0]
    world.add(report("n0", unhealthy=[failed]))
    seats = [world.engine.place(each).chips for each in pods]
    assert failed not in {chip for seat in seats for chip in seat}


def test_a_seat_on_a_server_that_turns_out_to_be_another_product_is_given_up() -> None:
    world = World(default_product="910B-8")
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(2)), *(pods := gang("train", 2, chips=2)))
    assert [world.engine.place(each).node for each in pods] == ["n0", "n0"]
    world.add(node("n0"))
    assert [world.engine.place(each).node for each in pods] == ["n1", "n1"]


def test_the_places_of_a_gang_that_can_not_begin_any_more_are_free_for_others_at_once() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    world.add(report("n1", unhealthy=[3]))
    assert world.engine.place(pod("other", 8)).node == "n0"


def test_a_pod_whose_node_breaks_down_later_gets_another_place_beside_its_running_peers() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    world.add(*pods)
    bind(world, pods[0])
    place = world.engine.place(pods[1])
    world.add(node(place.node, ready=False))
    assert world.engine.place(pods[1]).node == "n3"
    assert {world.engine.place(each).node for each in pods[1:]} == {"n3", "n2"}


def test_a_plan_is_not_given_up_for_what_was_wrong_with_that_of_a_job_of_the_same_name_before() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    running = bind(world, pods[0])
    broken = world.engine.place(pods[1]).node
    world.add(node(broken, ready=False))
    world.engine.filter(pod("looks"))
    for each in (pods[1], running):
        world.cluster.pod_deleted(each)
    world.engine.filter(pod("looks"))
    world.add(node(broken), *(pods := gang("train", 2, first=2)))
    world.engine.place(pods[0])
    world.add(node("n2"))
    world.engine.filter(pod("looks"))
    assert all(world.ledger.get(each.uid) for each in pods)
