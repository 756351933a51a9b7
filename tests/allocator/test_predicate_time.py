"""Predicate times increase strictly, whatever the clock and the pods say."""

from hypothesis import given
from hypothesis import strategies as st

from allocator.binding.annotations import DAY_NS, Stamper
from allocator.state.reservation import Stage
from ascend.annotations import CLAIMED
from tests.allocator.builders import World, pod

NOW_NS = 1_795_000_000_000_000_000


def written(*times: int) -> World:
    """A world whose bound pods carry these predicate times."""
    world = World()
    world.add(*(pod(f"p{n}", 1, node="n1", chips=[n], time=time, phase="Running") for n, time in enumerate(times)))
    return world


@given(
    clock=st.lists(st.integers(NOW_NS - DAY_NS, NOW_NS + DAY_NS), min_size=1, max_size=20),
    times=st.lists(st.integers(0, NOW_NS), max_size=3),
)
def test_each_time_is_later_than_all_before(clock: list[int], times: list[int]) -> None:
    ticks, world = iter(clock), written(*times)
    stamper = Stamper(world.cluster, world.ledger, lambda: next(ticks))
    given_out = [stamper.next_time() for _ in clock]
    assert given_out == sorted(set(given_out))
    assert given_out[0] > max([time for time in times if time < clock[0] + DAY_NS], default=0)


def test_a_time_far_in_the_future_is_ignored() -> None:
    world = written(CLAIMED - 1, NOW_NS + 2 * DAY_NS)
    assert Stamper(world.cluster, world.ledger, lambda: NOW_NS).next_time() == NOW_NS


def test_pods_are_examined_when_the_first_time_is_needed() -> None:
    world = World()
    stamper = Stamper(world.cluster, world.ledger, lambda: NOW_NS)
    world.add(pod("late", 1, node="n1", chips=[0], time=NOW_NS + 5, phase="Running"))
    assert stamper.next_time() == NOW_NS + 6


def test_a_reservation_keeps_its_time_unless_it_is_renewed() -> None:
    world = World()
    stamper = Stamper(world.cluster, world.ledger, lambda: NOW_NS)
    made = world.ledger.reserve(uid="u", pod="default/p", node="n1", chips=(0,))
    first = stamper.stamp(made, Stage.RESERVED)
    assert stamper.stamp(first, Stage.DOUBTFUL).predicate_time == first.predicate_time == NOW_NS
    assert stamper.stamp(first, Stage.BINDING, renew=True).predicate_time == NOW_NS + 1
