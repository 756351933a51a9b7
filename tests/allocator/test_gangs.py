"""Gangs are placed together or not at all, in whatever order their pods come."""

import random
from collections.abc import Iterator
from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.decide import DecisionEngine
from allocator.gangs import packing
from allocator.gangs.gangs import Gangs
from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest, Member
from allocator.rules.job import VOLCANO, JobKey
from allocator.rules.narrowing import SCHEDULE_POLICY as POLICY
from allocator.rules.request import Ask
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.ranking import Ranking
from allocator.state.reservation import Seat, Stage
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.chips import chip_ids, chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, Pod, PodGroup, PodGroupSpec, PodStatus
from tests.allocator.builders import World, node, pod, report

TTL_S = 120.0
GROUP = "scheduling.k8s.io/group-name"


def gang(job: str, count: int, *, chips: int = 8, minimum: int | None = None, first: int = 0) -> list[Pod]:
    """Pods of one Volcano job that states its minimum itself."""
    annotations = {GROUP: job, MIN_AVAILABLE: str(minimum if minimum is not None else count)}
    return [pod(f"{job}-{number}", chips, annotations=annotations) for number in range(first, first + count)]


def world_of(nodes: int, **labels: str) -> World:
    world = World()
    world.add(*(node(f"n{number}", labels=labels) for number in range(nodes)))
    return world


TWO = {GROUP: "train", MIN_AVAILABLE: "2"}
MESHES = {"accelerator-type": "module-910b-8"}
"""On such servers pods of a distributed job may be smaller than a server."""


def bind(world: World, each: Pod) -> Pod:
    """What the commit and the watch do."""
    held = world.engine.place(each)
    world.ledger.advance(each.uid, Stage.BINDING)
    world.ledger.advance(each.uid, Stage.BOUND)
    bound = pod(
        each.name, len(held.chips), node=held.node, chips=held.chips, phase="Running",
        annotations=each.metadata.annotations,
    )  # fmt: skip
    world.add(bound)
    assert world.ledger.get(each.uid) is None
    return bound


def reason(world: World, each: Pod, candidates: list[str] | None = None) -> str:
    with pytest.raises(Refusal) as refused:
        world.engine.place(each, candidates)
    return refused.value.reason


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


def test_a_pod_that_may_not_be_on_its_planned_node_changes_seats_with_a_peer() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    world.add(one, two)
    assert world.engine.place(one).node == "n0"
    assert world.engine.place(two, ["n0"]).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_pod_that_comes_to_another_gang_leaves_its_seat_in_the_first() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    left = pod(pods[0].name, 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})
    world.add(left, *(others := gang("other", 1, minimum=2)))
    assert {world.engine.place(each).node for each in (left, *others)} == {"n0", "n2"}
    assert {each.plan for each in world.ledger if each.uid in {left.uid, others[0].uid}} == {
        world.cluster.jobs.job_of(left).key.plan
    }


def test_a_pod_does_not_change_seats_with_a_peer_that_may_not_be_on_its_node() -> None:
    world = World()
    world.add(node("n0", labels={"zone": "a"}), node("n1", labels={"zone": "b"}))
    bound, free = gang("train", 2)
    bound = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_selector={"zone": "a"}))
    world.add(bound, free)
    assert [world.engine.place(each).node for each in (bound, free)] == ["n0", "n1"]
    assert world.engine.filter(free, ["n0"]).fitting == []
    assert reason(world, free, ["n0"]) == "GangDoesNotFit"
    assert [world.engine.place(each).node for each in (bound, free)] == ["n0", "n1"]


def test_a_successor_does_not_take_an_empty_seat_where_it_may_not_be() -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), *(node(f"n{number}", labels={"pool": "b"}) for number in (1, 2)))
    one, two = (of_pool(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True))
    world.add(one, two)
    bind(world, two)
    world.cluster.pod_deleted(one)
    successor = of_pool(gang("train", 1, minimum=2, first=2)[0], "b")
    world.add(successor)
    assert world.engine.place(successor).node == "n2"


def test_candidates_are_not_read_through_for_every_seat() -> None:
    class Names(list[str]):
        reads = 0

        def __contains__(self, name: object) -> bool:
            self.reads += 1
            return super().__contains__(name)

    world = world_of(40)
    world.add(*(pods := gang("train", 20)))
    world.engine.place(pods[0])
    names = Names(f"n{number}" for number in range(20, 40))
    taken = {each.node for each in world.ledger}
    assert world.engine.place(pods[0], names).node not in taken - set(names)
    assert names.reads < 5


