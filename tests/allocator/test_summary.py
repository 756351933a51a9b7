"""Many nodes' refusals as one."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.summary import MIXED, sum_up

_REASONS = ["RingTooSmall", "NotEnoughChips", "NodeNotReady", "NotAnNpuNode", "UnknownNode"]


def test_a_reason_all_npu_nodes_share_is_the_pods() -> None:
    refusal = sum_up("default/a", 4, {"NotAnNpuNode": 9, "RingTooSmall": 2})
    assert refusal.reason == "RingTooSmall"
    assert refusal.message == "pod default/a: 4 chips fit on none of 11 nodes: 9 NotAnNpuNode, 2 RingTooSmall"


def test_reasons_that_differ_are_counted_the_most_frequent_first() -> None:
    refusal = sum_up("default/a", 4, {"NodeNotReady": 1, "RingTooSmall": 2})
    assert (refusal.reason, refusal.message.rpartition(": ")[2]) == (MIXED, "2 RingTooSmall, 1 NodeNotReady")


def test_without_npu_nodes_that_is_the_reason() -> None:
    assert sum_up("default/a", 1, {"NotAnNpuNode": 3}).reason == "NotAnNpuNode"
    assert sum_up("default/a", 1, {}).message == "pod default/a: 1 chips fit on none of 0 nodes: there are none"


@given(st.lists(st.sampled_from(_REASONS)))
def test_every_node_is_counted_once(reasons: list[str]) -> None:
    counted = sum_up("default/a", 1, Counter(reasons))
    assert f"none of {len(reasons)} nodes" in counted.message
    assert all(f"{count} {reason}" in counted.message for reason, count in Counter(reasons).items())
