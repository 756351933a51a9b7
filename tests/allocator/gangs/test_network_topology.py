"""Gangs with Volcano's network topology are placed within one HyperNode, of the lowest tier in which they fit."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.state.hyper_nodes import HYPER_NODES, HyperNode
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.kept import TOPOLOGY_MODE, TOPOLOGY_TIERS
from ascend.kube.objects import Pod
from ascend.kube.workloads import PodGroupSpec
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, owned_by, pod, pod_group, selecting, stateful_set
from tests.allocator.gangs.builders import MESHES, bind, gang

RACKS = {"rack-a": ["n0", "n1"], "rack-b": ["n2", "n3", "n4"], "rack-c": ["n5"]}


def member(name: str, kind: str = "Node") -> dict[str, object]:
    return {"type": kind, "selector": {"exactMatch": {"name": name}}}


def hyper_node(name: str, tier: int, members: Sequence[object], tier_name: str = "") -> HyperNode:
    spec = {"tier": tier, "tierName": tier_name, "members": members}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, HyperNode)


def world_of(
    nodes: int = 7, *, racks: Mapping[str, Sequence[str]] = RACKS, spine: Sequence[str] = ("rack-a", "rack-b")
) -> World:
    """A world with racks of tier 1, and a spine of tier 2 above some of them; other nodes are in no HyperNode."""
    world = World()
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(nodes)))
    for name, names in racks.items():
        world.cluster.hyper_nodes.apply(hyper_node(name, 1, [member(each) for each in names], "rack"))
    if spine:
        world.cluster.hyper_nodes.apply(hyper_node("spine", 2, [member(each, "HyperNode") for each in spine], "spine"))
    return world


def asking(world: World, pods: list[Pod], mode: str, tier: int | str | None = None) -> list[Pod]:
    """The pods of a PodGroup with this network topology."""
    key = "highestTierName" if isinstance(tier, str) else "highestTierAllowed"
    topology = {"mode": mode} | ({key: tier} if tier is not None else {})
    spec = msgspec.convert({"minMember": len(pods), "networkTopology": topology}, PodGroupSpec)
    world.cluster.jobs.group_applied(VOLCANO, replace(pod_group(len(pods)), spec=spec))
    world.add(*pods)
    return pods


def places(world: World, pods: list[Pod]) -> list[str]:
    return [world.engine.place(each).node for each in pods]


def test_a_hard_gang_gets_the_lowest_tier_in_which_it_fits() -> None:
    for size, expected in (
        (1, {"n0"}),
        (2, {"n0", "n1"}),
        (3, {"n2", "n3", "n4"}),
        (5, {"n0", "n1", "n2", "n3", "n4"}),
    ):
        world = world_of()
        assert set(places(world, asking(world, gang("train", size), "hard", 2))) == expected


@pytest.mark.parametrize("tier", [1, "rack"])
def test_a_hard_gang_that_fits_in_no_allowed_hyper_node_is_refused_with_the_tier_and_what_was_found(
    tier: int | str,
) -> None:
    world = world_of()
    refusal = world.refusal(asking(world, gang("train", 4), "hard", tier)[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert refusal.message == (
        f"job default/train (network topology hard, highest tier {tier}): its 4 pods must be in one HyperNode of tier "
        "1 or lower; the most that fit in one: 3, in rack-b of tier 1"
    )


def test_a_soft_gang_goes_anywhere_if_it_fits_in_no_hyper_node() -> None:
    world = world_of()
    assert len(set(places(world, asking(world, gang("train", 7), "soft")))) == 7
    world = world_of()
    assert set(places(world, asking(world, gang("train", 3), "soft", 1))) == {"n2", "n3", "n4"}


def test_of_one_tier_the_fullest_comes_first() -> None:
    world = world_of(racks={"rack-a": ["n0", "n1", "n2"], "rack-b": ["n3", "n4", "n5"]}, spine=())
    world.fill("n4")
    assert set(places(world, asking(world, gang("train", 2), "hard", 1))) == {"n3", "n5"}


def test_without_hyper_nodes_only_a_hard_gang_waits() -> None:
    world = world_of(racks={}, spine=())
    assert "no HyperNode is known" in world.refusal(asking(world, gang("train", 2), "hard", 1)[0]).message
    world = world_of(racks={}, spine=())
    assert places(world, asking(world, gang("train", 2), "soft", 1)) == ["n0", "n1"]


@pytest.mark.parametrize("tier", [0, "row"])
def test_an_unknown_tier_is_named_with_the_known_ones(tier: int | str) -> None:
    world = world_of()
    message = world.refusal(asking(world, gang("train", 2), "hard", tier)[0]).message
    assert message.endswith("there is no HyperNode of that tier or lower; known tiers: 1, 2, rack, spine")


def test_a_hyper_node_that_comes_later_lets_the_gang_start() -> None:
    world = world_of(spine=())
    pods = asking(world, gang("train", 4), "hard", 2)
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.cluster.hyper_nodes.apply(hyper_node("spine", 2, [member(name, "HyperNode") for name in RACKS]))
    assert set(places(world, pods)) <= {f"n{number}" for number in range(6)}


def test_pods_that_come_later_join_those_that_run() -> None:
    world = world_of()
    pods = asking(world, gang("train", 2), "hard", 1)
    nodes = {bind(world, each).spec.node_name for each in pods}
    assert nodes == {"n0", "n1"}
    later = gang("train", 1, minimum=2, first=2)[0]
    world.add(later)
    assert (
        "its 1 pod must be in one HyperNode of tier 1 or lower; the most that fit in one: 0, in rack-a"
        in world.refusal(later).message
    )
    world.cluster.hyper_nodes.apply(hyper_node("rack-a", 1, [member(f"n{number}") for number in (0, 1, 6)]))
    assert places(world, [later]) == ["n6"]


def test_pods_that_run_in_no_common_hyper_node_are_named() -> None:
    world = world_of()
    pods = asking(world, gang("train", 3), "soft")
    for number, each in enumerate(pods[:2]):
        world.add(replace(each, spec=replace(each.spec, node_name=f"n{number * 5}")))
    asking(world, pods[2:], "hard", 2)
    assert "its 2 placed pods are in no HyperNode of tier 2 or lower together" in world.refusal(pods[2]).message


@pytest.mark.parametrize("kind", ["annotations", "labels"])
@pytest.mark.parametrize("key", TOPOLOGY_TIERS)
def test_the_marks_of_pods_say_the_same_as_the_field(kind: str, key: str) -> None:
    world = world_of()
    marks: dict[str, Any] = {TOPOLOGY_MODE: "hard", key: "1"}
    made = gang("train", 4)
    if kind == "annotations":
        pods = [
            replace(each, metadata=replace(each.metadata, annotations=each.metadata.annotations | marks))
            for each in made
        ]
    else:
        pods = [replace(each, metadata=replace(each.metadata, labels=marks)) for each in made]
    world.add(*pods)
    assert "highest tier 1" in world.refusal(pods[0]).message


@pytest.mark.parametrize("tier", ["one", "-1", "9" * 40])
def test_a_tier_that_is_no_number_is_invalid(tier: str) -> None:
    world = world_of()
    marks = {GROUP: "train", MIN_AVAILABLE: "2", TOPOLOGY_MODE: "hard", TOPOLOGY_TIERS[0]: tier}
    assert world.refusal(pod("a", 8, annotations=marks)).reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize("other", [{"annotations": {"sp-block": "8"}}, {"labels": {"tor-affinity": "normal-schema"}}])
def test_hard_topology_excludes_blocks_and_switch_affinity(other: dict[str, dict[str, str]]) -> None:
    world = world_of()
    marks = {GROUP: "train", MIN_AVAILABLE: "2", TOPOLOGY_MODE: "hard", **other.get("annotations", {})}
    asked = pod("a", 8, annotations=marks, labels=other.get("labels"))
    assert "exclude each other" in world.refusal(asked).message


@pytest.mark.parametrize("mode", ["hard", "soft"])
def test_for_pods_that_start_one_by_one_it_is_told_that_nothing_keeps_them_together(mode: str) -> None:
    world = world_of()
    marks = {GROUP: "train", TOPOLOGY_MODE: mode}
    world.cluster.jobs.group_applied(VOLCANO, pod_group(1))
    world.add(*(pods := [pod(f"train-{number}", 8, annotations=marks) for number in range(2)]))
    assert places(world, pods) == ["n0", "n1"]
    (told,) = world.engine.without_effect(pods[0])
    assert told.startswith(f"annotation {TOPOLOGY_MODE}={mode}: it counts for pods that are placed together")


def test_a_job_of_several_pods_without_a_minimum_is_refused_with_hard_only() -> None:
    world, made = world_of(), stateful_set(2)
    world.cluster.jobs.owners.apply(made)
    for mode in ("hard", "soft"):
        each = owned_by(pod("train-0", 8, annotations={TOPOLOGY_MODE: mode}), "StatefulSet", "apps/v1")
        world.add(each)
        if mode == "soft":
            assert places(world, [each]) == ["n0"]
        else:
            assert "nodes of one HyperNode (networkTopology)" in world.refusal(each).message


def test_previous_nodes_and_selectors_count_within_a_hyper_node() -> None:
    world = world_of()
    pods = asking(world, [selecting(each, MESHES) for each in gang("train", 2)], "hard", 2)
    assert world.engine.place(pods[0], ["n2", "n4", "n6"]).node == "n2"
    assert places(world, pods[1:]) == ["n4"]


@given(
    st.lists(st.sampled_from([0, 4, 8]), min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 7), min_size=1, max_size=4)), max_size=5),
    st.integers(2, 4),
    st.integers(0, 3),
    st.sampled_from(["hard", "soft"]),
)
def test_the_tier_is_the_lowest_that_an_exhaustive_search_finds(
    used: list[int], groups: list[tuple[int, set[int]]], size: int, highest: int, mode: str
) -> None:
    world = World()
    for number, chips in enumerate(used):
        world.add(node(f"n{number}", labels=MESHES))
        if chips:
            world.fill(f"n{number}", range(chips))
    nodes: list[set[str]] = []
    for number, (tier, members) in enumerate(groups):
        below = [at for at in members if at >= len(used) and at - len(used) < number]
        world.cluster.hyper_nodes.apply(hyper_node(f"h{number}", tier, [
            *(member(f"n{at}") for at in members if at < len(used)),
            *(member(f"h{at - len(used)}", "HyperNode") for at in below),
        ]))  # fmt: skip
        lower = (nodes[at - len(used)] for at in below if groups[at - len(used)][0] < tier)
        nodes.append({f"n{at}" for at in members if at < len(used)}.union(*lower))
    slots = [f"n{number}" for number, chips in enumerate(used) for _ in range((8 - chips) // 4)]
    pods = asking(world, gang("train", size, chips=4), mode, highest)
    tiers = [
        tier
        for (tier, _), names in zip(groups, nodes, strict=True)
        if (tier <= highest or mode == "soft") and any(names.issuperset(some) for some in combinations(slots, size))
    ]
    if tiers:
        found = set(places(world, pods))
        assert min(tier for (tier, _), names in zip(groups, nodes, strict=True) if found <= names) == min(tiers)
    elif mode == "soft" and len(slots) >= size:
        assert places(world, pods)
    else:
        with pytest.raises(Refusal):
            world.engine.place(pods[0])


@given(
    st.lists(st.lists(st.sampled_from([0, 4, 8]), min_size=1, max_size=4), min_size=1, max_size=4), st.integers(2, 4)
)
def test_of_one_tier_the_hyper_node_is_one_that_volcano_would_choose(groups: list[list[int]], size: int) -> None:
    # network_topology_aware.go: of those where the job fits the highest (used + request) / allocatable.
    world, scores = World(), {}
    for group, used in enumerate(groups):
        names = [f"n{group}-{number}" for number in range(len(used))]
        for name, chips in zip(names, used, strict=True):
            world.add(node(name, labels=MESHES))
            if chips:
                world.fill(name, range(chips))
        world.cluster.hyper_nodes.apply(hyper_node(f"h{group}", 1, [member(name) for name in names]))
        if 8 * len(used) - sum(used) >= 4 * size:
            scores[group] = (sum(used) + 4 * size) / (8 * len(used))
    pods = asking(world, gang("train", size, chips=4), "hard", 1)
    if not scores:
        world.refusal(pods[0])
        return
    (chosen,) = {int(name[1:].partition("-")[0]) for name in places(world, pods)}
    assert scores[chosen] == max(scores.values())


def test_the_kind_is_that_of_volcano() -> None:
    assert HYPER_NODES.path() == "/apis/topology.volcano.sh/v1alpha1/hypernodes"
