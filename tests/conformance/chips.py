"""The chips of the node under test, which tests break and repair; only this module knows the driver."""

import contextlib
import tempfile
from pathlib import Path
from typing import Final

from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910b

SEPARATE: Final = "80E18402"
"""A fault that separates a chip (the one in the reference's measurements, docs/spec/measurements.md#faults)."""

HEALTH: Final = "dcmi_get_device_health"


class Chips:
    """A server, read by the real driver with a fake library whose answers are in a file.

    Args:
        folder: a folder for the library and its file.
        chips: its chips; by default eight 910B3.
    """

    def __init__(self, folder: Path, chips: list[FakeChip] | None = None) -> None:
        self._fake = FakeDcmi(Path(tempfile.mkdtemp(prefix="dcmi-", dir=folder)), chips or ascend_910b())
        self._all = list(self._fake._chips)
        self._broken = contextlib.ExitStack()
        self.changed = False
        """Whether anything differs from a healthy server."""

    @property
    def flags(self) -> list[str]:
        """The flags with which a plugin reads these chips."""
        return ["--driver", "dcmi"]

    @property
    def library(self) -> Path:
        """The driver's library."""
        return self._fake.library

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which a plugin reads these chips."""
        return self._fake.environment()

    def fail(self, chip_id: int, code: str = SEPARATE) -> None:
        """Give the chip a fault."""
        self.changed = True
        self._fake.chip(chip_id).codes = (int(code, 16),)

    def hang(self, chip_id: int, function: str = HEALTH) -> None:
        """Have a function hang for this chip from the next call on."""
        self.changed = True
        self._broken.enter_context(self._fake.hang(function, card=chip_id))

    def drop(self, chip_id: int) -> None:
        """Drop the chip off the bus: calls about its health return "not ready"."""
        self.changed = True
        self._fake.chip(chip_id).dropped = True

    def remove(self, chip_id: int) -> None:
        """Remove the chip from the driver's list."""
        self.changed = True
        self._fake._chips.remove(self._fake.chip(chip_id))
        self._fake.save()

    def cut(self, chip_id: int, **vnpus: str) -> None:
        """Cut the chip into these vNPUs, templates by ``v<id>``; none makes it whole again."""
        self.changed = True
        self._fake.chip(chip_id).vnpus = {int(name[1:]): template for name, template in vnpus.items()}

    def vnpus(self) -> dict[int, tuple[int, str]]:
        """The vNPUs that plugins have created: chip and template, by id."""
        return self._fake.cuts()

    def serialise(self) -> None:
        """Serialize the driver's calls: one that hangs blocks all others."""
        self.changed = True
        self._fake.set(serialise=True)

    def lose_events(self) -> None:
        """Have faults occur and clear without an event."""
        self.changed = True
        self._fake.set(lose_events=True)

    def refuse_events(self) -> None:
        """Refuse subscriptions to events."""
        self.changed = True
        self._broken.enter_context(self._fake.fail("dcmi_subscribe_fault_event", -8255))

    def break_driver(self, code: int) -> None:
        """Make the driver fail to open."""
        self.changed = True
        self._broken.enter_context(self._fake.fail("dcmi_init", code))

    def calls(self) -> int:
        """The number of calls of the driver's functions."""
        return sum(self._fake.calls().values())

    def count(self, function: str) -> int:
        """The number of calls of a function."""
        return self._fake.calls().get(function, 0)

    def repair(self, chip_id: int) -> None:
        """Make the chip present and healthy again; calls that hang keep hanging."""
        (chip,) = (each for each in self._all if each.phy == chip_id)
        if chip not in self._fake._chips:
            self._fake._chips[:] = [each for each in self._all if each is chip or each in self._fake._chips]
        chip.codes, chip.dropped, chip.vnpus = (), False, {}

    def repair_all(self) -> None:
        """Make the server healthy."""
        self._broken.close()
        self._fake.set(serialise=False, lose_events=False)
        for chip in self._all:
            self.repair(chip.phy)
        self.changed = False
