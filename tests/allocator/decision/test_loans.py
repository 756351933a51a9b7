"""What is kept for a job that can't start yet is lent to pods alone, a limited number of times."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.earmarks import LOANS
from ascend.kube.objects import Pod
from tests.allocator.builders import World, node, pod
from tests.allocator.decision.test_earmarks import MESHES, end, gang, holder, places, world_of
from tests.allocator.decision.test_earmarks_alone import CHIPS, OLD, full, kept_for, late, refused


def half_free() -> World:
    """Two nodes; on one of them half is kept for a pod of a whole server, all others are in use."""
    world = full(2, refused(pod("big", 8), CHIPS), loans=LOANS)
    end(world, "s0-0")
    return world


def runs(world: World, each: Pod) -> bool:
    """Have a pod run if it is placed."""
    if not places(world, each):
        return False
    held = world.ledger.get(each.uid)
    assert held is not None
    world.add(holder(each.name, held.node, held.take.chips))
    return True


def test_chips_are_lent_while_a_pod_keeps_the_job_from_starting() -> None:
    world = half_free()
    assert world.engine.may_fit(small := late("small", 4))
    assert places(world, small) == "n0"
    assert not world.engine.may_fit(late("other", 4))


def test_a_job_lends_chips_no_more_than_a_few_times() -> None:
    world = half_free()
    for number in range(LOANS):
        assert runs(world, late(f"late-{number}", 4))
        end(world, f"late-{number}")
    assert not places(world, late("last", 4))
    end(world, "s0-1")
    assert places(world, world.cluster.pods["uid-big"]) == "n0"


def a_gang_of_higher_priority(world: World) -> None:
    world.add(node("n2", labels=MESHES), node("n3", labels=MESHES), *(pods := gang("urgent", 2, priority=1)))
    assert kept_for(world) == ["job default/urgent"]
    for each in pods:
        world.add(holder(each.name, places(world, each), annotations=each.metadata.annotations))


def a_pod_of_higher_priority(world: World) -> None:
    assert not places(world, pod("urgent", 8, priority=1))
    assert kept_for(world) == ["pod default/urgent"]
    end(world, "urgent")


def an_older_pod(world: World) -> None:
    assert not places(world, pod("older", 8, since=OLD))
    assert kept_for(world) == ["pod default/older"]
    end(world, "older")


def nobody(world: World) -> None:
    world.add(*(node(f"n{number}", labels=MESHES, ready=False) for number in range(2)))
    assert not kept_for(world)
    world.add(*(node(f"n{number}", labels=MESHES) for number in range(2)))
    world.now_s += 10


@pytest.mark.parametrize("comes_first", [a_gang_of_higher_priority, a_pod_of_higher_priority, an_older_pod, nobody])
def test_a_job_lends_no_more_chips_after_another_was_first_for_a_moment(comes_first: Callable[[World], None]) -> None:
    world = half_free()
    for number in range(LOANS):
        assert runs(world, late(f"late-{number}", 4))
        end(world, f"late-{number}")
    comes_first(world)
    assert kept_for(world) == ["pod default/big"]
    assert not places(world, late("last", 4))


def test_a_gang_that_waits_again_after_it_has_run_lends_chips_again() -> None:
    world = full(2, *(pods := gang("big", 2)), loans=1)
    end(world, "s0-0")
    for number in range(2):
        assert runs(world, late(f"late-{number}", 4))
        end(world, f"late-{number}")
    assert not places(world, late("other", 4))
    for name in ("s0-1", "s1-0", "s1-1"):
        end(world, name)
    for each in pods:
        world.add(holder(each.name, places(world, each), annotations=each.metadata.annotations))
    assert not places(world, late("other", 4))
    end(world, "big-0")
    world.add(pods[0])
    end(world, "big-1")
    world.add(pods[1], holder("new", "n0", range(4)), holder("on-n1", "n1"))
    assert places(world, late("other", 4)) == "n0"


def test_a_gang_that_is_created_again_lends_chips_again() -> None:
    pods = [refused(each, CHIPS) for each in gang("big", 2)]
    world = full(2, *pods, loans=1)
    end(world, "s0-0")
    for number in range(2):
        assert runs(world, late(f"late-{number}", 4))
        end(world, f"late-{number}")
    for each in pods:
        end(world, each.name)
    assert not kept_for(world)
    world.add(*pods)
    assert kept_for(world) == ["job default/big"]
    assert places(world, late("other", 4)) == "n0"


@pytest.mark.parametrize("free", [2, 3])
def test_nothing_is_lent_once_the_gang_fits_beside_a_pod_on_its_nodes(free: int) -> None:
    pods = gang("big", 3, chips=4)
    world = full(2, *pods, loans=LOANS)
    assert kept_for(world) == ["job default/big"]
    for name in ("s0-0", "s0-1", "s1-0")[:free]:
        end(world, name)
    is_lent = free < len(pods)
    assert world.engine.may_fit(small := late("small", 1)) is is_lent
    assert bool(places(world, small)) is is_lent
    assert bool(places(world, pods[0])) is not is_lent


def of_lower_priority(_world: World) -> Pod:
    return replace(late("late", 4), spec=replace(late("late", 4).spec, priority=-1))


def of_a_gang(world: World) -> Pod:
    pods = gang("late", 2, chips=4, since="2026-01-02T00:00:00Z")
    world.add(*pods)
    end(world, "s1-0")
    return pods[0]


def that_comes_to_empty_nodes(world: World) -> Pod:
    end(world, "s0-1")
    return late("late", 4)


@pytest.mark.parametrize("borrower", [of_lower_priority, of_a_gang, that_comes_to_empty_nodes])
def test_nothing_is_lent_to_others_or_when_the_job_may_start_soon(borrower: Callable[[World], Pod]) -> None:
    world = half_free()
    assert not places(world, borrower(world))


@given(
    held=st.lists(st.integers(0, 8), min_size=2, max_size=6),
    ends=st.lists(st.integers(0, 47), max_size=48),
    servers=st.sampled_from([0, 2]),
    chips=st.sampled_from([1, 2, 4, 8]),
    younger=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=4),
)
def test_the_oldest_job_starts_after_a_limited_number_of_ends_whatever_comes(
    held: list[int], ends: list[int], servers: int, chips: int, younger: list[int]
) -> None:
    # After every end as many younger ones come as fit. Every pod ends, in any order at first, then by age.
    world = world_of(len(held), loans=LOANS)
    running = [holder(f"s{on}-{chip}", f"n{on}", [chip]) for on, count in enumerate(held) for chip in range(count)]
    world.add(*running)
    names, number = [each.name for each in running], 0
    oldest = gang("oldest", servers) if servers else [refused(pod("oldest", chips), CHIPS)]
    world.add(*oldest)
    for _ in range(64 * len(held) * (LOANS * max(servers, 1) + 1)):
        if places(world, oldest[0]):
            return
        end(world, names.pop((ends.pop() if ends else 0) % len(names)))
        while runs(world, each := late(f"late-{number}", younger[number % len(younger)])):
            names.append(each.name)
            number += 1
        end(world, each.name)
        number += 1
    raise AssertionError