def test_a_pod_with_candidates_outside_the_plan_is_planned_anew_alone() -> None:
    world = world_of(3)
    one, two = gang("train", 2)
    world.add(one, two)
    world.engine.place(one)
    assert world.engine.place(two, ["n2"]).node == "n2"
    assert world.engine.place(one).node == "n0"
    assert len(world.ledger) == 2


@pytest.mark.parametrize("first", [0, 1])
def test_pods_of_a_gang_with_node_selectors_of_their_own_are_planned_where_those_say(first: int) -> None:
    world = World()
    pools = {"a": ["a0", "a1"], "b": ["b0", "b1"]}
    world.add(*(node(name, labels={"pool": pool}) for pool, names in pools.items() for name in names))
    pods: list[Pod] = []
    for number, pool in enumerate("abb"):
        made = pod(f"train-{number}", 8, annotations={GROUP: "train", MIN_AVAILABLE: "3"})
        pods.append(
            msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, node_selector={"pool": pool}))
        )
    world.add(*pods)
    for each in (*pods[first:], *pods[:first]):
        pool = each.spec.node_selector["pool"]
        assert world.engine.place(each, pools[pool]).node in pools[pool]
        assert world.ledger.count(Stage.PLANNED) == 3


@pytest.mark.parametrize("candidates", [None, ["a0"]])
def test_a_gang_is_not_begun_where_a_peer_s_own_nodes_are_full(candidates: list[str] | None) -> None:
    world = World()
    world.add(*(node(f"{pool}0", labels={"pool": pool}) for pool in "abc"))
    world.add(pod("other", 8, node="b0", chips=range(8), phase="Running"))
    pods = [
        msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, node_selector={"pool": pool}))
        for each, pool in zip(gang("train", 2), "ab", strict=True)
    ]
    world.add(*pods)
    assert reason(world, pods[0], candidates) == "GangDoesNotFit"
    assert not world.engine.may_fit(pods[0])
    world.add(pod("other", 8, node="b0", chips=range(8), phase="Succeeded"))
    assert world.engine.may_fit(pods[0])
    assert [world.engine.place(each).node for each in pods] == ["a0", "b0"]


def test_a_gang_whose_nodes_get_their_labels_late_is_placed_then() -> None:
    world = World()
    world.add(node("a0", labels={"pool": "a"}), node("a1", labels={"pool": "a"}), node("b0"))
    pods = gang("train", 2)
    spec = msgspec.structs.replace(pods[1].spec, node_selector={"pool": "b"})
    pods[1] = msgspec.structs.replace(pods[1], spec=spec)
    world.add(*pods)
    assert reason(world, pods[0], ["a0", "a1"]) == "GangDoesNotFit"
    world.add(node("b0", labels={"pool": "b"}))
    assert world.engine.place(pods[0], ["a0", "a1"]).node == "a0"
    assert world.engine.place(pods[1], ["b0"]).node == "b0"


def of_pool(each: Pod, pool: str) -> Pod:
    return msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, node_selector={"pool": pool}))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("scheduler", [True, False])
def test_whoever_is_asked_about_first_pods_with_fewer_nodes_choose_first(first: int, *, scheduler: bool) -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), node("n1"), node("n2", labels={"pool": "a"}))
    world.add(pod("busy", 8, node="n2", chips=range(8), phase="Running"))
    pods = [of_pool(gang("train", 1, minimum=2)[0], "a"), *gang("train", 1, minimum=2, first=1)]
    world.add(*pods)
    suited = (["n0", "n2"], ["n0", "n1", "n2"])
    assert world.engine.place(pods[first], suited[first] if scheduler else None).node == f"n{first}"


@pytest.mark.parametrize("first", [0, 1])
def test_pods_with_more_nodes_to_spare_leave_the_others_what_these_can_not_do_without(first: int) -> None:
    world = World()
    world.add(node("n0", labels={"master": "yes", "pool": "a"}), node("n1", labels={"master": "yes"}))
    world.add(*(node(f"n{number}", labels={"pool": "a"}) for number in (2, 3, 4)))
    master, *workers = gang("train", 5)
    master = msgspec.structs.replace(master, spec=msgspec.structs.replace(master.spec, node_selector={"master": "yes"}))
    pods = [master, *(of_pool(each, "a") for each in workers)]
    world.add(*pods)
    world.engine.place(pods[first])
    assert [world.engine.place(each).node for each in pods] == ["n1", "n0", "n2", "n3", "n4"]


