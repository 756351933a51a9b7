"""The slider over time of npuctl web. With SCREENSHOTS=docs/images it makes the picture of docs/web.md."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, expect

from npuctl.history.intervals import WAITING, IntervalKind, Key, KeyState, WaitDetail, WaitReason
from npuctl.history.store import HistoryStore
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import write_kubeconfig
from tests.npuctl.web.conftest import opened, served, shared
from tests.npuctl.web.test_page import CANVAS, choose, drawn

expect.set_options(timeout=30_000)
pytestmark = [
    pytest.mark.real,  # chromium comes with what the real cluster needs
    pytest.mark.asyncio(loop_scope="module"),
]

MOMENT = ".timeline .moment"


def write_history(path: Path) -> None:
    """An hour, less two minutes, in which a job had all of a server that is gone, and another one waited for it."""
    now_s = int(time.time())
    store = HistoryStore(path)
    wait = WaitReason("behind", "NoNodeFits", ("team/big",))
    told = WaitDetail(1, "2 x 8 chips", "2026-01-01T00:00:00Z", "NoNodeFits: 8 chips fit on none of 1 node")
    head = ["node-old", "910A", "", ["", "", "", "910A"], [4, 4], list(range(8))]
    true = {
        "node-old": {
            Key(IntervalKind.NODE, node="node-old"): KeyState(msgspec.json.encode(head).decode()),
            Key(IntervalKind.RUNS, "team/big", "node-old", "team/big-0"): KeyState("0,1,2,3"),
            Key(IntervalKind.FAULT, node="node-old", name="6"): KeyState("unhealthy: 80E18402"),
        },
        WAITING: {
            Key(IntervalKind.WAITS, "team/waited"): KeyState(
                msgspec.json.encode(wait).decode(), msgspec.json.encode(told).decode()
            )
        },
    }
    for minute in range(0, 59 * 60, 30):
        store.record(now_s - 59 * 60 + minute, true)
    store.close()


@shared
async def past_url(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    folder = tmp_path_factory.mktemp("past")
    write_history(folder / "history.db")
    kubeconfig = str(write_kubeconfig(folder, server, "secret"))
    async with served("--kubeconfig", kubeconfig, "--history", str(folder / "history.db")) as (running, _):
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def past(browser: Browser, past_url: str) -> AsyncIterator[Page]:
    """The page as it was half an hour ago."""
    async with opened(browser, past_url) as page:
        await expect(page.locator(MOMENT)).to_have_text("live")
        await page.locator(".timeline .q-slider").click()
        await page.wait_for_selector(f"{CANVAS}[data-past=yes]")
        yield page


async def test_the_wall_and_the_queue_of_a_time_before_are_marked_as_past(past: Page) -> None:
    moment = past.locator(MOMENT)
    await expect(moment).to_contain_text("as it was at 20")
    await expect(past.locator(".totals")).to_have_text("past: 1 node, 3 of 8 chips free · 1 job in the queue")
    await expect(past.locator(".timeline.past")).to_have_count(1)
    assert await drawn(past, "nodes") == "1"
    await expect(past.locator('[data-job="team/waited"]')).to_contain_text("behind team/big")
    await expect(past.locator(".queue tbody tr")).to_have_count(1)
    if folder := os.environ.get("SCREENSHOTS"):
        await past.click("text=team/waited")
        await expect(past.locator(".answers > .answer")).to_contain_text("waited, 2 x 8 chips")
        await past.screenshot(path=Path(folder) / "web-past.png")


async def test_a_job_of_then_has_its_history(past: Page) -> None:
    await past.click("text=team/waited")
    answer = past.locator(".answers > .answer")
    await expect(answer).to_contain_text("waited, 2 x 8 chips: behind team/big")
    await choose(past, "node-old", 2)
    await expect(answer).to_contain_text("ran: team/big-0 on node-old, chips 0, 1, 2, 3")
    await expect(answer).to_contain_text("chip 6: unhealthy: 80E18402")


async def test_what_changes_meanwhile_is_shown_when_one_is_back(past: Page) -> None:
    assert await drawn(past, "nodes") == "1"
    await past.click("text=back to now")
    await past.wait_for_selector(f"{CANVAS}[data-nodes='4']")
    await expect(past.locator(".timeline.past")).to_have_count(0)
    await expect(past.locator(".queue tbody tr")).to_have_count(3)
    await expect(past.locator(".totals")).to_contain_text("4 nodes")


async def test_escape_leads_back_and_the_keyboard_there(past: Page) -> None:
    await past.focus(CANVAS)
    await past.keyboard.press("Escape")
    await past.wait_for_selector(f"{CANVAS}[data-nodes='4']")
    await past.focus(".timeline .q-slider__thumb, .timeline .q-slider [tabindex]")
    for _ in range(5):
        await past.keyboard.press("ArrowLeft")
    await past.wait_for_selector(f"{CANVAS}[data-nodes='1']")


async def test_of_a_time_that_is_not_recorded_it_says_so(past: Page) -> None:
    await past.click("text=1 day")
    await past.locator(".timeline .q-slider").click()
    await expect(past.locator(MOMENT)).to_contain_text("nothing was recorded at 20")
    assert await drawn(past, "nodes") == "0"
    await expect(past.locator(".queue")).to_contain_text("no pod waits for chips")
