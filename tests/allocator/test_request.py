"""What a pod may ask for, and how."""

import pytest

from allocator.rules.request import counted_chips, requested_chips
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from tests.allocator.builders import container, pod


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_one_container_may_ask_for_any_number(count: int) -> None:
    # Which numbers a product takes is the product's rule.
    assert requested_chips(pod("p", count)) == count


def test_containers_that_ask_for_none_do_not_matter() -> None:
    asking = pod("p", containers=[container("sidecar", None), container("main", 2), container("idle", 0)])
    assert requested_chips(asking) == 2


@pytest.mark.parametrize(
    ("asking", "reason", "words"),
    [
        (pod("p", None), "InvalidRequest", "does not ask"),
        (pod("p", 0), "InvalidRequest", "does not ask"),
        (pod("p", containers=[container("main", "500m")]), "InvalidRequest", "'500m'"),
        (pod("p", 2, init_containers=[container("prepare", "-1")]), "InvalidRequest", "prepare"),
        (pod("p", containers=[container("main", "9" * 5000)]), "InvalidRequest", "not a whole number"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(asking: Pod, reason: str, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        requested_chips(asking)
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "default/p" in refused.value.message


def test_containers_that_run_together_add_up_and_an_init_container_needs_its_own_only_before() -> None:
    assert requested_chips(pod("p", containers=[container("a", 2), container("b", 2)])) == 4
    assert requested_chips(pod("p", None, init_containers=[container("prepare", 2)])) == 2
    assert requested_chips(pod("p", 2, init_containers=[container("prepare", 8)])) == 8


@pytest.mark.parametrize(("quantity", "asks"), [("2", True), ("0", False), ("00", False), ("-1", True)])
def test_a_pod_asks_for_chips_as_soon_as_one_container_does_be_it_an_init_container(quantity: str, asks: bool) -> None:  # noqa: FBT001 - a column of the table
    assert pod("p", None, init_containers=[container("prepare", quantity)]).requests_chips is asks


def test_the_kubelet_counts_all_regular_containers_and_the_largest_init_container() -> None:
    assert counted_chips(pod("p", containers=[container("a", 2), container("b", 1)])) == 3
    assert counted_chips(pod("p", 1, init_containers=[container("x", 4), container("y", 2)])) == 4
    assert counted_chips(pod("p", None)) == 0
    assert counted_chips(pod("p", containers=[container("main", "many")])) == 0
