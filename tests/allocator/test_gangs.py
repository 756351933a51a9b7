"""Gangs are placed together or not at all, in whatever order their pods come."""

import random

import msgspec
import pytest

from allocator.rules.job import VOLCANO
from allocator.rules.job_products import SCHEDULE_POLICY as POLICY
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, PodGroup, PodGroupSpec
from tests.allocator.builders import World, node, pod
from tests.allocator.gangs import GROUP, MESHES, TWO, bind, gang, reason, world_of


def test_no_pod_of_a_gang_is_placed_before_as_many_are_there_as_it_needs() -> None:
    world = world_of(4)
    pods = gang("train", 4)
    world.add(*pods[:3])
    with pytest.raises(Refusal, match="4 pods must be placed together, 3 are there, 1 missing") as refused:
        world.engine.place(pods[0])
    assert refused.value.reason == "GangIncomplete"
    assert len(world.ledger) == 0
    filtered = world.engine.filter(pods[0])
    assert {each.reason for each in filtered.refused.values()} == {"GangIncomplete"}
    assert len(filtered.refused) == 4
    world.add(pods[3])
    assert world.engine.place(pods[0]).node


@pytest.mark.parametrize("none", [None, 0])
def test_a_launcher_that_asks_for_no_chips_is_one_of_its_gang_and_needs_no_seat(none: int | None) -> None:
    world = world_of(2)
    launcher = pod("launcher", none, annotations={GROUP: "train", MIN_AVAILABLE: "3"})
    workers = gang("train", 2, minimum=3)
    world.add(*workers)
    assert reason(world, workers[0]) == "GangIncomplete"
    world.add(launcher)
    world.engine.place(workers[0])
    assert world.ledger.count(Stage.PLANNED) == 2
    assert {bind(world, each).spec.node_name for each in workers} == {"n0", "n1"}


@pytest.mark.parametrize("seed", range(4))
def test_all_seats_are_kept_at_once_and_handed_out_in_any_order(seed: int) -> None:
    world = world_of(4)
    pods = gang("train", 4)
    world.add(*pods)
    order = random.Random(seed).sample(pods, 4)
    world.engine.place(order[0])
    assert world.ledger.count(Stage.PLANNED) == 4
    assert reason(world, pod("other", 1)) == "NotEnoughChips"
    assert {world.engine.place(each).node for each in order} == {"n0", "n1", "n2", "n3"}
    for each in order:
        bind(world, each)
    assert len(world.ledger) == 0


def test_consecutive_ranks_are_neighbours() -> None:
    world = world_of(3, **MESHES)
    pods = gang("train", 6, chips=4)
    world.add(*reversed(pods))
    world.engine.place(pods[3])
    assert [world.engine.place(each).node for each in pods] == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_a_gang_that_does_not_fit_whole_keeps_nothing() -> None:
    world = world_of(3)
    pods = gang("train", 4)
    world.add(*pods)
    with pytest.raises(Refusal, match=r"only 3 fit at once.*3 NotEnough") as refused:
        world.engine.place(pods[0])
    assert refused.value.reason == "GangDoesNotFit"
    assert len(world.ledger) == 0
    assert world.engine.place(pod("other", 8)).node == "n0"


def test_of_a_job_larger_than_its_minimum_the_first_ranks_are_placed_where_not_all_fit() -> None:
    world = world_of(3)
    pods = gang("train", 5, minimum=3)
    world.add(*pods)
    assert reason(world, pods[4]) == "GangDoesNotFit"
    assert [each.pod for each in world.ledger.seats(f"{VOLCANO} default/train")] == [each.key for each in pods[:3]]
    for each in pods[:3]:
        bind(world, each)
    world.add(node("n9"))
    assert world.engine.place(pods[4]).node == "n9"


def test_a_filter_answers_the_planned_node_only_and_reserves_nothing() -> None:
    world = world_of(3)
    pods = gang("train", 2)
    world.add(*pods)
    filtered = world.engine.filter(pods[0], ["n1", "n2"])
    assert len(world.ledger) == 0
    assert filtered.fitting == ["n1"]
    assert filtered.refused["n2"].reason == "PlacedWithGang"
    assert world.engine.place(pods[0], ["n1", "n2"]).node == "n1"
    assert world.engine.filter(pods[1], ["n0", "n1", "n2"]).fitting == ["n2"]
    assert world.engine.rank(pods[1], ["n0", "n1", "n2"])[0].nodes == ["n2"]


