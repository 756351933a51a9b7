"""What a driver can do beside reading chips: reset them."""

from collections.abc import Mapping
from typing import Protocol

from device_plugin.driver import ChipFacts, Driver, Inventory


class ResettingDriver(Driver, Protocol):
    """A driver that can reset chips. Calls may block or hang, as with ``Driver``."""

    def partner_cards(self, server: Inventory) -> Mapping[int, int | None]:
        """Return, by card of an A3 chip, the partner card of the reset; None without a partner.

        A card whose partner can't be read is left out.
        """

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        """Return the ids of the processes that use a chip, on the node and in all containers.

        Raises:
            DriverError: they can't be read; the message says why.
        """

    def reset(self, chip: ChipFacts) -> None:
        """Reset a chip with the chips of its reset group (docs/spec/faults.md#reset-groups).

        Returns before they have started. There must be one reset at a time.

        Raises:
            DriverError: the driver refuses, or fails; the message says why.
        """

    def has_started(self, chip: ChipFacts) -> bool:
        """Return whether a chip has started after a reset.

        Raises:
            DriverError: that can't be read; the message says why.
        """