@pytest.mark.parametrize("first", [0, 2])
def test_a_refused_gang_may_fit_whoever_of_it_is_looked_at_first(first: int) -> None:
    world = world_of(1)
    pods = gang("train", 3, minimum=2)
    world.add(*pods)
    assert not any(world.engine.may_fit(each) for each in pods)
    world.add(node("other"))
    assert world.engine.may_fit(pods[first])
    assert world.engine.may_fit(pods[1])
    # The one too many takes no place, but those for the others are kept once it asks.
    assert reason(world, pods[2]) == "GangDoesNotFit"
    assert world.ledger.count(Stage.PLANNED) == 2
    assert not world.engine.may_fit(pods[2])


@pytest.mark.parametrize("first", [0, 1])
def test_of_pods_that_join_a_running_gang_each_may_fit_for_itself(first: int) -> None:
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
            assert reason(world, each) == "GangDoesNotFit"
    assert world.engine.place(suited).node == "b"


def test_one_name_restricts_only_the_pod_asked_about() -> None:
    world = world_of(3)
    one, two = gang("train", 2)
    world.add(one, two)
    assert world.engine.place(two, ["n2"]).node == "n2"
    assert world.engine.place(one).node == "n0"


def test_the_smallest_pod_asked_about_first_and_for_one_node_does_not_take_what_the_largest_needs() -> None:
    world = World()
    world.add(node("n0", chips=range(16), allocatable=16, labels={"accelerator-type": "module-910b-16"}))
    # 4 chips of one ring and 5 of the other are free.
    world.add(pod("other", 7, node="n0", chips=[4, 5, 6, 7, 13, 14, 15], phase="Running"))
    annotations = {GROUP: "train", MIN_AVAILABLE: "3"}
    pods = [pod(f"train-{chips}", chips, annotations=annotations) for chips in (4, 3, 2)]
    world.add(*pods)
    assert world.engine.filter(pods[2]).fitting == ["n0"]
    assert world.engine.place(pods[2], ["n0"]).chips == (11, 12)
    assert {world.engine.place(each, ["n0"]).node for each in pods} == {"n0"}


def test_a_seat_waits_for_the_successor_of_a_deleted_pod() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    world.add(one, two)
    place = world.engine.place(two)
    world.cluster.pod_deleted(two)
    assert reason(world, pod("other", 8)) == "NotEnoughChips"
    (successor,) = gang("train", 1, minimum=2, first=7)
    world.add(successor)
    assert world.engine.place(successor).node == place.node
    assert len(world.ledger) == 2


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


def test_the_seats_of_a_job_that_is_gone_are_free_at_once() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    for each in pods:
        world.cluster.pod_deleted(each)
    assert len(world.ledger) == 0


def test_a_plan_nobody_uses_is_dropped_whole_and_made_again() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    world.now_s += TTL_S - 1
    world.engine.place(pods[1])
    world.now_s += 1
    assert len(world.ledger.expire()) == 2
    assert world.ledger.expired_total == 2
    assert len(world.ledger) == 0
    assert world.engine.place(pods[1]).node == "n1"


def test_every_bound_pod_gives_the_rest_of_the_plan_its_time_again() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    for each in pods[:2]:
        bind(world, each)
        world.now_s += TTL_S - 1
        world.ledger.expire()
    assert world.ledger.count(Stage.PLANNED) == 1
    world.now_s += 1
    world.ledger.expire()
    assert world.ledger.count(Stage.PLANNED) == 0


def test_a_refused_binding_gives_the_pod_its_seat_back() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    place = world.engine.place(pods[0])
    world.ledger.advance(pods[0].uid, Stage.BINDING)
    world.ledger.withdraw(pods[0].uid)
    again = world.engine.place(pods[0])
    assert (again.node, again.stage) == (place.node, Stage.PLANNED)


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
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    # The peer's place is still good, but there is no second one beside it.
    world.add(node("n0", cordoned=True), *(node(f"o{number}", labels=MESHES) for number in range(2)))
    assert world.engine.filter(pods[0]).fitting == ["o0"]
    assert [world.engine.place(each).node for each in pods] == ["o0", "o1"]


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
    world = world_of(2, **MESHES)
    world.add(*(pods := gang("train", 2, chips=2)))
    assert [world.engine.place(each).node for each in pods] == ["n0", "n0"]
    world.add(node("n0"))
    assert [world.engine.place(each).node for each in pods] == ["n1", "n1"]


