"""What kube-scheduler writes on the pods of its own groups: only the pod that it can't place itself is refused."""

import pytest

from allocator.rules.scheduled import Refused, is_refusal, refused_by_filters
from ascend.kube.objects import Condition

OF_PEERS = (
    "minCount (4) cannot be satisfied: 0 scheduled, 3 remaining",
    "pod group is unschedulable, minCount (4) cannot be satisfied: 3 scheduled, 0 remaining",
    "0/2 placements are available, first placement status: pod group is unschedulable",
)


@pytest.mark.parametrize("message", OF_PEERS)
def test_a_pod_whose_group_cannot_be_placed_is_not_refused_itself(message: str) -> None:
    verdict = Condition("PodScheduled", "False", "Unschedulable", message)
    assert not is_refusal(verdict)
    assert refused_by_filters(verdict) is None


def test_the_pod_of_a_group_that_cannot_be_placed_is_refused() -> None:
    verdict = Condition("PodScheduled", "False", "Unschedulable", "0/5 nodes are available: 5 Insufficient cpu.")
    assert is_refusal(verdict)


@pytest.mark.parametrize("resource", ["permits.example.com/seat", "example.com/gang-nic"])
def test_the_name_of_a_resource_tells_nothing_of_peers(resource: str) -> None:
    helpless = "preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
    message = f"0/5 nodes are available: 5 Insufficient {resource}. {helpless}"
    verdict = Condition("PodScheduled", "False", "Unschedulable", message)
    assert refused_by_filters(verdict) is Refused.NEVER
