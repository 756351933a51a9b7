"""Whether nobody but root and ourselves can change a file: what runs with our rights must come from a safe place.

The library and the link tool of the driver run inside, or as a child of, a process that is usually root
(spec/node-agent.md §3.1).
"""

import os
import stat
from pathlib import Path

from ascend.errors import DriverError

MAX_DEPTH = 20
"""Folders above a file, and symbolic links on the way to it."""


def resolve_protected(path: Path) -> Path:
    """The file behind a path, with every symbolic link on the way followed.

    The file, every folder and every link on the way must belong to root or to us, and neither group nor others may
    write to it. A sticky folder such as ``/tmp`` may be writable: others can't replace an entry there that is not
    theirs, and who owns the entry is checked.

    Args:
        path: an absolute path.

    Raises:
        DriverError: somebody else can change what is there, it is no regular file, or it is not there; says which entry
            of the path is at fault, whose it is, and what to do.
    """
    if not path.is_absolute():
        raise DriverError(f"{path} is not an absolute path", reason="UntrustedFile")
    place = Path("/")
    _check(place, path)
    ahead = [*reversed(path.parts[1:])]
    links = 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            place = place.parent
            continue
        entry = place / name
        mode = _check(entry, path)
        if stat.S_ISLNK(mode):
            links += 1
            target = entry.readlink()
            ahead.extend(reversed(target.parts[1:] if target.is_absolute() else target.parts))
            place = Path("/") if target.is_absolute() else place
        else:
            place = entry
        if links > MAX_DEPTH or len(place.parts) > MAX_DEPTH:
            raise DriverError(f"{path}: more than {MAX_DEPTH} folders or links deep", reason="UntrustedFile")
    if not stat.S_ISREG(place.lstat().st_mode):
        raise DriverError(f"{path} is not a regular file", reason="UntrustedFile")
    return place


def _check(entry: Path, path: Path) -> int:
    try:
        status = entry.lstat()
    except OSError as error:
        raise DriverError(f"{path} can't be read: {error}", reason="UntrustedFile") from error
    mode = status.st_mode
    others_write = bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not stat.S_ISLNK(
        mode
    )  # a link's own mode means nothing
    sticky_folder = stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
    if status.st_uid in {0, os.geteuid()} and (not others_write or sticky_folder):
        return mode
    where = "it" if entry == path else f"it lies behind {entry}, which"
    raise DriverError(
        f"{path} is not used: {where} has owner {status.st_uid} and mode {stat.S_IMODE(mode):04o}, so others can "
        f"change what would run with the plugin's rights; `chown root {entry}` and `chmod go-w {entry}`",
        reason="UntrustedFile",
    )
