"""What a driver can do beside reading chips: cut them into vNPUs while pods run.

See docs/spec/vnpu.md#dynamic-vnpus-in-allocate; docs/spec/dcmi.md#virtual-devices.
"""

from dataclasses import dataclass
from typing import Protocol

from device_plugin.driver import ChipFacts, Driver, VirtualNpu


@dataclass(frozen=True, slots=True)
class Division:
    """How a chip is cut at present.

    Attributes:
        vnpus: its vNPUs.
        free_cores: the AI cores that no vNPU has; None if this driver does not say.
        free_cpus: the AI CPUs that no vNPU has; None if this driver does not say.
    """

    vnpus: tuple[VirtualNpu, ...] = ()
    free_cores: int | None = None
    free_cpus: int | None = None


class DividingDriver(Driver, Protocol):
    """A driver that can cut chips. Calls may block or hang, as with ``Driver``."""

    def division(self, chip: ChipFacts) -> Division:
        """Return how a chip is cut.

        Raises:
            DriverError: that can't be read; the message says why.
        """

    def create_vnpu(self, chip: ChipFacts, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip. The driver may reuse the id of a destroyed vNPU.

        Raises:
            DriverError: the driver refuses, or fails; the message says why.
        """

    def destroy_vnpu(self, chip: ChipFacts, vdev_id: int) -> None:
        """Give the parts of a vNPU back to its chip.

        Raises:
            DriverError: the driver refuses, or fails; the message says why.
        """
