"""Lets a test wait for a condition instead of sleeping: whoever changes something pulses, whoever waits looks again."""

import asyncio
from collections.abc import Callable


class Changes:
    """A place where changes are announced and conditions awaited."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def pulse(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def until(self, condition: Callable[[], object], timeout_s: float) -> None:
        """Return once the condition holds; it is looked at now and after every change.

        Raises:
            TimeoutError: it did not hold in time.
        """
        async with asyncio.timeout(timeout_s):
            while not condition():
                await self._changed.wait()
