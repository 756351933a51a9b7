"""When the pods of a gang are placed: once as many exist as must be placed together."""

import re

import pytest

from allocator.rules.job_products import SCHEDULE_POLICY as POLICY
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.jobs.pod_groups import VOLCANO
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, node, pod, pod_group
from tests.allocator.gangs.builders import MESHES, TWO, bind, gang, of_pool, reason, world_of


def test_no_pod_is_placed_before_the_minimum_exists() -> None:
    world = world_of(4)
    pods = gang("train", 4)
    world.add(*pods[:3])
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.GANG_INCOMPLETE
    assert [int(word) for word in re.findall(r"\d+", refusal.message)] == [4, 3, 1]  # the minimum, existing, missing
    assert len(world.ledger) == 0
    filtered = world.engine.filter(pods[0])
    assert {each.reason for each in filtered.refused.values()} == {Reason.GANG_INCOMPLETE}
    assert len(filtered.refused) == 4
    world.add(pods[3])
    assert world.engine.place(pods[0]).node


@pytest.mark.parametrize("none", [None, 0])
def test_a_launcher_without_chips_counts_and_needs_no_seat(none: int | None) -> None:
    world = world_of(2)
    launcher = pod("launcher", none, annotations={GROUP: "train", MIN_AVAILABLE: "3"})
    workers = gang("train", 2, minimum=3)
    world.add(*workers)
    assert reason(world, workers[0]) is Reason.GANG_INCOMPLETE
    world.add(launcher)
    world.engine.place(workers[0])
    assert world.ledger.count(Stage.PLANNED) == 2
    assert {bind(world, each).spec.node_name for each in workers} == {"n0", "n1"}


def test_a_failed_pod_does_not_complete_its_gang() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    world.add(pod("train-2", 8, phase="Failed", annotations=pods[2].metadata.annotations))
    assert reason(world, pods[0]) is Reason.GANG_INCOMPLETE


def test_a_terminating_pod_does_not_complete_its_gang() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    gone = pod(two.name, 8, annotations=two.metadata.annotations, terminating=True)
    world.add(one, gone)
    assert reason(world, gone) is Reason.GANG_INCOMPLETE
    assert len(world.ledger) == 0
    world.cluster.pod_deleted(gone)
    (late,) = gang("train", 1, minimum=2, first=2)
    assert world.engine.place(late).node == "n1"  # the scheduler knows it before the informers do


def test_a_missing_group_is_waited_for_if_its_kind_is_watched() -> None:
    world = world_of(3)
    jobs = world.cluster.jobs
    pods = [pod(f"train-{number}", 8, annotations={GROUP: "train"}) for number in range(2)]
    world.add(*pods)
    # Without the kind on the API server it is unknown that the pods are a gang.
    assert world.engine.place(pods[0]).stage is Stage.RESERVED
    jobs.on_watched(VOLCANO)
    assert reason(world, pods[0]) is Reason.GROUP_MISSING
    group = pod_group(3)
    jobs.group_applied(VOLCANO, group)
    assert reason(world, pods[0]) is Reason.GANG_INCOMPLETE
    jobs.group_deleted(VOLCANO, group)
    assert reason(world, pods[0]) is Reason.GROUP_MISSING


@pytest.mark.parametrize("then", [None, 4])
def test_a_changed_or_deleted_group_holds_up_a_gang_not_yet_begun(then: int | None) -> None:
    world = world_of(4)
    world.cluster.jobs.on_watched(VOLCANO)
    group = pod_group(2)
    world.cluster.jobs.group_applied(VOLCANO, group)
    pods = [pod(f"train-{number}", 8, annotations={GROUP: "train"}) for number in range(4)]
    world.add(*pods[:2])
    world.engine.place(pods[0])
    if then is None:
        world.cluster.jobs.group_deleted(VOLCANO, group)
        assert reason(world, pods[1]) is Reason.GROUP_MISSING
        world.cluster.jobs.group_applied(VOLCANO, group)
    else:
        world.cluster.jobs.group_applied(VOLCANO, pod_group(then))
        assert reason(world, pods[1]) is Reason.GANG_INCOMPLETE
        world.add(*pods[2:])
    assert bind(world, pods[1]).spec.node_name
    world.cluster.jobs.group_deleted(VOLCANO, group)
    assert bind(world, pods[0]).spec.node_name  # the gang has begun


