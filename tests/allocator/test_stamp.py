"""Decision times: strictly increasing, whatever the clock and the pods say."""

from hypothesis import given
from hypothesis import strategies as st

from allocator.stamp import DAY_NS, Stamps
from ascend.annotations import CLAIMED

NOW_NS = 1_795_000_000_000_000_000


@given(
    clock=st.lists(st.integers(NOW_NS - DAY_NS, NOW_NS + DAY_NS), min_size=1, max_size=20),
    written=st.lists(st.integers(0, NOW_NS), max_size=3),
)
def test_each_is_later_than_all_before(clock: list[int], written: list[int]) -> None:
    ticks = iter(clock)
    stamps = Stamps(lambda: next(ticks), lambda: written)
    given_out = [stamps.next() for _ in clock]
    assert given_out == sorted(set(given_out))
    assert given_out[0] > max([time for time in written if time < clock[0] + DAY_NS], default=0)


def test_a_time_far_ahead_is_not_ours() -> None:
    stamps = Stamps(lambda: NOW_NS, lambda: [CLAIMED - 1, NOW_NS + 2 * DAY_NS])
    assert stamps.next() == NOW_NS


def test_the_pods_are_asked_only_when_the_first_time_is_needed() -> None:
    written: list[int] = []
    stamps = Stamps(lambda: NOW_NS, lambda: written)
    written.append(NOW_NS + 5)
    assert stamps.next() == NOW_NS + 6
