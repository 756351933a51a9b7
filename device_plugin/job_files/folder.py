"""A folder of the node that holds the data of one ConfigMap.

A container may have the folder mounted writable and run as root, so what is in it is not trusted: no symbolic link is
followed below the root of the folders, and only the files that this module writes are removed.
"""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER_MODE = 0o755
_FILE_MODE = 0o644
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class MirroredFolder:
    """A folder and the names of the files that are written in it.

    Attributes:
        root: the folder that contains it; its path is trusted.
        name: ``<namespace>.<name of the ConfigMap>``.
        keys: the ConfigMap's keys that are mirrored, each to a file of that name, in the order of writing.
    """

    root: Path
    name: str
    keys: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.root / self.name)

    def make(self) -> None:
        """Make the folder, without touching what is in it.

        Raises:
            OSError: it can't be made.
        """
        self.root.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with _opened(self.root) as root:
            try:
                os.mkdir(self.name, _FOLDER_MODE, dir_fd=root)
            except FileExistsError:
                return
            with _opened(self.name, root) as folder:
                os.fchmod(folder, _FOLDER_MODE)  # whatever this process's umask is

    def write(self, data: Mapping[str, str]) -> bool:
        """Make the folder and its files as the ConfigMap has them; a key that is missing has no file.

        Every file is replaced as a whole, so that a reader never gets a part of one. A file that is up to date is not
        touched.

        Returns:
            Whether any file was written or removed.

        Raises:
            OSError: the folder or a file can't be written.
        """
        self.make()
        with _opened(self.root) as root, _opened(self.name, root) as folder:
            changed = [_put(folder, key, data.get(key)) for key in self.keys]
        return any(changed)

    def remove(self) -> bool:
        """Remove the files, and the folder unless other files are in it.

        Returns:
            Whether the folder is gone.

        Raises:
            OSError: something can't be removed.
        """
        with suppress(FileNotFoundError), _opened(self.root) as root:
            with _opened(self.name, root) as folder:
                for key in self.keys:
                    _put(folder, key, None)
                    _remove_begun(folder, key)
            try:
                os.rmdir(self.name, dir_fd=root)
            except FileNotFoundError:
                return True
            except OSError:
                if _is_empty(self.root / self.name):
                    raise
                return False
        return True

    def has_files(self) -> bool:
        """Whether a file that this module writes is in the folder; False if that can't be read."""
        names = (name for key in self.keys for name in (key, _begun(key)))
        return any(os.path.lexists(self.root / self.name / name) for name in names)


@contextmanager
def _opened(path: Path | str, parent: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, _OPEN_FOLDER | (os.O_NOFOLLOW if parent is not None else 0), dir_fd=parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _put(folder: int, name: str, content: str | None) -> bool:
    """Replace a file, or remove it; returns whether that changed anything."""
    wanted = None if content is None else content.encode()
    if _has(folder, name, wanted):
        return False
    if wanted is None:
        os.unlink(name, dir_fd=folder)
        return True
    fresh = _begun(name)
    with suppress(FileNotFoundError):
        os.unlink(fresh, dir_fd=folder)
    try:
        with os.fdopen(os.open(fresh, _CREATE_FILE, _FILE_MODE, dir_fd=folder), "wb") as file:
            os.fchmod(file.fileno(), _FILE_MODE)
            file.write(wanted)
        os.replace(fresh, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        _remove_begun(folder, name)
        raise OSError(error.errno, error.strerror, name) from error
    return True


def _begun(name: str) -> str:
    """Return the name of a file until it has been written."""
    return f".{name}.tmp"


def _remove_begun(folder: int, name: str) -> None:
    """Remove a file that could not be written, now or by an earlier plugin."""
    with suppress(OSError):
        os.unlink(_begun(name), dir_fd=folder)


def _has(folder: int, name: str, wanted: bytes | None) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return wanted is None
    if wanted is None or not stat.S_ISREG(found.st_mode) or found.st_size != len(wanted):
        return False
    with os.fdopen(os.open(name, _READ_FILE, dir_fd=folder), "rb") as file:
        return file.read(len(wanted) + 1) == wanted


def _is_empty(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return next(entries, None) is None
