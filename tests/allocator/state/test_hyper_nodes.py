"""The nodes of HyperNodes are found by name, expression and labels; what can't be read costs only itself."""

from collections.abc import Sequence
from typing import Any

import pytest

from allocator.state.hyper_nodes import HYPER_NODE, HyperNode, _prefix
from allocator.state.kinds import KINDS, fill
from ascend.kube.objects import KubeObject, Metadata
from tests.allocator.builders import World, node
from tests.allocator.gangs.test_network_topology import hyper_node, member


def by(kind: str, **selector: object) -> dict[str, Any]:
    return {"type": kind, "selector": selector}


def regex(pattern: str) -> dict[str, Any]:
    return by("Node", regexMatch={"pattern": pattern})


def labelled(*expressions: tuple[str, str, list[str]], **labels: str) -> dict[str, Any]:
    asked = [{"key": key, "operator": operator, "values": values} for key, operator, values in expressions]
    return by("Node", labelMatch={"matchLabels": labels, "matchExpressions": asked})


def world_of(*hyper_nodes: HyperNode) -> World:
    world = World()
    world.add(*(node(f"n{number}", labels={"rack": "ab"[number % 2]}) for number in range(4)))
    for each in hyper_nodes:
        world.cluster.hyper_nodes.apply(each)
    return world


def nodes_of(world: World, name: str) -> set[str]:
    tiers = world.cluster.hyper_nodes.tree().tiers
    return set(next(members[name] for members in tiers.values() if name in members))


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ([member("n1"), member("gone")], {"n1"}),
        ([regex("^n[12]$"), member("n0")], {"n0", "n1", "n2"}),
        ([regex("3")], {"n3"}),
        ([labelled(rack="a")], {"n0", "n2"}),
        ([labelled(("rack", "NotIn", ["a"]))], {"n1", "n3"}),
        ([labelled(("rack", "Exists", []), rack="b")], {"n1", "n3"}),
        ([labelled()], set()),
        ([], set()),
    ],
)
def test_members_are_found_by_each_selector(members: Sequence[object], expected: set[str]) -> None:
    assert nodes_of(world_of(hyper_node("h", 1, members)), "h") == expected


def test_a_hyper_node_has_the_nodes_of_those_of_lower_tiers() -> None:
    world = world_of(
        hyper_node("top", 3, [member("low", HYPER_NODE), member("middle", HYPER_NODE)]),
        hyper_node("middle", 2, [member("n3")]),
        hyper_node("low", 1, [member("n0")]),
    )
    assert nodes_of(world, "top") == {"n0", "n3"}


def test_cycles_and_missing_members_are_named_and_cost_only_themselves() -> None:
    world = world_of(
        hyper_node("a", 1, [member("b", HYPER_NODE), member("n0")]),
        hyper_node("b", 1, [member("a", HYPER_NODE), member("c", HYPER_NODE), member("n1")]),
    )
    assert (nodes_of(world, "a"), nodes_of(world, "b")) == ({"n0"}, {"n1"})
    assert world.cluster.hyper_nodes.tree().problems == (
        "HyperNode a: its member b is left out, whose tier is not lower",
        "HyperNode b: its member a is left out, whose tier is not lower",
        "HyperNode b: its member c does not exist",
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (regex("(a"), "regexMatch '(a' can't be read: missing ): (a"),
        (regex("a{1000}b{1000}"), "it is too complex"),
        (regex("x" * 300), "it is too long"),
        (regex("\\1"), "invalid escape sequence"),
        (by("Rack", exactMatch={"name": "x"}), "a member of type 'Rack' has no selector that is known for it"),
        (by(HYPER_NODE, regexMatch={"pattern": "x"}), "a member of type 'HyperNode' has no selector"),
    ],
)
def test_a_member_that_can_not_be_read_is_named(wrong: dict[str, Any], why: str) -> None:
    world = world_of(hyper_node("h", 1, [member("n0"), wrong]))
    assert nodes_of(world, "h") == {"n0"}
    (problem,) = world.cluster.hyper_nodes.tree().problems
    assert why in problem


def test_nodes_of_several_hyper_nodes_of_a_tier_are_named() -> None:
    world = world_of(hyper_node("a", 1, [member("n0"), member("n1")]), hyper_node("b", 1, [member("n1")]))
    assert world.cluster.hyper_nodes.tree().problems == ("in several HyperNodes of tier 1: node n1",)


def test_one_name_of_two_tiers_is_doubtful() -> None:
    world = world_of(hyper_node("a", 1, [], "rack"), hyper_node("b", 2, [], "rack"))
    assert world.cluster.hyper_nodes.tree().named == {"rack": 1}
    assert "same tierName is 1" in world.cluster.hyper_nodes.tree().problems[0]


