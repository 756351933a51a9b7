"""The refusals of many nodes summed up in one."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from allocator.rules.summary import sum_up
from ascend.grammar import count
from ascend.reasons import Reason

_REASONS = [
    Reason.RING_TOO_SMALL,
    Reason.NOT_ENOUGH_CHIPS,
    Reason.NODE_NOT_READY,
    Reason.NOT_AN_NPU_NODE,
    Reason.UNKNOWN_NODE,
]


def test_a_reason_shared_by_all_npu_nodes_is_the_pods_reason() -> None:
    refusal = sum_up("default/a", "4 chips", {Reason.NOT_AN_NPU_NODE: 9, Reason.RING_TOO_SMALL: 2})
    assert refusal.reason is Reason.RING_TOO_SMALL
    assert refusal.message == "pod default/a: 4 chips fit on none of 11 nodes: 9 NotAnNpuNode, 2 RingTooSmall"


def test_different_reasons_are_counted_most_frequent_first() -> None:
    refusal = sum_up("default/a", "4 chips", {Reason.NODE_NOT_READY: 1, Reason.RING_TOO_SMALL: 2})
    assert (refusal.reason, refusal.message.rpartition(": ")[2]) == (
        Reason.NO_NODE_FITS,
        "2 RingTooSmall, 1 NodeNotReady",
    )


def test_without_npu_nodes_the_reason_is_not_an_npu_node() -> None:
    assert sum_up("default/a", "1 chip", {Reason.NOT_AN_NPU_NODE: 3}).reason is Reason.NOT_AN_NPU_NODE
    assert sum_up("default/a", "1 chip", {}).message == "pod default/a: 1 chip requested, and there are no nodes"


@given(st.lists(st.sampled_from(_REASONS), min_size=1))
def test_every_node_is_counted_once(reasons: list[Reason]) -> None:
    counted = sum_up("default/a", "1 chip", Counter(reasons))
    assert f"none of {count(len(reasons), 'node')}: " in counted.message
    assert all(f"{number} {reason}" in counted.message for reason, number in Counter(reasons).items())
