"""What kube-scheduler writes on the pods of its own groups: only the pod that it can't place itself is refused."""

import pytest

from allocator.rules.scheduled import Refused, is_refusal, refused_by_filters
from ascend.kube.objects import Condition

OF_PEERS = (
    "minCount (4) cannot be satisfied: 0 scheduled, 3 remaining",
    "pod group is unschedulable, minCount (4) cannot be satisfied: 3 scheduled, 0 remaining",
    "0/2 placements are available, first placement status: pod group is unschedulable",
)
OF_OTHERS = (
    "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [gang-limits].",
    "0/3 nodes are available: 3 node(s) didn't satisfy plugin(s) [gang].",
    "Pod exceeded elastic quota team-gang in namespace",
    "quota permit.example.com/gang is exceeded",
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


@pytest.mark.parametrize("message", OF_OTHERS)
def test_the_name_of_a_plugin_or_a_quota_tells_nothing_of_peers(message: str) -> None:
    assert refused_by_filters(Condition("PodScheduled", "False", "Unschedulable", message)) is Refused.OTHER


@pytest.mark.parametrize(
    "message",
    [
        "pod group is not ready, 2 Pending, 2 minAvailable",
        "2/3 tasks in gang unschedulable: pod group is not ready, 1 Running, 3 minAvailable.",
        'pod "big-0" rejected while waiting on permit: rejected due to timeout',
        "PodGroup default/big gets rejected due to Pod big-1 is unschedulable even after PostFilter",
        "0/4 nodes are available: 1 ChipsKept: kept for job default/big, 3 Insufficient cpu.",
        "GangSteppedBack: job default/big releases its chips",
    ],
)
def test_a_refusal_because_of_peers_is_none_of_the_pod_itself(message: str) -> None:
    assert refused_by_filters(Condition("PodScheduled", "False", "Unschedulable", message)) is None
