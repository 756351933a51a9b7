"""npuctl web over an API server of the sandbox, in a real browser."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright

from ascend.deviceinfo import LABELS
from sandbox.apiserver import ApiServer
from tests.ascend.kube.objects import TOKENS, write_kubeconfig
from tests.npuctl.manifests import node, pod, report

Json = dict[str, Any]

MARKUP = "<img src=x onerror=document.title='owned'>{{7*7}}"
"""What would be an image, or a sum, if a page did not show it as text."""

shared = pytest_asyncio.fixture(scope="module", loop_scope="module")


def objects() -> Iterable[Json]:
    """Four servers with two rings: a broken chip, a cordoned one, four jobs, and three that wait."""
    now_s = int(time.time())
    for name in ("node-a", "node-b", "node-c", "node-d"):
        yield node(name, cordoned=name == "node-c")
        told = report(name, unhealthy=0x20 if name == "node-b" else 0, at_s=now_s)
        told["metadata"]["labels"] = dict(LABELS)
        yield told
    yield pod("train-a", "4", node="node-a", chips=range(4), uid="uid-train-a")
    yield pod("serve", "2", node="node-b", chips=(0, 1), uid="uid-serve")
    yield pod("train-d", "8", node="node-d", chips=range(8), uid="uid-train-d")
    yield pod("notebook", "3", node="node-a", chips=(4, 5, 6), uid="uid-notebook")
    yield pod("waits-4", "4", uid="uid-waits-4", creationTimestamp="2026-01-01T00:00:00Z")
    odd = pod("odd", "16", uid="uid-odd", creationTimestamp="2026-01-01T00:02:00Z")
    odd["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": MARKUP, "reason": MARKUP}]}
    yield odd
    yield pod("waits-1", "1", uid="uid-waits-1", creationTimestamp="2026-01-01T00:01:00Z")


@shared
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(tokens=TOKENS) as running:
        for made in objects():
            await running.create(made)
        yield running


@shared
async def url(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where npuctl web serves its page."""
    kubeconfig = write_kubeconfig(tmp_path_factory.mktemp("web"), server, "secret")
    async with served("--kubeconfig", str(kubeconfig)) as (running, _):
        yield running


@asynccontextmanager
async def served(*options: str) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Run npuctl web with options; gives the address of the page, and the process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "npuctl.cli", "web", "--port", "0", *options), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            said = (await process.stdout.readline()).decode()
        assert said.startswith("npuctl web: http://127.0.0.1:")
        yield said.split()[-1], process
    finally:
        process.terminate()
        assert await process.wait() == -signal.SIGTERM


@shared
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        # Chromium's own sandbox needs rights that containers of CI lack.
        launched = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield launched
        await launched.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, url: str) -> AsyncIterator[Page]:
    """The page with the wall drawn; an error of a script fails the test."""
    async with opened(browser, url) as found:
        yield found


@asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Page]:
    context = await browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    page, errors = await context.new_page(), list[str]()
    page.set_default_timeout(60_000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    # What the policy of the page refuses, and what fails to load.
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    await page.goto(url)
    await page.wait_for_selector(".wall canvas[data-drawn]")
    yield page
    assert errors == []
    await context.close()
