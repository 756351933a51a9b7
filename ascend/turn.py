"""Bounds how long one task keeps the event loop."""

import asyncio
from typing import Final

LIMIT_S: Final = 0.003
"""After this time other tasks run; calls of schedulers take well under a millisecond each."""


class Turn:
    """The time for which a task has kept the event loop; make one where a loop of unknown length begins."""

    def __init__(self) -> None:
        self._time = asyncio.get_running_loop().time
        self._started_s = self._time()

    async def share(self) -> None:
        """Let other tasks run if this one has run for ``LIMIT_S``; call it after each step of the work."""
        if self._time() - self._started_s > LIMIT_S:
            await asyncio.sleep(0)
            self._started_s = self._time()