def test_a_filter_of_a_gang_that_does_not_fit_says_why_on_every_node_and_invites_nobody_to_preempt() -> None:
    world = world_of(3)
    world.occupy("n2", free=[0])
    world.add(node("n3", cordoned=True))
    pods = gang("train", 3)
    world.add(*pods)
    filtered = world.engine.filter(pods[0])
    assert filtered.fitting == []
    assert {name: each.reason for name, each in filtered.refused.items()} == {
        "n0": "GangDoesNotFit",
        "n1": "GangDoesNotFit",
        "n2": "GangDoesNotFit",
        "n3": "NodeCordoned",
    }


def test_a_plan_that_lost_pods_begins_when_their_successors_are_there() -> None:
    world = world_of(3)
    world.add(*(pods := gang("train", 3)))
    world.engine.place(pods[0])
    world.cluster.pod_deleted(pods[2])
    assert [reason(world, each) for each in pods[:2]] == ["GangIncomplete"] * 2
    assert world.engine.filter(pods[0]).fitting == []
    assert not world.engine.may_fit(pods[0])
    assert reason(world, pod("other", 8)) == "NotEnoughChips"
    (successor,) = gang("train", 1, minimum=3, first=7)
    world.add(successor)
    assert world.engine.may_fit(pods[0])
    assert {bind(world, each).spec.node_name for each in (*pods[:2], successor)} == {"n0", "n1", "n2"}


@pytest.mark.parametrize("then", [None, 4])
def test_a_gang_whose_group_changes_its_mind_does_not_begin_before_it_is_complete(then: int | None) -> None:
    world = world_of(4)
    world.cluster.jobs.watched(VOLCANO)
    group = PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(min_member=2))
    world.cluster.jobs.group_applied(VOLCANO, group)
    pods = [pod(f"train-{number}", 8, annotations={GROUP: "train"}) for number in range(4)]
    world.add(*pods[:2])
    world.engine.place(pods[0])
    if then is None:
        world.cluster.jobs.group_deleted(VOLCANO, group)
        assert reason(world, pods[1]) == "GroupMissing"
        world.cluster.jobs.group_applied(VOLCANO, group)
    else:
        world.cluster.jobs.group_applied(VOLCANO, msgspec.structs.replace(group, spec=PodGroupSpec(min_member=then)))
        assert reason(world, pods[1]) == "GangIncomplete"
        world.add(*pods[2:])
    assert bind(world, pods[1]).spec.node_name
    world.cluster.jobs.group_deleted(VOLCANO, group)
    assert bind(world, pods[0]).spec.node_name  # it has begun


def test_a_pod_of_a_running_gang_is_not_refused_for_what_is_wrong_with_another() -> None:
    world = world_of(3)
    world.add(*(pods := gang("train", 2)))
    bound = [bind(world, each) for each in pods]
    bad = pod("train-2", 8, annotations=TWO | {POLICY: "nonsense"})
    world.add(bad)
    world.cluster.pod_deleted(bound[1])
    world.add(*(successors := gang("train", 1, minimum=2, first=3)))
    assert reason(world, bad) == "UnknownPolicy"
    assert world.engine.place(successors[0]).node == "n1"


def test_a_gang_with_enough_good_pods_begins_without_a_bad_one() -> None:
    world = world_of(3)
    bad = pod("train-0", 8, annotations=TWO | {POLICY: "nonsense"})
    world.add(bad, *(pods := gang("train", 1, minimum=2, first=1)))
    assert reason(world, pods[0]) == "UnknownPolicy"
    world.add(*(more := gang("train", 1, minimum=2, first=2)))
    assert {bind(world, each).spec.node_name for each in (*pods, *more)} == {"n0", "n1"}


def test_a_restarted_pod_of_a_running_gang_is_placed_without_waiting_for_anybody() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    bound = [bind(world, each) for each in pods]
    world.cluster.pod_deleted(bound[1])
    (successor,) = gang("train", 1, minimum=3, first=1)
    world.add(successor)
    assert world.engine.place(successor).node == bound[1].spec.node_name
    assert world.cluster.jobs.job_of(successor).rank_of(successor) == 1


