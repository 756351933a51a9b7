"""How many chips a pod requests."""

import pytest

from allocator.rules.request import counted_chips, requested_chips
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import container, pod


@pytest.mark.parametrize("count", [1, 2, 3, 8, 16])
def test_a_container_may_request_any_number_of_chips(count: int) -> None:
    # Which numbers are valid depends on the product.
    assert requested_chips(pod("p", count)) == count


def test_containers_without_chips_do_not_count() -> None:
    each = pod("p", containers=[container("sidecar", None), container("main", 2), container("idle", 0)])
    assert requested_chips(each) == 2


@pytest.mark.parametrize(
    ("each", "reason", "words"),
    [
        (pod("p", None), Reason.INVALID_REQUEST, "huawei.com/Ascend910"),
        (pod("p", 0), Reason.INVALID_REQUEST, "huawei.com/Ascend910"),
        (pod("p", containers=[container("main", "500m")]), Reason.INVALID_REQUEST, "'500m'"),
        (pod("p", 2, init_containers=[container("prepare", "-1")]), Reason.INVALID_REQUEST, "prepare"),
        (pod("p", containers=[container("main", "9" * 5000)]), Reason.INVALID_REQUEST, "9999"),
    ],
)
def test_an_invalid_request_is_refused_with_pod_and_value(each: Pod, reason: str, words: str) -> None:
    with pytest.raises(Refusal) as refused:
        requested_chips(each)
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "default/p" in refused.value.message


def test_containers_add_up_and_init_containers_count_their_maximum() -> None:
    assert requested_chips(pod("p", containers=[container("a", 2), container("b", 2)])) == 4
    assert requested_chips(pod("p", None, init_containers=[container("prepare", 2)])) == 2
    assert requested_chips(pod("p", 2, init_containers=[container("prepare", 8)])) == 8


@pytest.mark.parametrize(("quantity", "requests"), [("2", True), ("0", False), ("00", False), ("-1", True)])
def test_a_pod_requests_chips_if_any_container_does(quantity: str, requests: bool) -> None:  # noqa: FBT001 - a column of the table
    assert pod("p", None, init_containers=[container("prepare", quantity)]).requests_chips is requests


def test_counted_chips_are_those_the_kubelet_counts() -> None:
    assert counted_chips(pod("p", containers=[container("a", 2), container("b", 1)])) == 3
    assert counted_chips(pod("p", 1, init_containers=[container("x", 4), container("y", 2)])) == 4
    assert counted_chips(pod("p", None)) == 0
    assert counted_chips(pod("p", containers=[container("main", "many")])) == 0
