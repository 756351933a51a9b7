"""One namespace can take neither the rate nor the turns of others."""

from hypothesis import given
from hypothesis import strategies as st

from ascend.fair import FairRate, in_turn

BURST, REFILL_S = 50, 0.2
TENANTS = [f"busy-{number}" for number in range(40)]

STEPS = st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 300), st.floats(0, 5)), max_size=30)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@given(STEPS)
def test_a_quiet_namespace_is_served_with_the_next_that_may_happen(steps: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    rate = FairRate(BURST, REFILL_S, clock)
    clock.now_s = 1.0
    for tenant, times, pause_s in steps:
        for _ in range(times):
            rate.take(tenant)
        clock.now_s += pause_s
    clock.now_s += REFILL_S * 1.001  # rounding
    assert rate.take("quiet")


@given(STEPS)
def test_all_namespaces_together_keep_to_the_rate(steps: list[tuple[str, int, float]]) -> None:
    clock, taken = Clock(), 0
    rate = FairRate(BURST, REFILL_S, clock)
    for tenant, times, pause_s in steps:
        taken += sum(rate.take(tenant) for _ in range(times))
        clock.now_s += pause_s
    assert taken <= BURST + clock.now_s / REFILL_S + 1


@given(st.floats(0, 100))
def test_a_namespace_has_half(pause_s: float) -> None:
    clock = Clock()
    rate = FairRate(BURST, REFILL_S, clock)
    assert sum(rate.take("tenant") for _ in range(1000)) == BURST / 2
    clock.now_s += pause_s
    assert sum(rate.take("tenant") for _ in range(1000)) <= min(BURST / 2, pause_s / REFILL_S / 2 + 1)


def test_namespaces_that_are_quiet_again_are_forgotten() -> None:
    clock = Clock()
    rate = FairRate(BURST, REFILL_S, clock)
    for number in range(100_000):
        clock.now_s += 1.0
        rate.take(f"tenant-{number}")
    assert len(rate._own) <= 1000


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())))
def test_namespaces_take_turns(items: list[tuple[str, int]]) -> None:
    found = list(in_turn(items, lambda item: item[0]))
    assert sorted(found) == sorted(items)
    for tenant in "abc":
        assert [item for item in found if item[0] == tenant] == [item for item in items if item[0] == tenant]
        own = [at for at, item in enumerate(found) if item[0] == tenant]
        others = len({item[0] for item in items})
        assert all(at <= number * others + others - 1 for number, at in enumerate(own))
