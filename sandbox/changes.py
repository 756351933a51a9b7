"""Lets tests wait for a condition instead of sleeping."""

import asyncio
from collections.abc import Callable


class Changes:
    """Notifies tasks that wait for a condition. ``asyncio.Condition`` could not be notified from a callback."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def pulse(self) -> None:
        """Have all waiting tasks evaluate their conditions again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], object], timeout_s: float | None) -> None:
        """Wait until the condition is true; it is evaluated now and after every pulse.

        Args:
            condition: The condition.
            timeout_s: How long to wait; None waits forever.

        Raises:
            TimeoutError: The condition did not become true in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()
