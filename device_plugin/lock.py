"""One plugin per node: a second one waits until the first is gone, before it reads anything that would grow old."""

import asyncio
import contextlib
import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAME = "ascend910.lock"
RETRY_S = 0.1
"""Only while another instance lives: it is what an upgrade of the plugin waits for."""


class InstanceLock:
    """A lock file in the kubelet's folder.

    Args:
        directory: the kubelet's device-plugin folder; it may not be there yet.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self.problem: str | None = f"waiting for the lock {self._path}"
        """Why we may not work yet; None while we hold the lock."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the block; waits while another instance has it, or the folder is missing."""
        waiting = False
        while True:
            with contextlib.ExitStack() as stack:
                try:
                    file = stack.enter_context(self._path.open("w"))
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if not waiting:
                        log.warning("waiting for the lock", path=str(self._path), error=error.strerror)
                        waiting = True
                else:
                    self.problem = None
                    yield
                    return
            await asyncio.sleep(RETRY_S)
