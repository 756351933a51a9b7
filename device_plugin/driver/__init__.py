"""The NPU driver as the plugin sees it: one blocking call that tells everything about the chips.

Implementations: ``simulated`` (a file that can be edited while the plugin runs).
"""

from dataclasses import dataclass, field
from typing import Protocol

from ascend.annotations import UNKNOWN, ChipAddress
from ascend.products import Product


@dataclass(frozen=True, slots=True)
class ChipReading:
    """What the driver says of one chip now.

    Attributes:
        chip_id: physical id.
        healthy: fit for use.
        network_healthy: fit for distributed jobs.
        fault_codes: present faults, upper-case hex without ``0x``.
        address: how other servers reach it.
    """

    chip_id: int
    healthy: bool = True
    network_healthy: bool = True
    fault_codes: tuple[str, ...] = ()
    address: ChipAddress = field(default_factory=ChipAddress)


@dataclass(frozen=True, slots=True)
class Reading:
    """What the driver says of the server now.

    Attributes:
        product: the kind of server.
        chips: by ascending physical id.
        super_pod_id: -2 where the driver can't tell.
        server_index: -2 where the driver can't tell.
    """

    product: Product
    chips: tuple[ChipReading, ...]
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN


class Driver(Protocol):
    """A driver. Its calls may block or hang, so they never run on the event loop."""

    def read(self) -> Reading:
        """The present state of all chips.

        Raises:
            DriverError: the driver could not be read; says why.
        """
