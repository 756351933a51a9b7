"""One plugin per node: a second one waits until the first is gone, before it reads anything that would grow old."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import structlog

from ascend.errors import LockLost

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
        self._file: IO[str] | None = None
        self.problem: str | None = f"waiting for the lock {self._path}"
        """Why we may not work yet; None while we hold the lock."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the block; waits while another instance has it, or the folder is missing."""
        waiting = False
        while self._file is None:
            try:
                self._file = self._take()
            except OSError as error:
                if not waiting:
                    log.warning("waiting for the lock", path=str(self._path), error=error.strerror)
                    waiting = True
                await asyncio.sleep(RETRY_S)
        self.problem = None
        try:
            yield
        finally:
            self._file.close()

    def renew(self) -> None:
        """Take the lock again where the folder was made anew, and with it the file that everybody else looks at.

        Raises:
            LockLost: another instance was quicker; this one must end.
        """
        if self._file is None or self._is_in_place(self._file):
            return
        try:
            fresh = self._take()
        except OSError as error:
            raise LockLost(f"{self._path} is another file now, and it can't be locked: {error.strerror}") from error
        self._file.close()
        self._file = fresh

    def is_still_ours(self) -> bool:
        """Whether no other instance works in our place; to be asked while the lock is held."""
        try:
            self.renew()
        except LockLost as lost:
            # A folder that is gone is nobody's.
            return not isinstance(lost.__cause__, BlockingIOError)
        return True

    def _take(self) -> IO[str]:
        file = self._path.open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def _is_in_place(self, file: IO[str]) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except OSError:
            return False
