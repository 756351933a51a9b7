"""One plugin per node: a second instance waits until the first has ended before it reads anything."""

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
"""Only while another instance lives; an upgrade of the plugin waits for this."""


class InstanceLock:
    """A lock file in the kubelet's folder.

    Args:
        directory: the kubelet's device-plugin folder; it may not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._file: IO[str] | None = None
        self.problem: str | None = f"waiting for the lock {self._path}"
        """Why this instance must not work yet; None while it holds the lock."""

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the block; wait while another instance has it or the folder is missing."""
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
        """Take the lock again if the folder was recreated, because other instances look at the new file.

        Raises:
            LockLost: another instance took it first; this one must end.
        """
        if self._file is None or self._is_in_place(self._file):
            return
        try:
            fresh = self._take()
        except OSError as error:
            raise LockLost(f"{self._path} was recreated and can't be locked: {error.strerror}") from error
        self._file.close()
        self._file = fresh

    def is_still_ours(self) -> bool:
        """Return whether no other instance has taken over; to be called while the lock is held."""
        try:
            self.renew()
        except LockLost as lost:
            # A missing folder belongs to no other instance.
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
