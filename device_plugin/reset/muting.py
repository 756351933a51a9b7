"""Withholds readings and events of a chip during its reset: they show neither faults nor recoveries."""

from ascend.chips import ChipSet, chip_set
from device_plugin.chips.scanner import Listener
from device_plugin.driver import ChipState, FaultEvent, Inventory
from device_plugin.health.snapshot import Moment


class Muting:
    """Stands between the scanner and its listener.

    A reset makes a chip drop off the bus, and some drivers announce faults meanwhile. If these were counted, the rules
    would separate the chip because it was reset. The end of a fault is passed on, because nothing else may announce it.

    Args:
        listener: receives what is not kept back.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._phy_ids: dict[int, int] = {}  # by logic id
        self._read_s: dict[int, float] = {}
        self.muted: ChipSet = 0
        """The chips that are being reset."""

    def read_since(self, since_s: float) -> ChipSet:
        """Return the chips whose last reading that was passed on began at this time or later."""
        return chip_set(phy_id for phy_id, read_s in self._read_s.items() if read_s >= since_s)

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Pass on the list of chips."""
        self._phy_ids = {chip.logic_id: chip.phy_id for chip in server.chips if chip.is_listed}
        self._listener.on_discovery(server, at)

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Pass on a reading, unless the chip is being reset."""
        if not self.muted >> phy_id & 1:
            self._read_s[phy_id] = at.mono_s
            self._listener.on_reading(phy_id, state, at)

    def events_lost(self) -> None:
        """Pass on that events were lost."""
        self._listener.events_lost()

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Pass on an event, unless it is of a fault of a chip that is being reset."""
        phy_id = self._phy_ids.get(event.logic_id)
        if event.assertion == "recover" or phy_id is None or not self.muted >> phy_id & 1:
            self._listener.on_event(event, at)