def test_changes_of_nodes_and_of_hyper_nodes_count_at_once() -> None:
    world = world_of(hyper_node("h", 1, [labelled(rack="a"), regex("^m")]))
    assert nodes_of(world, "h") == {"n0", "n2"}
    world.add(node("n1", labels={"rack": "a"}), node("m0"))
    assert nodes_of(world, "h") == {"n0", "n1", "n2", "m0"}
    world.cluster.node_deleted(node("n0"))
    assert nodes_of(world, "h") == {"n1", "n2", "m0"}
    world.cluster.hyper_nodes.delete(hyper_node("h", 1, []))
    assert not world.cluster.hyper_nodes.tree().tiers


def test_an_unreadable_one_is_named_until_it_is_gone_and_each_problem_is_logged_once() -> None:
    world = world_of(hyper_node("h", 1, [member("n0")]))
    told: list[str] = []
    world.cluster.hyper_nodes.unreadable = told.append
    header = KubeObject(metadata=Metadata(name="h"))
    world.cluster.on_unreadable(HYPER_NODE, header, "spec.tier: Expected `int`, got `str`")
    for _ in range(2):
        assert "HyperNode h: spec.tier" in world.cluster.hyper_nodes.tree().problems[0]
        world.add(node("n9"))
    assert len(told) == 1
    world.cluster.on_unreadable(HYPER_NODE, header, "")
    assert not world.cluster.hyper_nodes.tree().problems


def test_none_is_left_once_the_kind_is_no_longer_served() -> None:
    world = world_of(hyper_node("h", 1, [member("n0")]))
    world.cluster.jobs.on_watched(HYPER_NODE, "HyperNodes")
    world.cluster.on_unserved(HYPER_NODE, "HyperNodes")
    assert not world.cluster.hyper_nodes.tree().tiers


def test_expressions_that_compare_too_many_names_are_given_up() -> None:
    world = World()
    world.add(*(node(f"node-{number}") for number in range(100)))
    for number in range(30):
        world.cluster.hyper_nodes.apply(hyper_node(f"z-{number}", 1, [regex(f"{number}$")]))
        world.cluster.hyper_nodes.apply(hyper_node(f"begun-{number}", 1, [regex(f"^node-{number}$")]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("allocator.state.hyper_nodes._MOST_NAMES", 1500)
        tree = world.cluster.hyper_nodes.tree()
    assert len(tree.problems) in range(10, 30)
    assert all(nodes for name, nodes in tree.tiers[1].items() if name.startswith("begun"))


def test_the_watch_applies_and_reads_them() -> None:
    (kind,) = (kind for kind in KINDS if kind.name == "HyperNodes")
    assert kind.is_optional
    world = World()
    world.add(node("n0"))
    fill(world.cluster, {"HyperNodes": [hyper_node("h", 0, [member("n0")])]})
    assert nodes_of(world, "h") == {"n0"}


def test_the_lowest_hyper_node_that_has_some_nodes_is_known() -> None:
    low, top = hyper_node("low", 1, [member("n0")]), hyper_node("top", 2, [member("low", HYPER_NODE), member("n1")])
    tree = world_of(low, top).cluster.hyper_nodes.tree()
    assert [tree.lowest(nodes) for nodes in (["n0"], ["n0", "n1"], ["n2"])] == [(1, "low"), (2, "top"), None]


def test_an_expression_takes_linear_time_whatever_it_is() -> None:
    world = world_of(hyper_node("h", 1, [regex("(a|a)*(a*)*b$"), regex("^n1$")]))
    world.add(node("a" * 250))  # a matcher that tries one way after the other does not end
    assert nodes_of(world, "h") == {"n1"}


def test_hyper_nodes_are_read_with_pauses_and_a_change_meanwhile_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.state.hyper_nodes._STEP", 1)
    world = world_of(hyper_node("h", 1, [regex("^n")]), hyper_node("other", 1, []))
    reading = world.cluster.hyper_nodes.read()
    next(reading)
    world.cluster.hyper_nodes.apply(hyper_node("h", 1, [member("n0")]))
    assert sum(1 for _ in reading) > len(world.cluster.nodes)
    assert nodes_of(world, "h") == {"n0"}


def test_a_hyper_node_that_is_deleted_while_all_are_read_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allocator.state.hyper_nodes._STEP", 1)
    low, top = hyper_node("low", 1, [member("n0")]), hyper_node("top", 2, [member("low", HYPER_NODE), member("n1")])
    world = world_of(low, top)
    reading = world.cluster.hyper_nodes.read()
    next(reading)  # before the first
    next(reading)  # before the second
    world.cluster.hyper_nodes.delete(low)
    assert list(reading)
    assert nodes_of(world, "top") == {"n1"}


@pytest.mark.parametrize(
    ("text", "prefix"),
    [("^node-[0-9]+$", "node-"), ("^rack1-.*", "rack1-"), ("node-1", ""), ("^ab?", "a"), ("^ab|^c", ""), ("^a{2}", "")],
)
def test_the_beginning_of_all_names_is_known_if_it_is_literal(text: str, prefix: str) -> None:
    assert _prefix(text) == prefix
