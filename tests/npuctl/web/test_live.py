"""What changes in a cluster comes to the page of npuctl web."""

import json
import os
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import as_list, pod, report, super_pod_node
from tests.npuctl.web.conftest import opened, served
from tests.npuctl.web.test_page import CANVAS, choose

pytestmark = [
    pytest.mark.real,  # chromium comes with what the real cluster needs
    pytest.mark.asyncio(loop_scope="module"),
]


async def test_changes_come_by_watch_alone(page: Page, server: ApiServer) -> None:
    await page.wait_for_timeout(1000)  # optional kinds of jobs are looked for once
    before = server.requests.copy()
    await server.create(pod("late", "2", node="node-b", chips=(6, 7), uid="uid-late"))
    await page.wait_for_selector(f"{CANVAS}[data-tiles]")
    await choose(page, "node-b", 7)
    await expect(page.locator(".answers > .answer")).to_contain_text("pod default/late is on node node-b")
    await expect(page.locator(".totals")).to_contain_text("4 of 32 chips free")
    asked = {request.partition(" ")[0] for user, request in server.requests - before if user == "admin"}
    assert asked <= {"watch"}
    assert {request.partition(" ")[0] for user, request in server.requests if user == "admin"} == {"get", "watch"}


async def test_many_nodes_are_shown_by_groups_of_which_one_can_be_entered(browser: Browser, tmp_path: Path) -> None:
    made = []
    for number in range(1_000):
        server = super_pod_node(number // 100, number % 100)
        told = report(server["metadata"]["name"], unhealthy=1 if number == 777 else 0)
        made += [server, told]
        if number % 3 and number // 100 != 7:
            name, job = f"train-{number}", f"train-{number // 30}"
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": True}
            on = server["metadata"]["name"]
            made.append(pod(name, "16", node=on, chips=range(16), uid=name, ownerReferences=[owner]))
    path = tmp_path / "large.json"
    path.write_text(json.dumps(as_list(*made)))
    async with (
        served("-f", str(path), "--now", "2026-01-01T00:00:30Z") as (url, _),
        opened(browser, url) as page,
    ):
        await expect(page.locator(".totals")).to_contain_text("1000 nodes")
        await expect(page.locator(".tree canvas")).to_have_count(1)
        assert await page.eval_on_selector(CANVAS, "canvas => canvas.dataset.nodes") == "1000"
        await page.click(".groups .q-select")
        options = page.locator(".q-menu .q-item")
        await expect(options.nth(1)).to_contain_text("SuperPod 7: 1599 of 1600 chips free, ✕ 1")
        await options.nth(1).click()
        await page.wait_for_selector(f"{CANVAS}[data-nodes='100']")
        await choose(page, "7-77", 0)
        await expect(page.locator(".answers .subtitle")).to_have_text("Node 7-77, Ascend910-0")
        await expect(page.locator(".answers > .answer")).to_contain_text("SuperPod 7")
        await page.click(".groups .q-select")
        await options.nth(0).click()
        await page.wait_for_selector(f"{CANVAS}[data-nodes='1000']")
        tree = await page.locator(".tree canvas").bounding_box()
        assert tree is not None
        if folder := os.environ.get("SCREENSHOTS"):
            await page.screenshot(path=Path(folder) / "web-groups.png")
        await page.mouse.click(tree["x"] + 5, tree["y"] + 5)
        await page.wait_for_selector(f"{CANVAS}[data-nodes='100']")
