"""Pods of one gang that may be on different nodes."""

import msgspec
import pytest

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod
from tests.allocator.gangs import GROUP, MESHES, TWO, gang, of_pool, reason, world_of


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
