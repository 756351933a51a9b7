"""Nodes are found by their labels."""

from tests.allocator.builders import World, node


def test_nodes_are_found_by_their_current_labels() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number % 2], "zone": "east"}) for number in range(4)))
    pools = world.cluster.labels
    assert pools.selected({}) == {"n0", "n1", "n2", "n3"}
    assert pools.selected({"pool": "a", "zone": "east"}) == {"n0", "n2"}
    assert pools.selected({"pool": "a", "zone": "west"}) == set()
    world.add(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.selected({"pool": "a", "zone": "west"}) == {"n1"}
    world.cluster.node_deleted(node("n1", labels={"pool": "a", "zone": "west"}))
    assert pools.selected({"pool": "a"}) == {"n0", "n2"}
