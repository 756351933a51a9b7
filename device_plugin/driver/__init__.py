"""The NPU driver as the plugin sees it: what chips there are, and how each of them is.

Implementations: ``dcmi`` (Huawei's library), ``simulated`` (a file that can be edited while the plugin runs).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ascend.annotations import UNKNOWN, ChipAddress

ChipType: TypeAlias = Literal["Ascend910", "Ascend910B", "Ascend910A3"]
"""910A, 910B and 910C (A3): the first half of the node label ``servertype`` (spec/node-agent.md §3.3, §5.8)."""

Assertion: TypeAlias = Literal["recover", "occur", "once"]


@dataclass(frozen=True, slots=True)
class VirtualNpu:
    """A part cut out of a chip by its owner; reported, never created or given away here.

    Attributes:
        vdev_id: the driver's id, from 100.
        phy_id: physical id of the chip it is cut out of.
        template: the driver's name of its size, as ``vir02``; empty where it can't tell.
    """

    vdev_id: int
    phy_id: int
    template: str = ""


@dataclass(frozen=True, slots=True)
class ChipFacts:
    """What a chip is: read when it is discovered and once in a while after.

    Attributes:
        phy_id: physical id; the chip's name on the wire is made of it.
        logic_id: the driver's running number; fault events carry it.
        card_id: the card it sits on.
        device_id: its number on the card.
        chip_name: as ``910B3``.
        address: how other servers reach it.
        numa_node: the NUMA node it is close to; None where unknown.
        hbm_mb: its memory; 0 where unknown.
        vnpus: the virtual chips cut out of it.
    """

    phy_id: int
    logic_id: int = 0
    card_id: int = 0
    device_id: int = 0
    chip_name: str = ""
    address: ChipAddress = field(default_factory=ChipAddress)
    numa_node: int | None = None
    hbm_mb: int = 0
    vnpus: tuple[VirtualNpu, ...] = ()


@dataclass(frozen=True, slots=True)
class Inventory:
    """What the server is.

    Attributes:
        chip_type: the kind of its chips.
        chips: by ascending physical id.
        driver_version: as the driver says; empty where it can't tell.
        ai_cores: AI cores of a chip; 0 where unknown.
        board_id: tells variants of a chip type apart; 0 where unknown.
        super_pod_id: -2 where the driver can't tell.
        server_index: the server's index within its SuperPod; -2 where the driver can't tell.
    """

    chip_type: ChipType
    chips: tuple[ChipFacts, ...]
    driver_version: str = ""
    ai_cores: int = 0
    board_id: int = 0
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class ChipState:
    """How a chip is now, as polled.

    Attributes:
        codes: the faults present, numbers as the driver has them, chip and network alike; None where this driver tells
            of faults by events only.
        dropped: the chip does not answer any more ("card drop", spec/node-agent.md §4.5).
        link_up: whether its network port has a link; None where nobody can tell.
    """

    codes: tuple[int, ...] | None = ()
    dropped: bool = False
    link_up: bool | None = None


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault that came or went, as the driver announces it.

    Attributes:
        logic_id: the chip.
        code: the fault.
        assertion: it went, it came, or it happened once and is over.
        severity: 0 suggestion, 1 minor, 2 major, 3 critical.
    """

    logic_id: int
    code: int
    assertion: Assertion
    severity: int


class Driver(Protocol):
    """A driver.

    Its calls may block or hang, so none of them runs on the event loop; calls for different chips may run at the same
    time, in different threads.
    """

    def discover(self) -> Inventory:
        """What chips there are.

        Raises:
            DriverError: the driver can't be read; says why.
        """

    def read(self, chip: ChipFacts) -> ChipState:
        """How one chip is now.

        Raises:
            DriverError: it could not be read; says why. A chip that has dropped off is no error.
        """

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce faults from now on, from any thread; polling goes on underneath.

        Raises:
            DriverError: this driver announces none, or refuses to.
        """
