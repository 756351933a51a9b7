"""Waits double with each failure up to a limit, and a bucket's tokens are spent no faster than they arrive."""

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.rate_limiters import Backoff, ItemBackoff, TokenBucket, doubled_s


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(st.floats(0.01, 100), st.integers(0, 10**6), st.floats(0.01, 10_000))
def test_a_wait_is_zero_before_failures_then_doubles_and_stops_at_the_limit(
    first_s: float, failures: int, longest_s: float
) -> None:
    before_s, wait_s = doubled_s(first_s, failures, longest_s), doubled_s(first_s, failures + 1, longest_s)
    assert wait_s == min(2 * before_s if failures else first_s, longest_s)


def test_the_waits_of_a_loop_have_jitter_and_start_over_after_a_success() -> None:
    backoff = Backoff(first_s=1.0, limit_s=60.0)
    for _ in range(2):
        waits_s = [backoff.next_s() for _ in range(10)]
        for failures, wait_s in enumerate(waits_s, 1):
            assert doubled_s(1.0, failures, 60.0) / 2 <= wait_s <= doubled_s(1.0, failures, 60.0)
        backoff.reset()


def waits_of(backoff: ItemBackoff[str], clock: Clock, failures: int) -> list[float]:
    """The waits after so many failures, each at the end of the wait before."""
    found = []
    for _ in range(failures):
        found.append(backoff.fail("a"))
        assert backoff.due_s("a") == clock.now_s + found[-1]
        clock.now_s += found[-1]
        assert not backoff.is_waiting("a")
    return found


def test_each_key_waits_for_itself_until_its_failures_are_forgotten() -> None:
    clock = Clock()
    backoff = ItemBackoff[str](clock, 10.0, 50.0)
    assert waits_of(backoff, clock, 5) == [10, 20, 40, 50, 50]
    assert backoff.fail("b") == 10
    clock.now_s += 9.9
    assert backoff.is_waiting("b")
    assert list(backoff) == ["a", "b"]
    assert "a" in backoff
    assert backoff.since_s("b") == pytest.approx(9.9)
    backoff.forget("b")
    assert (backoff.is_waiting("b"), backoff.due_s("b"), backoff.since_s("b")) == (False, -math.inf, math.inf)


def test_the_first_failures_may_cost_less() -> None:
    clock = Clock()
    backoff = ItemBackoff[str](clock, 1.0, 4.0, free=3, free_s=0.2)
    assert waits_of(backoff, clock, 7) == pytest.approx([0.2, 0.2, 0.2, 1, 2, 4, 4])


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=40))
def test_failures_of_long_ago_are_not_remembered(failures: Iterable[tuple[str, int]]) -> None:
    clock, last_s = Clock(), dict[str, float]()
    backoff = ItemBackoff[str](clock, 1.0, 8.0, remembered_s=60.0)
    for key, pause_s in failures:
        clock.now_s += pause_s
        is_old = clock.now_s - last_s.get(key, -math.inf) >= 60.0
        wait_s, last_s[key] = backoff.fail(key), clock.now_s
        assert (wait_s == 1.0) == is_old
        assert set(backoff) == {known for known, at_s in last_s.items() if clock.now_s - at_s < 60.0}


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 10)), max_size=30), st.floats(0, 20))
def test_who_waits_as_told_spends_no_more_than_the_burst_and_what_arrives(
    spent: Iterable[tuple[float, float]], burst: float
) -> None:
    clock, total, last = Clock(), 0.0, 0.0
    bucket = TokenBucket(burst, 0.5, clock)
    for tokens, pause_s in spent:
        clock.now_s += pause_s
        clock.now_s += bucket.spend(tokens)
        total, last = total + tokens, tokens
        assert total - last <= burst + clock.now_s / 0.5 + 1e-6
        assert bucket.left() <= burst


def test_a_paused_bucket_has_nothing_until_the_pause_ends() -> None:
    clock = Clock()
    bucket = TokenBucket(5, 1.0, clock)
    bucket.pause(3.0)
    assert (bucket.left(), bucket.spend()) == (-3.0, 3.0)
    bucket.pause(2.0)  # within the time that is waited for already
    assert bucket.left() == -4.0
