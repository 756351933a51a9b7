"""The registry of a program's metrics, and their page: a bounded share of the event loop, however many scrape it.

Clients that come while the page is being made share it. If making it has taken more than its share of time, the last
page is served again until the time is made up.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest

from ascend.rate_limiters import TokenBucket, loop_time_s

SHARE: Final = 0.05
"""The most of the event loop's time that pages take in the long run."""

BURST_S: Final = 0.5
"""The time that they may take at once, after none was made for a while."""


def new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of the process: its memory, CPU time and file descriptors (``process_…``).

    When a counter began (``…_created``) is not served: it doubles the page, and Prometheus does not use it.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


class Exposition:
    """Makes the page.

    Args:
        registry: the metrics.
        refresh: awaited before each page is made; None if nothing has to be.
        spent_s: the clock of the work, in seconds.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        refresh: Callable[[], Awaitable[None]] | None = None,
        spent_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._registry = registry
        self._refresh = refresh
        self._spent_s = spent_s
        self._credit_s = TokenBucket(BURST_S, 1 / SHARE, loop_time_s)
        self._page = b""
        self._making: asyncio.Task[None] | None = None

    async def page(self) -> bytes:
        """Return the page, as new as may be."""
        if self._making is None:
            if self._credit_s.left() <= 0 and self._page:
                return self._page
            # A task of its own: the client that asks first may go before it is done.
            self._making = asyncio.create_task(self._make())
        await asyncio.shield(self._making)
        return self._page

    async def _make(self) -> None:
        try:
            if self._refresh is not None:
                await self._refresh()
            started_s = self._spent_s()
            self._page = generate_latest(self._registry)
            self._credit_s.spend(self._spent_s() - started_s)
        finally:
            self._making = None
