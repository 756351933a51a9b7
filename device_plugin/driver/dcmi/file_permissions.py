"""Checks that only root and this user can change a file.

The driver's library and link tool run in, or as a child of, this process, which is usually root
(docs/spec/dcmi.md#library).
"""

import os
import stat
from pathlib import Path

from ascend.errors import DriverError

MAX_DEPTH = 20
"""Limit of the folders above a file, and of the symbolic links on its path."""


def resolve_protected(path: Path) -> Path:
    """Return the file of a path, with every symbolic link followed.

    The file and every folder and link on the path must belong to root or to this user, and neither group nor others may
    write to it. A sticky folder such as ``/tmp`` may be writable: others can't replace another user's entry there,
    and the owner of the entry is checked.

    Args:
        path: an absolute path.

    Raises:
        DriverError: another user can change the file, or it is missing or not a regular file; names the entry of the
            path, its owner and mode, and the remedy.
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
    # The mode of a symbolic link has no effect.
    others_write = bool(mode & (stat.S_IWGRP | stat.S_IWOTH)) and not stat.S_ISLNK(mode)
    sticky_folder = stat.S_ISDIR(mode) and bool(mode & stat.S_ISVTX)
    if status.st_uid in {0, os.geteuid()} and (not others_write or sticky_folder):
        return mode
    where = "it" if entry == path else f"its path contains {entry}, which"
    raise DriverError(
        f"{path} is not used: {where} has owner {status.st_uid} and mode {stat.S_IMODE(mode):04o}, so other users "
        f"could replace what runs with the plugin's rights; `chown root {entry}` and `chmod go-w {entry}`",
        reason="UntrustedFile",
    )