def test_the_places_of_a_gang_that_can_not_begin_any_more_are_free_for_others_at_once() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    world.add(report("n1", unhealthy=[3]))
    assert world.engine.place(pod("other", 8)).node == "n0"


def test_successors_that_ask_otherwise_are_not_kept_out_by_empty_seats_of_a_gang_that_never_began() -> None:
    world = world_of(2, **MESHES)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    world.add(*(successors := gang("train", 2, chips=4, first=2)))
    for each in pods:
        world.cluster.pod_deleted(each)
    assert {bind(world, each).spec.node_name for each in successors} == {"n0"}


def test_empty_seats_beside_running_peers_wait_for_successors() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    bind(world, pods[0])
    world.cluster.pod_deleted(pods[1])
    assert reason(world, pod("other", 8)) == "NotEnoughChips"
    world.add(*(successors := gang("train", 1, minimum=2, first=2)))
    assert world.engine.place(successors[0]).node == "n1"


def test_a_pod_is_never_placed_on_its_old_seat_when_it_is_asked_about_for_another_node() -> None:
    world = world_of(4)
    world.add(*(pod(f"other-{chip}", 1, node="n2", chips=[chip], phase="Running") for chip in range(8)))
    world.add(*(pods := gang("train", 2, first=1)))
    seats = {each.uid: world.engine.place(each).node for each in pods}
    late = pod("train-0", 8, annotations=TWO | {RANK: "0"})
    world.add(late)
    assert world.engine.filter(pods[1], ["n2"]).fitting == []
    assert reason(world, pods[1], ["n2"]) == "GangDoesNotFit"
    assert (held := world.ledger.get(late.uid)) is not None
    assert held.node == "n3"
    assert {each.uid: world.engine.place(each).node for each in pods} == seats


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


def test_what_was_said_of_its_peers_does_not_count_for_a_pod_that_only_its_scheduler_knows() -> None:
    world = world_of(2)
    one, two, late = (
        pod(name, 8, annotations={**TWO, RANK: rank}) for name, rank in (("one", "1"), ("two", "2"), ("late", "0"))
    )
    world.add(one, of_pool(two, "nowhere"))
    assert reason(world, one) == "GangDoesNotFit"
    assert world.engine.place(late).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_refusal_that_is_remembered_names_no_other_pod() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(more := gang("train", 2, minimum=2, first=2)))
    said = []
    for each in more:
        with pytest.raises(Refusal) as refused:
            world.engine.place(each)
        said.append(refused.value.message)
    assert said[0] == said[1]
    assert "job default/train: a pod of it has to join its peers and does not fit; for one of 8 chips" in said[0]


def test_a_late_pod_of_a_gang_that_stands_is_placed_without_looking_at_its_peers() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    for each in pods:
        bind(world, each)
    world.add(*(late := gang("train", 1, minimum=2, first=2)))
    with mock.patch.object(Job, "ranked", side_effect=AssertionError):
        assert world.engine.filter(late[0]).fitting == ["n2"]
        assert world.engine.place(late[0]).node == "n2"


def test_a_pod_whose_node_breaks_down_later_gets_another_place_beside_its_running_peers() -> None:
    world = world_of(4)
    pods = gang("train", 3)
    world.add(*pods)
    bind(world, pods[0])
    place = world.engine.place(pods[1])
    world.add(node(place.node, ready=False))
    assert world.engine.place(pods[1]).node == "n3"
    assert {world.engine.place(each).node for each in pods[1:]} == {"n3", "n2"}


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
    assert world.engine.place(pods[0]).stage is Stage.TENTATIVE
    jobs.watched(VOLCANO)
    assert reason(world, pods[0]) == "GroupMissing"
    group = PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(min_member=3))
    jobs.group_applied(VOLCANO, group)
    assert reason(world, pods[0]) == "GangIncomplete"
    jobs.group_deleted(VOLCANO, group)
    assert reason(world, pods[0]) == "GroupMissing"


