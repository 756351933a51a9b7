"""One plugin per node works at a time: a second instance stands by until the first ends, and may tell it so before."""

import asyncio
import fcntl
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import structlog

from ascend.errors import LockLost

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAME = "ascend910.lock"
SUCCESSOR_NAME = "ascend910.successor.lock"
UNSETTLED_S = 5.0
"""An instance that found the lock free lets another one stand by after so long, whatever keeps it from registering."""
RETRY_S = 0.05
"""Only while another instance lives; an upgrade of the plugin waits for this."""


class InstanceLock:
    """A lock file in the kubelet's folder, and a second file that announces the next holder.

    Args:
        directory: the kubelet's device-plugin folder; it may not exist yet.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / NAME
        self._successor_path = directory / SUCCESSOR_NAME
        self._name = secrets.token_hex(8)
        self._file: BinaryIO | None = None
        self._successor: BinaryIO | None = None
        self.problem: str | None = f"waiting for the lock {self._path}"
        """Why this instance must not work yet; None while it holds the lock."""

    @property
    def stands_by(self) -> bool:
        """Whether this instance takes over as soon as the one that works ends."""
        return self._file is None and self._successor is not None

    @property
    def is_anothers(self) -> bool:
        """Whether another instance has the lock."""
        if self._file is not None:
            return False
        try:
            _take(self._path).close()
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock within the block; wait while another instance has it or the folder is missing."""
        unsettled: asyncio.TimerHandle | None = None
        try:
            if not await self._wait():
                # The lock may be free because a successor has died. Then the instance before still answers the kubelet.
                unsettled = asyncio.get_running_loop().call_later(UNSETTLED_S, self.settle)
            self.problem = None
            yield
        finally:
            if unsettled is not None:
                unsettled.cancel()
            self.settle()
            if self._file is not None:
                self._file.close()
                self._file = None
            self.problem = f"the lock {self._path} is released"

    def settle(self) -> None:
        """Tell the former holder of the lock that this instance has taken over its work."""
        if self._successor is not None:
            self._successor.close()
            self._successor = None

    def successor(self) -> str | None:
        """Return the name of the instance that waits for the lock, or has it and has not taken over the work yet.

        Returns:
            A name that no other instance has; None if there is no such instance.
        """
        try:
            _take(self._successor_path).close()
        except BlockingIOError:
            return _content(self._successor_path)
        except OSError:
            return None
        return None

    def is_held_by(self, name: str) -> bool:
        """Return whether the instance that took the lock last has this name."""
        return _content(self._path) == name

    @contextmanager
    def if_free(self) -> Iterator[bool]:
        """Hold the lock within the block if no instance has it; yields whether that is so."""
        try:
            file = _take(self._path)
        except OSError:
            yield False
            return
        with file:
            yield True

    def renew(self) -> None:
        """Take the lock again if its file was deleted, because other instances look at the new file.

        Raises:
            LockLost: another instance took it first; this one must end.
            OSError: it can't be taken at present.
        """
        if self._file is None or _is_in_place(self._file, self._path):
            return
        try:
            fresh = _take(self._path)
        except BlockingIOError as error:
            raise LockLost(f"{self._path} was recreated and can't be locked: {error.strerror}") from error
        self._file.close()
        self._file = fresh
        self._sign(fresh, self._path)

    def is_still_ours(self) -> bool:
        """Return whether no other instance has taken over; to be called while the lock is held."""
        try:
            self.renew()
        except LockLost:
            return False
        except OSError:
            return True  # a folder that is missing or can't be read belongs to no other instance
        return True

    async def _wait(self) -> bool:
        """Take the lock; return whether another instance had it meanwhile."""
        logged = was_taken = False
        while True:
            try:
                # In this order, so that of several that wait only the one that stands by gets the lock.
                self._stand_by()
                self._file = _take(self._path)
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    self.problem = f"can't take the lock {self._path}: {error.strerror}"
                if not logged:
                    log.warning("waiting for the lock", path=str(self._path), error=error.strerror)
                    logged = True
                if isinstance(error, BlockingIOError) and self._successor is not None and not was_taken:
                    log.info("standing by: another instance works on this node")
                    was_taken = True
                await asyncio.sleep(RETRY_S)
            else:
                self._sign(self._file, self._path)
                return was_taken

    def _stand_by(self) -> None:
        if self._successor is not None and _is_in_place(self._successor, self._successor_path):
            return
        self.settle()  # the file was deleted: other instances look at the new one
        self._successor = _take(self._successor_path)
        self._sign(self._successor, self._successor_path)

    def _sign(self, file: BinaryIO, path: Path) -> None:
        try:
            file.truncate(0)
            file.write(self._name.encode())
        except OSError as error:
            # It works without: the name only distinguishes successors that follow each other within seconds.
            log.warning("can't write the name of this instance", path=str(path), error=error.strerror)


def _is_in_place(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False


def _content(path: Path) -> str | None:
    # A kubelet that starts empties the folder, so the file may be gone by now.
    with suppress(OSError):
        return path.read_text(errors="replace")
    return None


def _take(path: Path) -> BinaryIO:
    # Without a buffer: what a full disk refuses to take would be written again when the file is closed.
    file = path.open("ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise
    return file