def test_a_pod_that_is_being_deleted_does_not_complete_its_gang_when_it_is_asked_about() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    gone = pod(two.name, 8, annotations=two.metadata.annotations, leaving=True)
    world.add(one, gone)
    assert reason(world, gone) == "GangIncomplete"
    assert len(world.ledger) == 0
    world.cluster.pod_deleted(gone)
    (late,) = gang("train", 1, minimum=2, first=2)
    assert world.engine.place(late).node == "n1"  # its scheduler knows it first


def test_a_failed_pod_does_not_count_as_one_of_its_gang() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    world.add(pod("train-2", 8, phase="Failed", annotations=pods[2].metadata.annotations))
    assert reason(world, pods[0]) == "GangIncomplete"


def test_two_gangs_that_fit_only_one_after_the_other_do_not_block_each_other() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        world = world_of(5)
        waiting = {each.uid: each for each in (*gang("red", 4), *gang("blue", 3))}
        world.add(*waiting.values())
        while waiting:
            # Whoever asks, in whatever order: the jobs get through one after the other.
            for each in rng.sample(sorted(waiting.values(), key=lambda one: one.uid), len(waiting)):
                try:
                    bind(world, each)
                except Refusal as refusal:
                    assert refusal.reason == "GangDoesNotFit"  # noqa: PT017 - every refusal must be this one
                else:
                    del waiting[each.uid]
            running = {one.metadata.annotations[GROUP] for one in world.cluster.pods.values() if one.spec.node_name}
            assert len(running) == 1
            for one in list(world.cluster.pods.values()):
                if one.spec.node_name:
                    world.cluster.pod_deleted(one)


def test_after_a_restart_the_rest_of_a_gang_is_planned_before_anybody_else() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    before = World()
    before.add(*(node(f"n{number}") for number in range(3)), *pods)
    world.add(bind(before, pods[0]), *pods[1:])
    assert world.engine.gangs.resume() == []
    assert world.ledger.count(Stage.PLANNED) == 2
    assert reason(world, pod("other", 1)) == "NotEnoughChips"
    assert {world.engine.place(each).node for each in pods[1:]} == {"n1", "n2"}


def test_after_a_restart_the_rest_of_a_gang_is_planned_though_its_first_pod_asks_for_what_makes_no_sense() -> None:
    world = world_of(3)
    pods = gang("train", 4, minimum=3)
    bound = pod("train-0", 8, node="n0", chips=range(8), phase="Running", annotations=pods[0].metadata.annotations)
    bad = pod("train-1", 17, annotations=pods[1].metadata.annotations)
    world.add(bound, bad, *pods[2:])
    assert world.engine.gangs.resume() == []
    assert {each.uid for each in world.ledger} == {each.uid for each in pods[2:]}


def test_after_a_restart_the_rest_of_a_gang_is_planned_beside_a_binding_on_its_way() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    bound = pod("train-0", 8, node="n0", chips=range(8), phase="Running", annotations=pods[0].metadata.annotations)
    world.add(bound, *pods[1:])
    stage = Stage.DOUBTFUL
    world.ledger.reserve(uid=pods[1].uid, pod=pods[1].key, node="n1", chips=tuple(range(8)), stage=stage)
    world.add(node("n1", cordoned=True))
    assert world.engine.gangs.resume() == []
    assert [(each.node, each.stage) for each in world.ledger] == [("n1", stage), ("n2", Stage.PLANNED)]


def test_a_gang_of_which_nobody_is_bound_is_not_planned_after_a_restart() -> None:
    world = world_of(3)
    world.add(*gang("train", 3))
    assert world.engine.gangs.resume() == []
    assert len(world.ledger) == 0


def test_a_group_that_is_not_there_is_waited_for_and_its_minimum_counts() -> None:
    world = world_of(3)
    jobs = world.cluster.jobs
    pods = [pod(f"train-{number}", 8, annotations={GROUP: "train"}) for number in range(2)]
    world.add(*pods)
    # Without the kind on the API server nobody can say that it is a gang.
    assert world.engine.place(pods[0]).stage is Stage.RESERVED
    jobs.watched(VOLCANO)
    assert reason(world, pods[0]) == "GroupMissing"
    group = PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(min_member=3))
    jobs.group_applied(VOLCANO, group)
    assert reason(world, pods[0]) == "GangIncomplete"
    jobs.group_deleted(VOLCANO, group)
    assert reason(world, pods[0]) == "GroupMissing"
