"""Notices chips that have left the driver's list: no call can tell of them any more.

One initialization can miss a chip that is fine, for example because a call timed out. A chip that two of them have
missed has dropped.
"""

from collections.abc import Iterable

from device_plugin.driver import ChipFacts

_ENOUGH = 2


class MissedChips:
    """How many initializations have missed each chip that was listed before."""

    def __init__(self) -> None:
        self._missed: dict[int, int] = {}  # by physical id; 0 while it is listed
        self._noted = 0

    def note(self, chips: Iterable[ChipFacts], initializations: int) -> None:
        """Note which chips are listed.

        Args:
            chips: all chips, listed or not.
            initializations: how often the driver has been initialized so far.
        """
        is_new, self._noted = initializations != self._noted, initializations
        for chip in chips:
            if chip.is_listed:
                self._missed[chip.phy_id] = 0
            elif is_new and chip.phy_id in self._missed:
                self._missed[chip.phy_id] += 1

    def is_gone(self, chip: ChipFacts) -> bool:
        """Return whether a chip that was listed before has dropped."""
        return not chip.is_listed and self._missed.get(chip.phy_id, 0) >= _ENOUGH
