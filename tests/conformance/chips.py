"""The chips of the node under test, as a test breaks and mends them: the one place that knows which driver is read."""

import contextlib
import tempfile
from pathlib import Path
from typing import Final

from tests.dcmi.fake import FakeDcmi, ascend_910b

SEPARATE: Final = "80E18402"
"""A fault that separates a chip (the one the reference was measured with, spec/baseline-device-plugin.md §2.3)."""

HEALTH: Final = "dcmi_get_device_health"


class Chips:
    """A server with eight 910B3, told of by the real driver's binding to a library that answers what a file says.

    Args:
        folder: where library and file go.
    """

    def __init__(self, folder: Path) -> None:
        self._fake = FakeDcmi(Path(tempfile.mkdtemp(prefix="dcmi-", dir=folder)), ascend_910b())
        self._all = list(self._fake._chips)
        self._broken = contextlib.ExitStack()
        self.changed = False
        """Not all as on a healthy server."""

    @property
    def flags(self) -> list[str]:
        """The flags by which a plugin reads these chips."""
        return ["--driver", "dcmi"]

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a plugin reads these chips."""
        return self._fake.environment()

    def fail(self, chip_id: int, code: str = SEPARATE) -> None:
        """A fault appears."""
        self.changed = True
        self._fake.chip(chip_id).codes = (int(code, 16),)

    def hang(self, chip_id: int, function: str = HEALTH) -> None:
        """From the next call on, a function does not return for this chip."""
        self.changed = True
        self._broken.enter_context(self._fake.hang(function, card=chip_id))

    def drop(self, chip_id: int) -> None:
        """The chip has dropped off: it is not ready, whatever is asked of its health."""
        self.changed = True
        self._fake.chip(chip_id).dropped = True

    def take_away(self, chip_id: int) -> None:
        """The driver has never heard of the chip."""
        self.changed = True
        self._fake._chips.remove(self._fake.chip(chip_id))
        self._fake.save()

    def serialise(self) -> None:
        """The driver makes one call after the other: one that hangs holds up all."""
        self.changed = True
        self._fake.set(serialise=True)

    def lose_events(self) -> None:
        """Faults come and go without an event."""
        self.changed = True
        self._fake.set(lose_events=True)

    def refuse_events(self) -> None:
        """Nobody may subscribe to events."""
        self.changed = True
        self._broken.enter_context(self._fake.fail("dcmi_subscribe_fault_event", -8255))

    def break_driver(self, code: int) -> None:
        """The driver can't be opened."""
        self.changed = True
        self._broken.enter_context(self._fake.fail("dcmi_init", code))

    def calls(self) -> int:
        """How many calls the driver has answered so far."""
        return sum(self._fake.calls().values())

    def repair(self, chip_id: int) -> None:
        """The chip is there and healthy again; calls that hang go on hanging."""
        (chip,) = (each for each in self._all if each.phy == chip_id)
        if chip not in self._fake._chips:
            self._fake._chips[:] = [each for each in self._all if each is chip or each in self._fake._chips]
        chip.codes, chip.dropped = (), False

    def repair_all(self) -> None:
        """A healthy server."""
        self._broken.close()
        self._fake.set(serialise=False, lose_events=False)
        for chip in self._all:
            self.repair(chip.phy)
        self.changed = False