def test_what_is_said_of_small_pods_that_do_not_fit_counts_what_the_large_ones_take() -> None:
    world = world_of(2, **MESHES)
    world.add(*(pod(f"other-{chip}", 1, node="n1", chips=[chip], phase="Running") for chip in range(4)))
    pods = [*gang("train", 1, minimum=5), *gang("train", 4, chips=4, minimum=5, first=1)]
    world.add(*pods)
    with pytest.raises(Refusal, match="only 2 fit at once; for another one of 4 chips the nodes refuse: 2 NotEnough"):
        world.engine.place(pods[0])


def test_pods_of_different_sizes_are_planned_large_ones_first() -> None:
    world = world_of(2, **MESHES)
    small, large = gang("train", 4, chips=2, minimum=6), gang("train", 2, chips=4, first=4, minimum=6)
    world.add(*small, *large)
    nodes = [world.engine.place(each).node for each in (*small, *large)]
    assert nodes == ["n1", "n1", "n1", "n1", "n0", "n0"]


def test_that_a_gang_does_not_fit_is_said_without_looking_at_every_node() -> None:
    def verdicts(nodes: int) -> int:
        world = world_of(nodes)
        world.add(*(pod(f"other-{at}", 8, node=f"n{at}", chips=range(8), phase="Running") for at in range(1, nodes)))
        world.add(*(pods := gang("train", 3)))
        with (
            mock.patch.object(Ranking, "verdict", autospec=True, side_effect=Ranking.verdict) as asked,
            pytest.raises(Refusal, match=f"only 1 fit at once; .*: {nodes} NotEnoughChips"),
        ):
            world.engine.place(pods[0])
        return asked.call_count

    assert verdicts(20) == verdicts(200)


@pytest.mark.parametrize("names", [None, ["n0", "n1", "n2"]])
def test_a_gang_that_does_not_fit_is_planned_once_however_many_of_its_pods_are_asked_about(
    names: list[str] | None,
) -> None:
    world, planned = world_of(3), 0

    def counting(request: GangRequest, index: NodeIndex) -> list[Seat] | Refusal:
        nonlocal planned
        planned += 1
        return pack(request, index)

    world.engine.gangs = Gangs(world.cluster, world.ledger, ttl_s=TTL_S, ask_of=world.engine.ask, policy=counting)
    world.add(*(pods := gang("train", 4)))
    for each in pods:
        assert reason(world, each, names) == "GangDoesNotFit"
        assert world.engine.filter(each, names).fitting == []
    assert planned == 1
    world.add(*(others := gang("other", 4)))
    for pair in zip(pods, others, strict=True):
        assert [reason(world, each, names) for each in pair] == ["GangDoesNotFit"] * 2
    assert planned == 2
    world.add(node("n3"))
    assert reason(world, pods[0], ["n0", "n1", "n2"]) == "GangDoesNotFit"
    assert world.engine.place(pods[0]).node == "n0"


changes = st.one_of(
    st.tuples(st.sampled_from(["come", "come", "bind", "fail", "go"]), st.integers(0, 3), st.sampled_from([1, 4, 8])),
    st.tuples(st.sampled_from(["other comes", "other goes", "node", "minimum"]), st.integers(1, 4), st.just(0)),
)


def happen(world: World, present: dict[int, Pod], what: str, number: int, chips: int) -> None:
    """One thing changes; present are the pods of the gang."""
    other = pod(f"other-{number}", 2, node="n0", chips=[2 * number - 2, 2 * number - 1], phase="Running")
    mine = pod(f"train-{number}", chips or 8, annotations={GROUP: "train"})
    match what:
        case "come" | "bind":
            if number in present:
                world.cluster.pod_deleted(present[number])
            if what == "bind":
                mine = pod(mine.name, chips, node="n1", chips=range(chips), annotations={GROUP: "train"})
            world.add(mine)
            present[number] = mine
        case "fail" | "go" if number in present:
            gone = present.pop(number)
            failed = msgspec.structs.replace(gone, status=PodStatus(phase="Failed"))
            world.cluster.pod_applied(failed) if what == "fail" else world.cluster.pod_deleted(gone)
        case "other comes":
            world.add(other)
        case "other goes":
            world.cluster.pod_deleted(other)
        case "node":
            world.add(node(f"n{number}", labels=MESHES))
        case "minimum":
            group = PodGroup(metadata=Metadata(name="train", namespace="default"), spec=PodGroupSpec(number))
            world.cluster.jobs.group_applied(VOLCANO, group)


