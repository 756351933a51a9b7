"""A file system that is full after a few kilobytes or files."""

import os
from pathlib import Path
from typing import Final

SIZE: Final = "64k"
FILES: Final = 16


class SmallDisk:
    """The file system.

    Args:
        path: where it is mounted.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._made: list[Path] = []

    def fill(self) -> None:
        """Use all of its space; files without content can still be made."""
        self._made.append(self.path / "filler")
        with self._made[-1].open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(os.sysconf("SC_PAGE_SIZE")))
            except OSError:
                return

    def fill_with_files(self) -> None:
        """Make files until there can be no other."""
        for number in range(FILES + 1):
            path = self.path / f"filler-{number}"
            try:
                path.touch()
            except OSError:
                return
            self._made.append(path)
        raise AssertionError("the number of files is not limited")

    def empty(self) -> None:
        """Remove what filled it."""
        for path in self._made:
            path.unlink()
        self._made.clear()
