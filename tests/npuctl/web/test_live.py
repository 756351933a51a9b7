"""What changes in a cluster comes to the page of npuctl web."""

import pytest
from playwright.async_api import Page, expect

from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import pod
from tests.npuctl.web.test_page import CANVAS, choose

pytestmark = [
    pytest.mark.real,  # chromium comes with what the real cluster needs
    pytest.mark.asyncio(loop_scope="module"),
]


async def test_changes_come_by_watch_alone(page: Page, server: ApiServer) -> None:
    await page.wait_for_timeout(1000)  # optional kinds of jobs are looked for once
    before = server.requests.copy()
    await server.create(pod("late", "2", node="node-b", chips=(6, 7), uid="uid-late"))
    await page.wait_for_selector(f"{CANVAS}[data-patches]")
    await choose(page, "node-b", 7)
    await expect(page.locator(".answers > .answer")).to_contain_text("pod default/late is on node node-b")
    await expect(page.locator(".totals")).to_contain_text("4 of 32 chips free")
    asked = {request.partition(" ")[0] for user, request in server.requests - before if user == "admin"}
    assert asked <= {"watch"}
    assert {request.partition(" ")[0] for user, request in server.requests if user == "admin"} == {"get", "watch"}
