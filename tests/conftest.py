"""What every test stands on."""

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def no_stray_event_loop() -> Iterator[None]:
    """Synchronous tests get no event loop: looptime's hook would otherwise make one that nobody closes."""
    asyncio.set_event_loop(None)
    yield
    asyncio.set_event_loop(None)
