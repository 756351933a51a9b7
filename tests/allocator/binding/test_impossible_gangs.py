"""Gangs that can't start, whatever the reason, keep neither chips nor turns from others."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.allocator.binding.impossible import EXCLUDING, KINDS, Queue, good

BOUND_S = 30.0


@pytest.mark.parametrize("count", [12, 100])
@pytest.mark.parametrize("kinds", [KINDS, *([kind] for kind in KINDS)], ids=",".join)
@pytest.mark.parametrize("after_s", [3, 60])
async def test_a_gang_that_fits_on_what_is_free_starts_within_30_s(
    count: int, kinds: list[str], after_s: float
) -> None:
    queue = Queue([kinds[number % len(kinds)] for number in range(count)], nodes=2)
    await queue.simulation.run(after_s)
    assert await queue.seconds_until_start(good(1, 2, 8, queue.names)) <= BOUND_S
    assert await queue.seconds_until_start(good(2, 1, 8, queue.names)) <= BOUND_S
    assert await queue.seconds_until_start(good(3, 4, 4, queue.names)) <= BOUND_S
    await queue.simulation.close()


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in EXCLUDING])
async def test_gangs_that_cannot_start_keep_no_chips_after_a_minute(kind: str) -> None:
    queue = Queue([kind] * 12, nodes=4)
    await queue.simulation.run(60)
    for _ in range(60):
        await queue.simulation.run(5)
        assert queue.kept == 0
    await queue.simulation.close()


@settings(max_examples=15)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=12),
    nodes=st.integers(2, 4),
    size=st.integers(1, 3),
    chips=st.sampled_from([1, 4, 8]),
    after_s=st.integers(1, 90),
)
def test_whatever_waits_a_gang_that_fits_starts_within_30_s(
    kinds: list[str], nodes: int, size: int, chips: int, after_s: int
) -> None:
    async def check() -> None:
        queue = Queue(kinds, nodes)
        await queue.simulation.run(after_s)
        pods = good(0, size, chips, queue.names)
        if queue.simulation.case.fits(pods, {}):
            assert await queue.seconds_until_start(pods) <= BOUND_S
        await queue.simulation.close()

    asyncio.run(check())
