"""Which pod is under admission, and whether it can get its chips."""

import pytest

from ascend.annotations import CLAIMED
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from device_plugin.health.levels import FaultLevel
from device_plugin.ledger.admission import AdmissionCandidate, Listing, candidates, chips_for, newest, oldest_decision
from device_plugin.ledger.node_pods import NodePod, read_pod
from tests.device_plugin.builders import judged_chip, pod, snapshot


def read(*pods: object) -> list[NodePod]:
    return [read_pod(each, order) for order, each in enumerate(pods, 1)]  # type: ignore[arg-type]  # every entry is a pod


def names(found: list[AdmissionCandidate]) -> list[str]:
    return [each.pod.name for each in found]


def waiting(*pods: object) -> list[AdmissionCandidate]:
    return candidates(read(*pods), 2, {})


def test_only_live_pods_of_the_same_size_without_chips_are_candidates() -> None:
    pods = read(
        pod("waits", 2, 0, 1, time=5),
        pod("granted", 2, 2, 3, time=6),
        pod("bigger", 4, 4, 5, 6, 7, time=7),
        pod("failed", 2, 4, 5, time=8, phase="Failed"),
        pod("runs", 2, 6, 7, time=9, phase="Running"),
        pod("starting", 2, 6, 7, time=9, started=True),
        pod("no-chips"),
    )
    assert names(candidates(pods, 2, {"uid-granted": {"main"}})) == ["waits"]


def test_a_pod_without_a_grant_is_a_candidate_too() -> None:
    pods = read(pod("placed", 2, 0, 1, time=5), pod("by-hand", 2))
    assert names(candidates(pods, 2, {})) == ["placed", "by-hand"]


def test_a_forged_claim_does_not_hide_a_pod() -> None:
    forged = pod("forged", 2, 0, 1, time=CLAIMED, annotations={"huawei.com/AscendReal": "Ascend910-0,Ascend910-1"})
    assert names(candidates(read(forged), 2, {})) == ["forged"]


def test_the_smallest_predicate_time_decides() -> None:
    # See docs/spec/hand-over.md#finding-the-pod.
    found = waiting(pod("none", 2, 4, 5), pod("seven", 2, 2, 3, time=7), pod("five", 2, 0, 1, time=5))
    assert oldest_decision(found).pod.name == "five"
    assert oldest_decision(found[:2]).pod.name == "seven"
    assert oldest_decision(found[:1]).pod.name == "none"


def test_the_newest_pod_in_the_kubelets_list_is_under_admission() -> None:
    # The kubelet is done with those before it: it rejected them, though their status does not show it yet.
    found = waiting(pod("rejected", 2, 0, 1, time=1), pod("admitted", 2, 2, 3, time=2))
    listed = {"uid-rejected": Listing(1, 0), "uid-admitted": Listing(1, 0)}
    assert newest(found, listed).pod.name == "admitted"
    # It can have admitted them in another order than the watch has shown them to us.
    assert newest(found, listed | {"uid-rejected": Listing(2, 0)}).pod.name == "rejected"
    assert newest(found, listed | {"uid-rejected": Listing(1, 7)}).pod.name == "rejected"
    assert newest(found, {"uid-rejected": Listing(1, 9), "uid-admitted": Listing(2, 8)}).pod.name == "admitted"


@pytest.mark.parametrize(
    ("granted", "asked", "container"),
    [
        ([], 4, "prepare"),
        ([], 1, None),
        (["prepare"], 1, "proxy"),
        (["prepare"], 4, None),
        (["prepare", "proxy"], 2, "left"),
        (["prepare", "proxy", "left"], 2, "right"),
        (["prepare", "proxy", "left", "right"], 2, None),
    ],
)
def test_containers_of_a_pod_are_admitted_one_after_the_other(
    granted: list[str], asked: int, container: str | None
) -> None:
    (many,) = read(crowded("many"))
    found = candidates([many], asked, {many.uid: granted})
    assert [each.ask.container for each in found] == ([container] if container else [])
    assert all(each.begun == bool(granted) for each in found)


