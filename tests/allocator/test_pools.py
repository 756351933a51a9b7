"""Nodes are found by their labels."""

from allocator.rules.request import Ask
from tests.allocator.builders import World, node


def test_nodes_are_found_by_all_labels_of_a_selector_and_found_anew_when_labels_change() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number % 2], "zone": "east"}) for number in range(4)))
    pools = world.cluster.pools
    assert pools.selected({}) == {"n0", "n1", "n2", "n3"}
    assert pools.selected({"pool": "a", "zone": "east"}) == {"n0", "n2"}
    assert pools.selected({"pool": "a", "zone": "west"}) == set()
    world.add(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.selected({"pool": "a", "zone": "west"}) == {"n1"}
    world.cluster.node_deleted(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.selected({"pool": "a"}) == {"n0", "n2"}


def test_a_pod_names_the_products_its_selector_leaves_and_those_it_asks_for() -> None:
    world = World()
    west = {"zone": "west"}
    world.add(node("a", labels=west), node("b", labels=west | {"accelerator-type": "module-910b-8"}))
    world.add(
        node("c", labels={"zone": "east", "accelerator-type": "card"}), node("d", labels={"zone": "north"}, infos="")
    )
    named, any_, larger = world.cluster.pools.named_products, Ask(8), Ask(8, products=frozenset({"910B-8"}))
    assert named({}, any_) is None
    assert named({}, larger) == frozenset({"910B-8"})
    assert named(west, any_) == frozenset({"910A", "910B-8"})
    assert named(west, larger) == frozenset({"910B-8"})
    # Neither a selector that selects nothing known nor one that contradicts the rest makes it name nothing at all.
    assert named({"zone": "north"}, any_) is None
    assert named({"zone": "east"}, larger) == frozenset({"910B-8"})
    # With the same labels as before it now says what its chips are.
    world.add(node("d", labels={"zone": "north"}))
    assert named({"zone": "north"}, any_) == frozenset({"910A"})
