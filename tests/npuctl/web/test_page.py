"""The page of npuctl web, as somebody uses it. With SCREENSHOTS=docs/images it makes the pictures of docs/web.md."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Browser, Page, expect

from tests.npuctl.web.conftest import MARKUP, opened

expect.set_options(timeout=30_000)
pytestmark = [
    pytest.mark.real,  # chromium comes with what the real cluster needs
    pytest.mark.asyncio(loop_scope="module"),
]

CANVAS = ".wall canvas"


async def plan(page: Page, manifest: str) -> None:
    """Ask whether a manifest would fit."""
    await page.fill("textarea", manifest)
    await page.wait_for_timeout(400)  # until the page has sent it
    await page.click("text=plan it")


async def choose(page: Page, node: str, chip: int = -1) -> None:
    """Click on a node, or on a chip of it."""
    at = f"canvas.spot({node!r}, {chip})"
    await page.eval_on_selector(CANVAS, f"canvas => scrollBy(0, {at}.y - innerHeight / 2)")
    found = await page.eval_on_selector(CANVAS, f"canvas => {at}")
    await page.mouse.click(found["x"], found["y"])


async def drawn(page: Page, what: str) -> Any:
    return await page.eval_on_selector(CANVAS, f"canvas => canvas.dataset.{what}")


async def test_the_wall_and_the_queue_are_those_of_topo_and_queue(page: Page) -> None:
    await expect(page.locator(".totals")).to_contain_text("4 nodes, 6 of 32 chips free, 1 unhealthy, 1 node not used")
    await expect(page.locator(".totals")).to_contain_text("3 pods of 3 jobs in the queue")
    assert await drawn(page, "nodes") == "4"
    rows = page.locator(".queue tbody tr")
    await expect(rows).to_have_count(3)
    await expect(page.locator('[data-job="default/waits-4"]')).to_contain_text(
        "NoNodeFits: 4 chips fit on none of 4 nodes"
    )
    await expect(page.locator('[data-job="default/waits-1"]')).to_contain_text("starts now")


async def test_a_waiting_job_dims_the_nodes_by_reason_and_marks_what_would_help(page: Page) -> None:
    await page.click("text=default/waits-4")
    await expect(page.locator(".answers > .answer")).to_contain_text("on node node-c, once it is uncordoned")
    await expect(page.locator(".reasons")).to_contain_text("NotEnoughChips (2 nodes)")
    assert await drawn(page, "dimmed") == "4"
    await page.hover(CANVAS, position={"x": 20, "y": 5})
    await expect(page.locator(".spot")).to_contain_text("refuses: NotEnoughChips")
    await page.click("text=show all")
    await expect(page.locator(".reasons")).to_be_empty()
    assert await drawn(page, "dimmed") == "0"


async def test_a_chip_shows_its_pod_and_a_node_its_chips(page: Page) -> None:
    await choose(page, "node-b", 0)
    answer = page.locator(".answers > .answer")
    await expect(answer).to_contain_text("pod default/serve is on node node-b with chips 0-1")
    await expect(answer).to_contain_text("1 unhealthy")
    await choose(page, "node-c")
    await expect(page.locator(".answers .subtitle")).to_have_text("Node node-c")
    await expect(answer).to_contain_text("not used: node node-c is cordoned")


async def test_would_it_fit_is_answered_as_plan_does(page: Page) -> None:
    await page.click("text=Would it fit?")
    await plan(page, MANIFEST.format(chips=2))
    await expect(page.locator(".planned")).to_contain_text(re.compile(r"new-\S+ +\S+ +node-b"))
    await plan(page, MANIFEST.format(chips=9))
    await expect(page.locator(".planned")).to_contain_text("NoNodeFits")
    await plan(page, "{")
    await expect(page.locator(".planned")).to_contain_text("manifest: document 1")


async def test_everything_can_be_chosen_by_the_keyboard(page: Page) -> None:
    await page.focus(CANVAS)
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowRight", "Enter"):
        await page.keyboard.press(key)
    await expect(page.locator(".answers > .answer")).to_contain_text("pod default/serve is on node node-b")
    await page.keyboard.press("Escape")
    await expect(page.locator(".answers > .answer")).to_be_empty()
    await page.focus('[data-job="default/waits-4"]')
    await page.keyboard.press("Enter")
    await expect(page.locator(".answers .subtitle")).to_have_text("Job default/waits-4")


async def test_what_objects_say_stays_text(page: Page) -> None:
    await page.click("text=default/odd")
    await expect(page.locator(".answers .subtitle")).to_have_text("Job default/odd")
    await page.click("text=Would it fit?")
    await plan(page, f"apiVersion: v1\nkind: {MARKUP!r}\nmetadata: {{name: a}}")
    await expect(page.locator(".planned")).to_contain_text("onerror")
    assert await page.title() == "npuctl web"
    assert await page.locator("img").count() == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("web", {}),
        ("web-dark", {"color_scheme": "dark"}),
        ("web-phone", {"viewport": {"width": 390, "height": 844}}),
    ],
)
async def test_the_page_is_whole_at_every_width_and_in_the_dark(
    name: str, options: Any, browser: Browser, url: str
) -> None:
    async with opened(browser, url, **options) as page:
        await page.click("text=default/waits-4")
        await expect(page.locator(".answers > .answer")).to_contain_text("what would help")
        wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert wide <= 0
        dark = await page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (dark == "rgb(22, 24, 29)") == (options.get("color_scheme") == "dark")
        if folder := os.environ.get("SCREENSHOTS"):
            await page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


MANIFEST = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: new}}
spec:
  replicas: 1
  template:
    spec:
      priority: 10
      containers: [{{name: main, image: none, resources: {{limits: {{huawei.com/Ascend910: {chips}}}}}}}]
"""