def test_a_pod_from_before_a_restart_may_be_at_any_container() -> None:
    (many,) = read(crowded("many"))
    assert [each.ask.container for each in candidates([many], 2, {}, skips=True)] == ["left"]
    assert [each.ask.container for each in candidates([many], 2, {many.uid: ["left"]}, skips=True)] == ["right"]


def test_without_the_kubelets_list_a_partly_admitted_pod_comes_first() -> None:
    begun, other = read(pod("begun", 0, 0, 1, 2, 3, time=9, asks={"a": 2, "b": 2}), pod("other", 2, 4, 5, time=1))
    found = candidates([begun, other], 2, {begun.uid: ["a"]})
    assert oldest_decision(found).pod.name == "begun"


def crowded(name: str) -> Pod:
    """An init container with 4 chips, a sidecar with 1, two app containers with 2 each."""
    return pod(name, 0, *range(5), time=1, asks={"left": 2, "right": 2}, init={"prepare": 4}, sidecars={"proxy": 1})


def test_a_pod_gets_the_chips_written_on_it_in_order() -> None:
    (one,) = read(pod("one", 2, 5, 4, time=1))
    assert chips_for(one, snapshot(), {}, [one]) == (5, 4)


@pytest.mark.parametrize(
    ("who", "reason", "sentence"),
    [
        (pod("p", 2), "NotPlaced", "was not placed by the allocator"),
        (pod("p", 2, 0, time=1), "WrongCount", "names 1 chip, the pod requests 2"),
        (
            pod("p", 1, annotations={"huawei.com/Ascend910": "chip0"}),
            "MalformedAnnotation",
            "'chip0' is not a chip name",
        ),
        (pod("p", 2, 7, 8, time=1), "UnknownChip", "no Ascend910-8"),
        (pod("p", 2, 3, 2, time=1), "ChipUnhealthy", "Ascend910-3 is unhealthy"),
        (pod("p", 2, 1, 2, time=1), "ChipHeld", "Ascend910-1 is held by pod default/holder"),
    ],
)
def test_a_pod_that_cannot_get_its_chips_is_refused_with_a_reason(who: object, reason: str, sentence: str) -> None:
    (one,) = read(who)
    with pytest.raises(Refusal, match=sentence) as refusal:
        chips_for(one, snapshot(3), {"default/holder": 0b0011}, [one])
    assert refusal.value.reason == reason


def test_a_chip_that_bars_new_use_is_only_for_the_pod_that_has_it() -> None:
    (one,) = read(pod("one", 2, 0, 1, time=1))
    kept = snapshot(
        chips={1: judged_chip(level=FaultLevel.PRE_SEPARATE), 2: judged_chip(level=FaultLevel.PRE_SEPARATE)}
    )
    with pytest.raises(Refusal, match="Ascend910-1 has a fault that bars new use") as refusal:
        chips_for(one, kept, {}, [one])
    assert refusal.value.reason == "ChipUnhealthy"
    assert chips_for(one, kept, {}, [one], own=0b11) == (0, 1)


def test_a_pod_decided_earlier_holds_its_chips_before_it_gets_them() -> None:
    placed, forged = read(pod("placed", 2, 0, 1, time=5), pod("forged", 2, 0, 1, time=1))
    assert chips_for(placed, snapshot(), {}, [placed, forged]) == (0, 1)
    with pytest.raises(Refusal, match="held by pod default/placed"):
        chips_for(forged, snapshot(), {}, [placed, forged])


def test_an_annotation_on_a_pod_without_chips_holds_nothing() -> None:
    poser, placed = read(pod("poser", 0, 0, 1, time=1), pod("placed", 2, 0, 1, time=5))
    assert chips_for(placed, snapshot(), {}, [poser, placed]) == (0, 1)
