"""The wall clock of a program, which a test sets ahead or back."""

from pathlib import Path
from typing import Final

from tests.dcmi.compiler import build_preloaded

_SOURCE: Final = Path(__file__).with_name("stepped_clock.c")


class Clock:
    """The plugin's wall clock.

    Args:
        file: has by how many seconds it is ahead.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a program that has this clock."""
        return {"LD_PRELOAD": str(build_preloaded(_SOURCE)), "STEPPED_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        """Set it."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(ahead_s))
        fresh.replace(self._file)
