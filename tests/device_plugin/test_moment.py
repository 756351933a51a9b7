"""Time in which the plugin stands still says nothing about chips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_plugin.driver import ChipState
from device_plugin.health.moment import LATE_S, TICK_S, RunningTime
from tests.device_plugin.watch import Watch


class Clock:
    def __init__(self) -> None:
        self.real_s = 1000.0
        self.time = RunningTime(lambda: self.real_s)

    def run(self, seconds: float) -> None:
        """Let the event loop turn for some time."""
        for _ in range(round(seconds / TICK_S)):
            self.real_s += TICK_S
            self.time.tick()


def test_all_time_counts_while_the_event_loop_turns() -> None:
    clock = Clock()
    clock.time.tick()
    clock.run(100)
    assert clock.time.now_s() == 1100.0
    clock.real_s += 0.9
    assert clock.time.now_s() == pytest.approx(1100.9)


def test_time_without_a_tick_does_not_count() -> None:
    clock = Clock()
    clock.time.tick()
    clock.run(10)
    clock.real_s += 3600
    assert clock.time.now_s() == 1010.0 + LATE_S
    assert clock.time.tick() == 3600 - LATE_S
    clock.run(10)
    assert clock.time.now_s() == 1020.0 + LATE_S


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1000)), max_size=40))
def test_the_clock_never_goes_back_and_never_runs_faster(steps: list[tuple[bool, float]]) -> None:
    clock = Clock()
    for ticks, passed_s in steps:
        before_s = clock.time.now_s()
        clock.real_s += passed_s
        if ticks:
            clock.time.tick()
        assert before_s <= clock.time.now_s() <= before_s + passed_s + 1e-6


def judged(watch: Watch, clock: Clock) -> str:
    """Why chip 0 is unhealthy now; empty if it is healthy."""
    return watch.book.judge(clock.time.moment()).chips[0].reason


@pytest.mark.parametrize("still_s", [10.0, 59.0, 86_400.0])
def test_a_chip_that_nobody_could_read_is_not_silent(still_s: float) -> None:
    clock, watch = Clock(), Watch(stale_s=10.0)
    clock.time.tick()
    watch.book.on_reading(0, ChipState(), clock.time.moment())
    clock.real_s += still_s
    assert judged(watch, clock) == ""
    clock.time.tick()
    assert judged(watch, clock) == ""


def test_a_chip_that_does_not_answer_a_running_plugin_is_silent() -> None:
    clock, watch = Clock(), Watch(stale_s=10.0)
    clock.time.tick()
    watch.book.on_reading(0, ChipState(), clock.time.moment())
    clock.run(5)
    clock.real_s += 3600
    clock.run(5)
    assert judged(watch, clock) == "DriverSilent"
