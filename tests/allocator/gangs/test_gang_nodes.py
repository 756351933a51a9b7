"""Which nodes the pods of a gang get: all together or none, each within its node selector."""

import random
import re

import pytest

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod, selecting
from tests.allocator.gangs.builders import MESHES, TWO, bind, gang, of_pool, reason, world_of


def test_consecutive_ranks_share_nodes() -> None:
    world = world_of(3, **MESHES)
    pods = gang("train", 6, chips=4)
    world.add(*reversed(pods))
    world.engine.place(pods[3])
    assert [world.engine.place(each).node for each in pods] == ["n0", "n0", "n1", "n1", "n2", "n2"]


def test_a_gang_that_does_not_fit_reserves_nothing() -> None:
    world = world_of(3)
    pods = gang("train", 4)
    world.add(*pods)
    refusal = world.refusal(pods[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert re.search("4 pods .* 3 fit .* 3 NotEnoughChips", refusal.message)
    assert len(world.ledger) == 0
    assert world.engine.place(pod("other", 8)).node == "n0"


def test_if_not_all_pods_fit_the_lowest_ranks_are_placed() -> None:
    world = world_of(3)
    pods = gang("train", 5, minimum=3)
    world.add(*pods)
    assert reason(world, pods[4]) is Reason.GANG_DOES_NOT_FIT
    assert [each.pod for each in world.ledger.seats(f"{VOLCANO} default/train")] == [each.key for each in pods[:3]]
    for each in pods[:3]:
        bind(world, each)
    world.add(node("n9"))
    assert world.engine.place(pods[4]).node == "n9"


def test_filter_returns_the_planned_node_and_reserves_nothing() -> None:
    world = world_of(3)
    pods = gang("train", 2)
    world.add(*pods)
    filtered = world.engine.filter(pods[0], ["n1", "n2"])
    assert len(world.ledger) == 0
    assert filtered.fitting == ["n1"]
    assert filtered.refused["n2"].reason is Reason.PLACED_WITH_GANG
    assert world.engine.place(pods[0], ["n1", "n2"]).node == "n1"
    assert world.engine.filter(pods[1], ["n0", "n1", "n2"]).fitting == ["n2"]
    assert world.engine.rank(pods[1], ["n0", "n1", "n2"])[0].nodes == ["n2"]


def test_filter_gives_every_node_a_reason_that_prevents_preemption() -> None:
    world = world_of(3)
    world.occupy("n2", free=[0])
    world.add(node("n3", cordoned=True))
    pods = gang("train", 3)
    world.add(*pods)
    filtered = world.engine.filter(pods[0])
    assert filtered.fitting == []
    assert {name: each.reason for name, each in filtered.refused.items()} == {
        "n0": Reason.GANG_DOES_NOT_FIT,
        "n1": Reason.GANG_DOES_NOT_FIT,
        "n2": Reason.GANG_DOES_NOT_FIT,
        "n3": Reason.NODE_CORDONED,
    }


def test_two_gangs_that_fit_only_in_turn_do_not_block_each_other() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        world = world_of(5)
        waiting = {each.uid: each for each in (*gang("red", 4), *gang("blue", 3))}
        world.add(*waiting.values())
        while waiting:
            # In any order of calls the jobs are placed one after the other.
            for each in rng.sample(sorted(waiting.values(), key=lambda one: one.uid), len(waiting)):
                try:
                    bind(world, each)
                except Refusal as refusal:
                    assert refusal.reason is Reason.GANG_DOES_NOT_FIT  # noqa: PT017 - every refusal must be this one
                else:
                    del waiting[each.uid]
            running = {one.metadata.annotations[GROUP] for one in world.cluster.pods.values() if one.spec.node_name}
            assert len(running) == 1
            for one in list(world.cluster.pods.values()):
                if one.spec.node_name:
                    world.cluster.pod_deleted(one)


def test_large_pods_are_planned_first() -> None:
    world = world_of(2, **MESHES)
    small, large = gang("train", 4, chips=2, minimum=6), gang("train", 2, chips=4, first=4, minimum=6)
    world.add(*small, *large)
    nodes = [world.engine.place(each).node for each in (*small, *large)]
    assert nodes == ["n1", "n1", "n1", "n1", "n0", "n0"]


def test_a_small_pod_does_not_take_what_a_large_peer_needs() -> None:
    world = World()
    world.add(node("n0", chips=range(16), allocatable=16, labels={"accelerator-type": "module-910b-16"}))
    # 4 chips of one ring and 5 of the other are free.
    world.add(pod("other", 7, node="n0", chips=[4, 5, 6, 7, 13, 14, 15], phase="Running"))
    annotations = {GROUP: "train", MIN_AVAILABLE: "3"}
    pods = [pod(f"train-{chips}", chips, annotations=annotations) for chips in (4, 3, 2)]
    world.add(*pods)
    assert world.engine.filter(pods[2]).fitting == ["n0"]
    assert world.engine.place(pods[2], ["n0"]).take.chips == (11, 12)
    assert {world.engine.place(each, ["n0"]).node for each in pods} == {"n0"}


def test_a_small_pod_joins_where_a_large_peer_does_not_fit() -> None:
    world = world_of(1, **MESHES)
    world.add(*(pod(f"train-{at}", 2, node="n0", chips=[2 * at, 2 * at + 1], annotations=TWO) for at in range(2)))
    large, small = pod("train-2", 8, annotations=TWO), pod("train-3", 1, annotations=TWO)
    world.add(large, small)
    assert reason(world, large) is Reason.GANG_DOES_NOT_FIT
    assert world.engine.place(small).node == "n0"


@pytest.mark.parametrize("first", [0, 1])
def test_each_pod_is_planned_within_its_node_selector(first: int) -> None:
    world = World()
    pools = {"a": ["a0", "a1"], "b": ["b0", "b1"]}
    world.add(*(node(name, labels={"pool": pool}) for pool, names in pools.items() for name in names))
    pods = [of_pool(each, pool) for each, pool in zip(gang("train", 3), "abb", strict=True)]
    world.add(*pods)
    for each in (*pods[first:], *pods[:first]):
        pool = each.spec.node_selector["pool"]
        assert world.engine.place(each, pools[pool]).node in pools[pool]
        assert world.ledger.count(Stage.PLANNED) == 3


@pytest.mark.parametrize("candidates", [None, ["a0"]])
def test_a_gang_waits_while_the_nodes_of_one_pod_are_full(candidates: list[str] | None) -> None:
    world = World()
    world.add(*(node(f"{pool}0", labels={"pool": pool}) for pool in "abc"))
    busy = pod("busy", 8, node="b0", chips=range(8), phase="Running")
    world.add(busy)
    pods = [of_pool(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True)]
    world.add(*pods)
    assert reason(world, pods[0], candidates) is Reason.GANG_DOES_NOT_FIT
    assert not world.engine.may_fit(pods[0])
    world.cluster.pod_deleted(busy)
    assert world.engine.may_fit(pods[0])
    assert [world.engine.place(each).node for each in pods] == ["a0", "b0"]


def test_a_gang_is_placed_once_its_nodes_are_labelled() -> None:
    world = World()
    world.add(node("a0", labels={"pool": "a"}), node("a1", labels={"pool": "a"}), node("b0"))
    pods = gang("train", 2)
    pods[1] = of_pool(pods[1], "b")
    world.add(*pods)
    assert reason(world, pods[0], ["a0", "a1"]) is Reason.GANG_DOES_NOT_FIT
    world.add(node("b0", labels={"pool": "b"}))
    assert world.engine.place(pods[0], ["a0", "a1"]).node == "a0"
    assert world.engine.place(pods[1], ["b0"]).node == "b0"


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("with_candidates", [True, False])
def test_pods_with_fewer_nodes_choose_first(first: int, *, with_candidates: bool) -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), node("n1"), node("n2", labels={"pool": "a"}))
    world.fill("n2")
    pods = [of_pool(gang("train", 1, minimum=2)[0], "a"), *gang("train", 1, minimum=2, first=1)]
    world.add(*pods)
    matching = (["n0", "n2"], ["n0", "n1", "n2"])
    assert world.engine.place(pods[first], matching[first] if with_candidates else None).node == f"n{first}"


@pytest.mark.parametrize("first", [0, 1])
def test_pods_leave_the_nodes_that_their_peers_depend_on(first: int) -> None:
    world = World()
    world.add(node("n0", labels={"master": "yes", "pool": "a"}), node("n1", labels={"master": "yes"}))
    world.add(*(node(f"n{number}", labels={"pool": "a"}) for number in (2, 3, 4)))
    master, *workers = gang("train", 5)
    master = selecting(master, {"master": "yes"})
    pods = [master, *(of_pool(each, "a") for each in workers)]
    world.add(*pods)
    world.engine.place(pods[first])
    assert [world.engine.place(each).node for each in pods] == ["n1", "n0", "n2", "n3", "n4"]


def test_a_single_candidate_restricts_only_its_pod() -> None:
    world = world_of(3)
    one, two = gang("train", 2)
    world.add(one, two)
    assert world.engine.place(two, ["n2"]).node == "n2"
    assert world.engine.place(one).node == "n0"
