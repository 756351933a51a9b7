"""Times are measured by a clock that nobody sets."""

from allocator.rescheduling.setup import steady


def test_a_clock_that_is_set_changes_no_time() -> None:
    wall_ns, monotonic_s = 1_000_000_000_000, 5.0
    clock = steady(lambda: wall_ns, lambda: monotonic_s)
    assert clock() == 1000.0
    wall_ns += 3_600_000_000_000
    monotonic_s += 2.0
    assert clock() == 1002.0
