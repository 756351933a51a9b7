"""Which pod an admission call is about, and whether it may have its chips."""

import pytest

from ascend.annotations import CLAIMED
from ascend.errors import Refusal
from device_plugin.rules.admission import candidates, chips_for, oldest_decision, steer
from device_plugin.rules.pod import NodePod, read_pod
from tests.device_plugin.builders import pod, snapshot


def read(*pods: object) -> list[NodePod]:
    return [read_pod(each, order) for order, each in enumerate(pods, 1)]  # type: ignore[arg-type]  # all are pods


def names(pods: list[NodePod]) -> list[str]:
    return [each.name for each in pods]


def test_only_live_pods_of_the_same_size_without_a_grant_wait() -> None:
    pods = read(
        pod("waits", 2, 0, 1, time=5),
        pod("granted", 2, 2, 3, time=6),
        pod("bigger", 4, 4, 5, 6, 7, time=7),
        pod("failed", 2, 4, 5, time=8, phase="Failed"),
        pod("runs", 2, 6, 7, time=9, phase="Running"),
        pod("starting", 2, 6, 7, time=9, started=True),
        pod("no-chips"),
    )
    assert names(candidates(pods, 2, {"uid-granted"})) == ["waits"]


def test_a_pod_nobody_placed_waits_too_or_its_call_would_take_another_pod_s_chips() -> None:
    pods = read(pod("placed", 2, 0, 1, time=5), pod("by-hand", 2))
    assert names(candidates(pods, 2, ())) == ["placed", "by-hand"]


def test_a_forged_claim_does_not_hide_a_pod() -> None:
    forged = pod("forged", 2, 0, 1, time=CLAIMED, annotations={"huawei.com/AscendReal": "Ascend910-0,Ascend910-1"})
    assert names(candidates(read(forged), 2, ())) == ["forged"]


def test_the_smallest_predicate_time_decides() -> None:
    # spec/node-agent.md §9.6 and §9.8
    pods = read(pod("none", 2, 4, 5), pod("seven", 2, 2, 3, time=7), pod("five", 2, 0, 1, time=5))
    assert oldest_decision(pods).name == "five"
    assert oldest_decision(pods[:2]).name == "seven"
    assert oldest_decision(pods[:1]).name == "none"


def test_a_pod_gets_the_chips_written_on_it_in_that_order() -> None:
    (one,) = read(pod("one", 2, 5, 4, time=1))
    assert chips_for(one, snapshot(), {}, [one]) == (5, 4)


@pytest.mark.parametrize(
    ("who", "reason", "sentence"),
    [
        (pod("p", 2), "NotPlaced", "was not placed by the allocator"),
        (pod("p", 2, 0, time=1), "InvalidPod", "names 1 chips, the container asks for 2"),
        (pod("p", 1, annotations={"huawei.com/Ascend910": "chip0"}), "InvalidPod", "'chip0' is not a chip name"),
        (pod("p", 2, 7, 8, time=1), "UnknownChip", "no Ascend910-8"),
        (pod("p", 2, 3, 2, time=1), "ChipUnhealthy", "Ascend910-3 is unhealthy"),
        (pod("p", 2, 1, 2, time=1), "ChipHeld", "Ascend910-1 is held by pod default/holder"),
    ],
)
def test_a_pod_that_must_not_have_its_chips_is_told_why(who: object, reason: str, sentence: str) -> None:
    (one,) = read(who)
    with pytest.raises(Refusal, match=sentence) as refusal:
        chips_for(one, snapshot(3), {"default/holder": 0b0011}, [one])
    assert refusal.value.reason == reason


def test_a_pod_that_came_earlier_holds_its_chips_before_it_gets_them() -> None:
    placed, forged = read(pod("placed", 2, 0, 1, time=5), pod("forged", 2, 0, 1, time=1))
    assert chips_for(placed, snapshot(), {}, [placed, forged]) == (0, 1)
    with pytest.raises(Refusal, match="held by pod default/placed"):
        chips_for(forged, snapshot(), {}, [placed, forged])


def test_an_annotation_on_a_pod_without_chips_holds_nothing() -> None:
    poser, placed = read(pod("poser", 0, 0, 1, time=1), pod("placed", 2, 0, 1, time=5))
    assert chips_for(placed, snapshot(), {}, [poser, placed]) == (0, 1)


@pytest.mark.parametrize(
    ("available", "must_include", "preferred"),
    [
        ("01234567", "", ["Ascend910-4", "Ascend910-5"]),
        ("0123467", "", []),
        ("0123467", "5", ["Ascend910-4", "Ascend910-5"]),
        ("01234567", "1", []),
        ("", "", []),
    ],
)
def test_the_kubelet_is_steered_only_where_it_can_follow(
    available: str, must_include: str, preferred: list[str]
) -> None:
    assert steer((4, 5), ids(available), ids(must_include)) == preferred


def ids(digits: str) -> list[str]:
    return [f"Ascend910-{digit}" for digit in digits]
