"""Nodes come in the order in which they drain soonest, whatever has changed."""

from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from allocator.decision.drain_order import DrainOrder
from ascend.takes import Take
from ascend.turn import at_once
from tests.allocator.builders import World, node, pod

NAMES = tuple(f"n{number}" for number in range(12))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["node", "gone", "pod", "end", "reserve", "release", "look"]),
            st.sampled_from(NAMES),
            st.integers(0, 5),
        ),
        max_size=80,
    )
)
def test_the_nodes_with_the_fewest_pods_come_first(changes: Sequence[tuple[str, str, int]]) -> None:
    world = World()
    order = DrainOrder(world.cluster, world.ledger)
    with mock.patch("allocator.decision.drain_order._BLOCK", 3):
        for what, name, number in changes:
            made = pod(f"p{number}", 1, node=name, chips=[number], phase="Running")
            match what:
                case "node":
                    world.add(node(name))
                case "gone":
                    world.cluster.node_deleted(node(name))
                case "pod":
                    world.add(made)
                case "end":
                    world.cluster.pod_deleted(made)
                case "reserve":
                    world.ledger.reserve(uid=f"r{number}", pod=f"default/r{number}", node=name, take=Take.whole([7]))
                case "release":
                    world.ledger.release(f"r{number}")
                case _:
                    at_once(order.refresh())
        at_once(order.refresh())

    def pods(name: str) -> int:
        return len(world.cluster.nodes[name].holdings.keys() | world.ledger.on(name).keys())

    usable = [name for name in NAMES if name in world.cluster.nodes and world.cluster.nodes[name].node is not None]
    expected = sorted((pods(name), name) for name in usable)
    assert list(order.entries(None, None)) == list(order.entries(None, NAMES)) == expected
    assert order.chips == 8 * len(usable)
