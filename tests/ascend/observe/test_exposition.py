"""The page of metrics under many clients."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter

from ascend.observe.exposition import BURST_S, SHARE, Exposition


async def test_clients_that_come_together_share_a_page() -> None:
    made = 0

    async def refresh() -> None:
        nonlocal made
        made += 1
        await asyncio.sleep(0)

    page = Exposition(CollectorRegistry(), refresh)
    await asyncio.gather(*(page.page() for _ in range(100)))
    assert made == 1


@pytest.mark.looptime
async def test_a_storm_of_scrapes_gets_a_share_of_the_loop_and_a_rare_one_gets_news() -> None:
    registry = CollectorRegistry()
    counter = Counter("seen", "Pages", registry=registry)
    spent_s = iter(range(10**6))
    page = Exposition(registry, spent_s=lambda: next(spent_s) * BURST_S)  # each page takes as long as may be at once
    pages = set()
    for _ in range(1000):
        counter.inc()
        pages.add(await page.page())
        await asyncio.sleep(0.1)
    assert len(pages) == pytest.approx(100 * SHARE / BURST_S, abs=2)
    await asyncio.sleep(100)
    counter.inc()
    assert b"seen_total 1001.0" in await page.page()


async def test_a_client_that_goes_away_does_not_take_the_page_from_others() -> None:
    gate = asyncio.Event()

    async def refresh() -> None:
        await gate.wait()

    page = Exposition(CollectorRegistry(), refresh)
    first = asyncio.create_task(page.page())
    second = asyncio.create_task(page.page())
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    assert await second == b""
