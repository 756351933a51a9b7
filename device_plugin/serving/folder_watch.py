"""Says when the files of a folder come and go, by inotify.

A library exists, but it starts a compiler or ldconfig to find libc while it is imported, and is larger than what is
needed here: one watch, whose events are not even read.
"""

import asyncio
import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

IN_ATTRIB, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x4, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF, IN_MOVE_SELF = 0x400, 0x800
EVENTS = IN_ATTRIB | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
READ_BYTES = 65536

_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """What is known of a folder's files since the last look.

    Attributes:
        changed: set when a file has come, gone, or got other attributes.
        is_complete: False where only looks show changes, because the node has no inotify instance or watch left.
    """

    def __init__(self, *, is_complete: bool) -> None:
        self.changed = asyncio.Event()
        self.is_complete = is_complete


@contextmanager
def watch_folder(folder: Path) -> Iterator[FolderWatch]:
    """Watch a folder. What is mounted over it is not seen."""
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as stack:
        try:
            descriptor = _watch(folder)
        except OSError as error:
            log.info("looking at the files of a folder all the time", folder=str(folder), error=error.strerror)
            yield FolderWatch(is_complete=False)
            return
        stack.callback(os.close, descriptor)
        watch = FolderWatch(is_complete=True)

        def note() -> None:
            with contextlib.suppress(BlockingIOError):
                os.read(descriptor, READ_BYTES)
            watch.changed.set()

        loop.add_reader(descriptor, note)
        stack.callback(loop.remove_reader, descriptor)
        yield watch


def _watch(folder: Path) -> int:
    descriptor = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    try:
        _checked(_libc.inotify_add_watch(descriptor, os.fsencode(folder), EVENTS))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _checked(result: int) -> int:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


async def first_of(*events: asyncio.Event, wait_s: float) -> None:
    """Wait until one of the events is set, at most for a time."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