def test_a_plan_that_lost_a_pod_waits_for_its_successor() -> None:
    world = world_of(3)
    world.add(*(pods := gang("train", 3)))
    world.engine.place(pods[0])
    world.cluster.pod_deleted(pods[2])
    assert [reason(world, each) for each in pods[:2]] == [Reason.GANG_INCOMPLETE] * 2
    assert world.engine.filter(pods[0]).fitting == []
    assert not world.engine.may_fit(pods[0])
    assert reason(world, pod("other", 8)) is Reason.NOT_ENOUGH_CHIPS
    (successor,) = gang("train", 1, minimum=3, first=7)
    world.add(successor)
    assert world.engine.may_fit(pods[0])
    assert {bind(world, each).spec.node_name for each in (*pods[:2], successor)} == {"n0", "n1", "n2"}


def test_a_successor_in_a_running_gang_is_placed_at_once() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    bound = [bind(world, each) for each in pods]
    world.cluster.pod_deleted(bound[1])
    (successor,) = gang("train", 1, minimum=3, first=1)
    world.add(successor)
    assert world.engine.place(successor).node == bound[1].spec.node_name
    assert world.cluster.jobs.job_of(successor).rank_of(successor) == 1


def test_an_invalid_pod_does_not_hold_up_a_running_gang() -> None:
    world = world_of(3)
    world.add(*(pods := gang("train", 2)))
    bound = [bind(world, each) for each in pods]
    invalid = pod("train-2", 8, annotations=TWO | {POLICY: "unknown"})
    world.add(invalid)
    world.cluster.pod_deleted(bound[1])
    world.add(*(successors := gang("train", 1, minimum=2, first=3)))
    assert reason(world, invalid) is Reason.UNKNOWN_POLICY
    assert world.engine.place(successors[0]).node == "n1"


def test_a_gang_with_enough_valid_pods_begins_without_an_invalid_one() -> None:
    world = world_of(3)
    invalid = pod("train-0", 8, annotations=TWO | {POLICY: "unknown"})
    world.add(invalid, *(pods := gang("train", 1, minimum=2, first=1)))
    assert reason(world, pods[0]) is Reason.UNKNOWN_POLICY
    world.add(*(more := gang("train", 1, minimum=2, first=2)))
    assert {bind(world, each).spec.node_name for each in (*pods, *more)} == {"n0", "n1"}


@pytest.mark.parametrize("first", [0, 2])
def test_a_waiting_gang_may_fit_after_a_node_is_added(first: int) -> None:
    world = world_of(1)
    pods = gang("train", 3, minimum=2)
    world.add(*pods)
    assert not any(world.engine.may_fit(each) for each in pods)
    world.add(node("other"))
    assert world.engine.may_fit(pods[first])
    assert world.engine.may_fit(pods[1])
    # The third pod gets no seat, but a call for it reserves those of the others.
    assert reason(world, pods[2]) is Reason.GANG_DOES_NOT_FIT
    assert world.ledger.count(Stage.PLANNED) == 2
    assert not world.engine.may_fit(pods[2])


@pytest.mark.parametrize("first", [0, 1])
def test_each_pod_that_joins_a_running_gang_may_fit_by_itself(first: int) -> None:
    world = world_of(4, **MESHES)
    running = [pod(f"train-{n}", 8, node=f"n{n}", chips=range(8), phase="Running", annotations=TWO) for n in range(2)]
    large, small = gang("train", 1, minimum=2, first=2)[0], gang("train", 1, chips=4, minimum=2, first=3)[0]
    suited, full = (
        of_pool(gang("train", 1, minimum=2, first=4)[0], "b"),
        of_pool(gang("train", 1, minimum=2, first=5)[0], "c"),
    )
    world.add(*running, large, small)
    world.add(*(pod(f"x{n}", 4, node=f"n{n}", chips=range(4), phase="Running") for n in (2, 3)))
    for each in (large, small) if first == 0 else (small, large):
        assert world.engine.may_fit(each) == (each is small)
    world.add(node("b", labels={"pool": "b", **MESHES}), suited, full)
    for each in (suited, full) if first == 0 else (full, suited):
        assert world.engine.may_fit(each) == (each is suited)
        if each is full:
            assert reason(world, each) is Reason.GANG_DOES_NOT_FIT
    assert world.engine.place(suited).node == "b"
