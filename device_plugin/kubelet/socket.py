"""The identity of ``kubelet.sock``: a kubelet that restarts makes a new one, and forgets us.

A look at the file every ``POLL_S`` is cheap and, unlike inotify, also sees a folder that was replaced or mounted anew
(spec/kubernetes.md §1.2).
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

POLL_S = 0.1

Identity = tuple[int, int, int]


def identity(path: Path) -> Identity | None:
    """Device, inode and change time of a file; None where there is none."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino, stat.st_ctime_ns)


async def present(path: Path) -> Identity:
    """Wait until there is a file; its identity."""
    while (found := identity(path)) is None:  # noqa: ASYNC110 - nobody tells us of files
        await asyncio.sleep(POLL_S)
    return found


async def changed(known: Mapping[Path, Identity | None]) -> None:
    """Wait until one of these files is another one, or gone. One timer, however many files."""
    while all(before is not None and identity(path) == before for path, before in known.items()):  # noqa: ASYNC110 - nobody tells us of files
        await asyncio.sleep(POLL_S)
