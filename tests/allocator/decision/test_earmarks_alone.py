"""A pod that is placed alone is not starved either: chips are kept for the job that comes first, whatever its size."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.earmarks import MORE_S, PATIENCE_S
from allocator.decision.preemption import Preemption
from ascend.errors import Refusal
from ascend.kube.objects import Condition, Pod, PodStatus, SchedulingGate, Taint
from tests.allocator.builders import World, node, pod
from tests.allocator.decision.test_earmarks import end, gang, holder, kept, places, world_of

BOUND_S = 25.0
"""How long a node without pods is kept at most for a job that is refused there."""
OLD, LATE = "2025-12-31T00:00:00Z", "2026-01-02T00:00:00Z"
CPU = "0/4 nodes are available: 4 Insufficient cpu. preemption: 0/4 nodes are available: 4 Preemption is not helpful."
CHIPS = "0/4 nodes are available: 4 Insufficient huawei.com/Ascend910."


def full(nodes: int, *pods: Pod, loans: int = 0) -> World:
    """Nodes with a pod on each half."""
    halves = [(f"s{number}-{half}", f"n{number}", half) for number in range(nodes) for half in range(2)]
    return world_of(
        nodes, *(holder(name, on, range(4 * half, 4 * half + 4)) for name, on, half in halves), *pods, loans=loans
    )


def late(name: str, chips: int) -> Pod:
    return pod(name, chips, since=LATE)


def refused(each: Pod, message: str) -> Pod:
    verdict = Condition("PodScheduled", "False", "Unschedulable", message)
    return replace(each, status=replace(each.status, conditions=(verdict,)))


def kept_for(world: World) -> list[str]:
    """For whom nodes drain at the next decision."""
    world.engine.filter(late("any", 1))
    return [promise.what for promise in world.ledger.promises]


def test_a_pod_that_takes_a_whole_server_gets_one_among_smaller_pods() -> None:
    world = full(3)
    assert not places(world, pod("big", 8))
    end(world, "s0-0")
    assert not places(world, late("small", 4))
    end(world, "s1-1")  # elsewhere the smaller ones go on
    assert places(world, world.cluster.pods["uid-small"]) == "n1"
    end(world, "s0-1")
    assert places(world, world.cluster.pods["uid-big"]) == "n0"
    assert not kept_for(world)


def test_a_pod_that_kube_scheduler_has_not_asked_for_is_kept_chips_as_well() -> None:
    world = full(2, refused(pod("big", 8), CHIPS))
    end(world, "s1-0")
    assert not places(world, late("small", 4))


def test_nothing_is_kept_for_a_pod_that_was_not_refused_yet() -> None:
    world = world_of(2, pod("about-to-be-placed", 8))
    assert places(world, late("one", 8))
    assert not world.ledger.promises
    assert places(world, late("other", 8))


def test_a_pod_whose_gates_were_removed_waits_from_its_first_refusal_on_and_comes_by_its_age() -> None:
    gate = SchedulingGate("kueue.x-k8s.io/admission")
    verdict = Condition("PodScheduled", "False", "SchedulingGated", "Scheduling is blocked due to non-empty gates")
    free = replace(pod("old", 8, since=OLD), status=PodStatus(phase="Pending", conditions=(verdict,)))
    gated = replace(free, spec=replace(free.spec, scheduling_gates=(gate,)))
    world = full(2, gated, refused(late("big", 8), CHIPS))
    assert kept_for(world) == ["pod default/big"]
    world.add(free)
    assert kept_for(world) == ["pod default/big"]
    world.add(refused(free, CHIPS))
    assert kept_for(world) == ["pod default/old"]


def test_nothing_is_kept_for_a_pod_that_lacks_something_else_until_that_changes() -> None:
    world = full(2, refused(pod("big", 8), CPU))
    assert not places(world, late("other", 8))
    end(world, "s0-0")
    assert kept_for(world) == ["pod default/other"]
    world.add(refused(pod("big", 8), CHIPS))
    assert kept_for(world) == ["pod default/big"]


def test_of_pods_and_gangs_the_oldest_of_the_highest_priority_comes_first() -> None:
    world = full(4, *gang("young", 2, since=LATE))
    assert kept_for(world) == ["job default/young"]
    assert not places(world, pod("old", 8, since=OLD))
    assert kept_for(world) == ["pod default/old"]
    assert not places(world, pod("urgent", 8, priority=1, since=LATE))
    assert kept_for(world) == ["pod default/urgent"]
    end(world, "urgent")
    assert kept_for(world) == ["pod default/old"]
    end(world, "old")
    assert kept_for(world) == ["job default/young"]


def test_a_pod_that_fits_keeps_its_own_chips_until_its_scheduler_asks_for_it_again() -> None:
    world = full(2)
    assert not places(world, pod("half", 4))
    end(world, "s0-0")
    end(world, "s1-0")
    assert places(world, late("one", 4))
    assert not places(world, late("other", 4))
    assert sum(chips.bit_count() for chips in kept(world).values()) == 4
    assert places(world, world.cluster.pods["uid-half"])


def test_the_nodes_with_the_fewest_pods_drain_whatever_chips_these_have() -> None:
    smalls = (holder(f"s{chip}", "n0", [chip]) for chip in range(3))
    world = world_of(2, *smalls, holder("whole", "n1"))
    assert not places(world, pod("big", 8))
    world.engine.filter(late("any", 1))
    assert set(kept(world)) == {"n1"}
    end(world, "whole")
    assert not places(world, late("other", 8))
    assert places(world, world.cluster.pods["uid-big"]) == "n1"


def test_more_nodes_drain_after_a_day_since_some_pods_run_for_ever() -> None:
    services = [holder(f"service-{number}", f"n{number}", [0]) for number in range(4)]
    others = [holder(f"w{number}-{chip}", f"n{number}", [chip]) for number in range(4, 16) for chip in range(2)]
    world = world_of(16, *services, *others, refused(pod("big", 8), CHIPS))
    seen = []
    for _ in range(4):
        world.engine.filter(late("any", 1))
        seen.append(len(kept(world)))
        world.now_s += MORE_S
    assert seen == [1, 2, 4, 8]
    for chip in range(2):
        end(world, f"w7-{chip}")
    assert not places(world, late("other", 8))
    assert places(world, world.cluster.pods["uid-big"]) == "n7"


def test_a_free_node_that_the_pod_does_not_tolerate_is_not_kept_for_it() -> None:
    world = full(2)
    tainted = node("n9")
    world.add(replace(tainted, spec=replace(tainted.spec, taints=(Taint("dedicated", "NoSchedule"),))))
    world.add(refused(pod("big", 8), CHIPS))
    end(world, "s1-0")
    small = late("small", 4)
    world.add(small)
    with pytest.raises(Refusal, match="kept for pod default/big"):
        world.engine.place(small, ["n1"])
    assert set(kept(world)) == {"n1"}


def test_a_pod_that_preempts_is_kept_the_chips_of_its_victims_instead() -> None:
    big = refused(pod("big", 8, priority=1), CHIPS)
    world = full(2, big)
    assert kept_for(world) == ["pod default/big"]
    assert set(kept(world)) == {"n0"}
    big = replace(big, status=replace(big.status, nominated_node_name="n1"))
    world.add(big)
    Preemption(world.cluster, world.ledger, world.engine).on_nomination(big)
    for _ in range(2):
        assert kept_for(world) == ["pod default/big"]
        assert set(kept(world)) == {"n1"}


def test_a_pod_that_does_not_use_free_chips_lets_others_pass() -> None:
    world = full(2, refused(pod("big", 8), CHIPS))
    for half in (0, 1):
        end(world, f"s0-{half}")
    for pause_s in (10.0, PATIENCE_S + 1):
        assert kept_for(world) == ["pod default/big"]
        world.now_s += pause_s
    assert places(world, late("other", 8)) == "n0"


NO_CPU_WHERE_CHIPS_ARE = "0/3 nodes are available: 3 Insufficient cpu, 1 Insufficient huawei.com/Ascend910."
ASKED = "0/3 nodes are available: 1 Insufficient huawei.com/Ascend910, 2 GangDoesNotFit: 2 pods fit at once."


def kept_nodes(world: World) -> set[str]:
    world.engine.filter(late("any", 1))
    return set(kept(world))


def go_on(world: World, for_s: float) -> None:
    for _ in range(round(for_s / 5)):
        world.now_s += 5.0
        world.engine.filter(late("any", 1))


@pytest.mark.parametrize(("verdict", "is_kept"), [(NO_CPU_WHERE_CHIPS_ARE, False), (CHIPS, False), (ASKED, True)])
def test_a_job_that_is_refused_where_chips_are_free_lets_others_pass_although_it_lacks_others(
    verdict: str, *, is_kept: bool
) -> None:
    """Two nodes are free, and its scheduler asks for none of its pods: it lacks something else there."""
    world = world_of(3, holder("runs", "n1", [0]), *(refused(each, verdict) for each in gang("big", 3)))
    assert not places(world, late("any-0", 8))
    assert kept_for(world) == ["job default/big"]
    go_on(world, BOUND_S)
    assert bool(places(world, late("any-1", 8))) is not is_kept


def test_a_pod_that_is_refused_on_a_free_node_waits_for_the_chips_of_another() -> None:
    world = world_of(2, holder("runs", "n1", [0]), refused(pod("big", 8), NO_CPU_WHERE_CHIPS_ARE))
    assert kept_nodes(world) == {"n0"}
    go_on(world, BOUND_S)
    assert kept_nodes(world) == {"n1"}
    assert places(world, late("any", 8)) == "n0"


@pytest.mark.parametrize(("asked", "nodes"), [(0, {"n2", "n3"}), (1, {"n0", "n2"}), (2, {"n0", "n1"})])
def test_as_many_free_nodes_are_kept_for_a_gang_as_its_scheduler_has_asked_for(asked: int, nodes: set[str]) -> None:
    verdicts = [ASKED] * asked + [NO_CPU_WHERE_CHIPS_ARE] * (2 - asked)
    running = [holder(f"runs-{name}", name, [0]) for name in ("n2", "n3")]
    pods = [refused(each, verdict) for each, verdict in zip(gang("big", 2), verdicts, strict=True)]
    world = world_of(4, *running, *pods)
    assert kept_nodes(world) == {"n0", "n1"}
    go_on(world, BOUND_S)
    assert kept_nodes(world) == nodes


def test_a_node_is_kept_for_a_refused_gang_once_more_when_its_pod_has_ended() -> None:
    running = [holder(f"runs-{name}", name, [0]) for name in ("n1", "n2")]
    world = world_of(3, *running, *(refused(each, NO_CPU_WHERE_CHIPS_ARE) for each in gang("big", 2)))
    go_on(world, BOUND_S)
    assert kept_nodes(world) == {"n1", "n2"}
    end(world, "runs-n1")
    assert kept_nodes(world) == {"n1", "n2"}
    assert places(world, late("any", 8)) == "n0"
    go_on(world, BOUND_S)
    assert not kept_nodes(world)


def test_the_pods_that_can_not_be_placed_do_not_keep_others_from_chips() -> None:
    never = {"no": "node"}
    impossible = [refused(pod(f"never-{number}", 8, since=OLD, selector=never), CHIPS) for number in range(100)]
    world = full(2, *impossible, refused(pod("big", 8), CHIPS))
    for _ in range(8):
        assert kept_for(world) == ["pod default/big"]
        world.now_s += 10


@given(
    held=st.lists(st.integers(0, 8), min_size=2, max_size=6),
    ends=st.lists(st.integers(0, 47), max_size=48),
    chips=st.sampled_from([1, 2, 4, 8]),
    younger=st.sampled_from([1, 2, 4, 8]),
)
def test_the_oldest_pod_starts_after_others_have_ended_however_many_younger_ones_come(
    held: list[int], ends: list[int], chips: int, younger: int
) -> None:
    # After every end as many younger ones come as fit. Every pod ends, in any order at first, then by age.
    world = world_of(len(held))
    running = [holder(f"s{on}-{chip}", f"n{on}", [chip]) for on, count in enumerate(held) for chip in range(count)]
    world.add(*running)
    names, number = [each.name for each in running], 0
    oldest = refused(pod("oldest", chips), CHIPS)
    for _ in range(64 * len(held)):
        if places(world, oldest):
            return
        end(world, names.pop((ends.pop() if ends else 0) % len(names)))
        while places(world, late(f"late-{number}", younger)):
            names.append(f"late-{number}")
            number += 1
        end(world, f"late-{number}")
    raise AssertionError
