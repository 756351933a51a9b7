"""The NPU driver as the plugin uses it: the list of chips, the state of each chip, and how chips are cut.

Implementations: ``dcmi`` (Huawei's library), ``simulated`` (a file that can be edited while the plugin runs).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from ascend.annotations import UNKNOWN
from ascend.base_device_infos import ChipAddress
from ascend.grammar import count
from ascend.vnpus import SUFFIXES, Vnpu

ChipType: TypeAlias = Literal["Ascend910", "Ascend910B", "Ascend910A3"]
"""910A, 910B and 910C (A3): the first half of the node label ``servertype``.

See docs/spec/dcmi.md#chip-types, docs/spec/node-report.md#node-labels.
"""

Assertion: TypeAlias = Literal["recover", "occur", "once"]

LINK_DOWN = 0x81078603
"""The fault of a chip's network port without link (docs/spec/faults.md#codes)."""

_TEMPLATES = {suffix: template for template, suffix in SUFFIXES.items()}

NO_CARD = -1
"""The card of a chip that the driver does not list at present."""


@dataclass(frozen=True, slots=True)
class VirtualNpu:
    """A vNPU that an administrator has cut out of a chip.

    Attributes:
        vdev_id: the driver's id, from 100.
        phy_id: physical id of the chip it is cut out of.
        template: the driver's name of its size, such as ``vir02``; empty if unknown.
        in_container: whether the driver says that a container has it. It is no part of what the vNPU is.
        vfg_id: the driver's id of the group of vNPUs on the chip that it belongs to; no part of what it is either.
    """

    vdev_id: int
    phy_id: int
    template: str = ""
    in_container: bool = field(default=False, compare=False)
    vfg_id: int = field(default=0, compare=False)

    @classmethod
    def of_vnpu(cls, vnpu: Vnpu) -> "VirtualNpu":
        """Return the one that a name stands for."""
        return cls(vnpu.vdev_id, vnpu.chip, _TEMPLATES.get(vnpu.suffix, ""))

    @property
    def vnpu(self) -> Vnpu | None:
        """The vNPU by name; None if the driver's template has no name."""
        suffix = SUFFIXES.get(self.template)
        return Vnpu(suffix, self.phy_id, self.vdev_id) if suffix is not None else None


@dataclass(frozen=True, slots=True)
class ChipFacts:
    """The facts about a chip, read when it is discovered.

    Attributes:
        phy_id: physical id, part of the chip's name on the wire.
        logic_id: the driver's running number; fault events carry it.
        card_id: the card it is on; ``NO_CARD`` if it exists and the driver does not list its card, so that it can't be
            read: the card was not ready when the driver was initialized, or has dropped off the bus.
        device_id: its number on the card.
        chip_name: such as ``910B3``.
        address: how other servers reach it.
        numa_node: the closest NUMA node; None if unknown.
        hbm_mb: its memory in MB; 0 if unknown.
        vnpus: the vNPUs cut out of it.
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

    @property
    def is_listed(self) -> bool:
        """Whether the driver lists the card of the chip; an unlisted chip can't be read."""
        return self.card_id != NO_CARD


@dataclass(frozen=True, slots=True)
class Inventory:
    """A server and its chips.

    Attributes:
        chip_type: the kind of its chips.
        chips: by ascending physical id.
        driver_version: empty if unknown.
        ai_cores: AI cores of a chip; 0 if unknown.
        board_id: distinguishes variants of a chip type; 0 if unknown.
        super_pod_id: -2 if unknown.
        server_index: the server's index within its SuperPod; -2 if unknown.
        not_ready: the number of cards that were not ready when the driver was initialized. Their chips can't be read
            before it is initialized again.
        unidentified: the number of chips that exist and whose ids are unknown, so that they are not in ``chips``.
        problems: sentences that say which cards can't be read.
    """

    chip_type: ChipType
    chips: tuple[ChipFacts, ...]
    driver_version: str = ""
    ai_cores: int = 0
    board_id: int = 0
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN
    not_ready: int = 0
    unidentified: int = 0
    problems: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether the driver can read all chips it knows of."""
        return not self.problems


def not_ready_sentence(not_ready: int, cards: int) -> str:
    """Say how many of the cards were not ready when the driver was initialized."""
    verb = "was" if not_ready == 1 else "were"
    return f"{not_ready} of {count(cards, 'card')} {verb} not ready when the driver was initialized"


@dataclass(frozen=True, slots=True)
class ChipState:
    """The state of a chip as polled.

    Attributes:
        codes: the fault codes present, chip and network alike; None if this driver reports faults by events only.
        dropped: whether the chip no longer answers ("card drop", docs/spec/faults.md#card-drop).
        link_up: whether its network port has a link; None if unknown.
        link_s: monotonic time at which the link state began to be read; None if unknown.
        fatal: whether the driver rates its health as fatal. Without a fault code to explain it, the driver has lost the
            communication with the chip.
    """

    codes: tuple[int, ...] | None = ()
    dropped: bool = False
    link_up: bool | None = None
    link_s: float | None = None
    fatal: bool = False


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault that occurred or cleared, as the driver announces it.

    Attributes:
        logic_id: the chip.
        code: the fault.
        assertion: whether it cleared, occurred, or occurred once and is over.
        severity: 0 suggestion, 1 minor, 2 major, 3 critical.
    """

    logic_id: int
    code: int
    assertion: Assertion
    severity: int


class Driver(Protocol):
    """A driver.

    Its calls may block or hang, so none of them runs on the event loop. Calls for different chips may run at the same
    time in different threads.
    """

    def discover(self, *, anew: bool = False) -> Inventory:
        """Return the chips of this server.

        Args:
            anew: whether to initialize the driver again first: it lists only the cards that were ready at its
                initialization. Readings wait meanwhile.

        Raises:
            DriverError: the driver can't be read; the message says why.
        """

    def read(self, chip: ChipFacts) -> ChipState:
        """Return the state of one chip. A chip that has dropped off the bus is not an error.

        Raises:
            DriverError: the chip can't be read; the message says why.
        """

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce faults from now on, from any thread; polling continues.

        Raises:
            DriverError: this driver announces none, or refuses to.
        """


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