def test_a_small_pod_that_joins_a_running_gang_is_not_refused_for_a_large_one() -> None:
    world = world_of(1, **MESHES)
    world.add(*(pod(f"train-{at}", 2, node="n0", chips=[2 * at, 2 * at + 1], annotations=TWO) for at in range(2)))
    large, small = pod("train-2", 8, annotations=TWO), pod("train-3", 1, annotations=TWO)
    world.add(large, small)
    assert reason(world, large) == "GangDoesNotFit"
    assert world.engine.place(small).node == "n0"


def test_a_job_that_is_made_anew_is_not_taken_for_the_one_before() -> None:
    world = world_of(1, **MESHES)
    for chips in (8, 4):
        pods = [pod(f"train-{at}", each, annotations=TWO) for at, each in enumerate((4, chips))]
        world.add(*pods)
        if chips == 8:
            assert reason(world, pods[0]) == "GangDoesNotFit"
            for each in pods:
                world.cluster.pod_deleted(each)
    assert world.engine.place(pods[0]).node == "n0"


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


@settings(max_examples=200, deadline=None)
@given(history=st.lists(changes, max_size=12), names=st.none() | st.sets(st.sampled_from(["n0", "n1", "n2"])))
def test_what_was_answered_before_is_never_the_answer_to_another_question(
    history: list[tuple[str, int, int]], names: set[str] | None
) -> None:
    world = world_of(2, **MESHES)
    world.cluster.jobs.watched(VOLCANO)
    present: dict[int, Pod] = {}
    # Three of which two fit, and then one thing after the other changes.
    begun = [("minimum", 3, 0), *(("come", number, 8) for number in range(3))]
    for change in (*begun, *history):
        happen(world, present, *change)
        fresh = DecisionEngine(world.cluster, world.ledger)
        for each in present.values():
            kept, anew = world.engine.filter(each, names), fresh.filter(each, names)
            assert kept.fitting == anew.fitting
            assert {name: str(why) for name, why in kept.refused.items()} == {
                name: str(why) for name, why in anew.refused.items()
            }


def test_pods_that_ask_for_the_same_are_packed_at_once_however_their_ranks_alternate() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number % 2]}) for number in range(8)))
    pods = [
        msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, node_selector={"pool": "ab"[at % 2]}))
        for at, each in enumerate(gang("train", 8))
    ]
    world.add(*pods)
    with mock.patch.object(packing._Board, "take", autospec=True, side_effect=packing._Board.take) as took:
        world.engine.place(pods[0])
    assert took.call_count == 2


asks = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=12)
idle = st.lists(st.integers(0, 255), min_size=1, max_size=6)


@settings(max_examples=200, deadline=None)
@given(asks=asks, idle=idle, allowed=st.none() | st.sets(st.integers(0, 5), min_size=2), few=st.sampled_from([0, 16]))
def test_packing_gives_what_placing_one_after_the_other_gives(
    asks: list[int], idle: list[int], allowed: set[int] | None, few: int
) -> None:
    world = World()
    for number, free in enumerate(idle):
        world.occupy(f"n{number}", free=[chip for chip in range(8) if free >> chip & 1])
    names = None if allowed is None else [f"n{number}" for number in sorted(allowed)]
    members = tuple(Member(f"u{n}", f"default/p{n}", n, Ask(chips)) for n, chips in enumerate(asks))
    before = world.cluster.index.version
    with mock.patch.object(packing, "_FEW", few):
        found = pack(GangRequest(JobKey("default", "train", VOLCANO), members, candidates=names), world.cluster.index)
    assert world.cluster.index.version == before
    one_by_one: list[tuple[int, str, int]] = []
    for chips in sorted(asks, reverse=True):
        try:
            held = world.engine.place(pod(f"single-{len(one_by_one)}", chips), names)
        except Refusal:
            assert isinstance(found, Refusal)
            reasons = world.cluster.index.reasons(Ask(chips), names)
            counts = sorted(f"{count} {reason}" for reason, count in reasons.items())
            assert sorted(found.message.rpartition("the nodes refuse: ")[2].split(", ")) == counts
            return
        one_by_one.append((chips, held.node, chip_set(held.chips)))
    assert not isinstance(found, Refusal)
    assert [seat.uid for seat in found] == [member.uid for member in members]
    assert sorted((len(seat.chips), seat.node, chip_set(seat.chips)) for seat in found) == sorted(one_by_one)
