"""The switches of a server as the plugin uses them: their present faults, and events about them.

Implementations: ``dcmi.lingqu`` (Huawei's library), ``simulated`` (the file of the simulated chips).
"""

from collections.abc import Callable
from typing import Protocol

from ascend.fabric_switches import SwitchFault


class SwitchDriver(Protocol):
    """Reads the switches; all calls are made in one thread, except those of the subscription's receiver."""

    def open(self) -> None:
        """Make the switches readable.

        Raises:
            DriverError: they can't be read; its reason is ``LibraryNotFound`` if this server has no library for that.
        """

    def read(self) -> tuple[SwitchFault, ...]:
        """Return the present faults.

        Raises:
            DriverError: they can't be read.
        """

    def subscribe(self, on_event: Callable[[SwitchFault], None]) -> None:
        """Announce faults that occur or end from now on, from any thread.

        Raises:
            DriverError: this driver announces none, or refuses to.
        """
