"""What there is to know of each chip of a card; what can't be had stays unknown, or as it was last known."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ascend.annotations import ChipAddress
from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, ChipType, VirtualNpu
from device_plugin.driver.dcmi.calls import MAX_ID, Calls, Place, SuperPodPlace
from device_plugin.driver.dcmi.errors import DcmiError

_A3_BOARDS = frozenset({0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0x81, 0x83, 0xD1, 0xD3})
_B = re.compile(r"910B\d|A2G\d")
_A = re.compile(r"910")


def chip_type(board_id: int, chip_name: str) -> ChipType | None:
    """The kind of a chip; None where it is not of the 910 family.

    Args:
        board_id: 0 where unknown.
        chip_name: as ``910B3``; empty where unknown.
    """
    if board_id in _A3_BOARDS:
        return "Ascend910A3"
    name = chip_name.removeprefix("Ascend")
    if _B.match(name):
        return "Ascend910B"
    return "Ascend910" if _A.match(name) else None


SYSFS = Path("/sys")
_NODE = re.compile(r"node([0-9]+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def node_of_cpus(cpus: str, sysfs: Path = SYSFS) -> int | None:
    """The node that has exactly these CPUs; None where none has.

    Args:
        cpus: as ``0-23``.
        sysfs: where sysfs is mounted.
    """
    if not cpus:
        return None
    for folder in sorted(sysfs.glob("devices/system/node/node*")):
        match = _NODE.fullmatch(folder.name)
        if match is not None and _read(folder / "cpulist") == cpus:
            return int(match[1])
    return None


def node_of_pci(address: str, sysfs: Path = SYSFS) -> int | None:
    """The node of a PCI device; None where the kernel knows none.

    Args:
        address: as ``0000:c1:00.0``.
        sysfs: where sysfs is mounted.
    """
    if _ADDRESS.fullmatch(address.lower()) is None:
        return None
    text = _read(sysfs / "bus/pci/devices" / address.lower() / "numa_node")
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_MIN_CORES, _MAX_CORES = 8, 36
_NOTHING: tuple[int, tuple[VirtualNpu, ...]] = (0, ())

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Surveyed:
    """A chip, and what it tells of its server.

    Attributes:
        facts: the chip.
        kind: its kind; None where it is not of the 910 family, or did not say.
        board_id: 0 where unknown.
        ai_cores: 0 where unknown.
        super_pod: None where the driver can't tell.
    """

    facts: ChipFacts
    kind: ChipType | None
    board_id: int
    ai_cores: int
    super_pod: SuperPodPlace | None


class Facts:
    """Facts that are nice to know: a call that fails is logged once and leaves the fact as it was last known."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Place | None], Any] = {}
        self._failing: dict[tuple[str, Place | None], int] = {}

    def get(self, name: str, ask: Callable[[], T], default: T, chip: Place | None = None) -> T:
        """The fact.

        Args:
            name: of the fact, for the log.
            ask: the call.
            default: what it is while it was never known.
            chip: whose fact it is; None for the server's.
        """
        key = (name, chip)
        try:
            value = ask()
        except DcmiError as error:
            if self._failing.get(key) != error.code:
                self._failing[key] = error.code
                # A driver that lacks a function is how it is; one that has it and fails is worth a look.
                (log.debug if error.permanent else log.warning)("fact unknown", fact=name, error=error.message)
            known: T = self._known.get(key, default)
            return known
        self._failing.pop(key, None)
        self._known[key] = value
        return value


def survey_card(
    calls: Calls, facts: Facts, card: int, known: Sequence[Surveyed], sysfs: Path
) -> tuple[tuple[Surveyed, ...], str]:
    """The chips of a card, and what kept one from telling its ids; empty where nothing did.

    Args:
        calls: the library.
        facts: what was known before of single facts.
        card: the card.
        known: what its chips were before; believed of a chip that does not tell its ids now.
        sysfs: where sysfs is mounted.

    Raises:
        DriverError: the card does not say how many chips it has.
    """
    before = {each.facts.device_id: each for each in known}
    chips, problem = [], ""
    for device in calls.devices(card):
        try:
            chips.append(_survey_chip(calls, facts, (card, device), sysfs))
        except DriverError as error:
            problem = error.message
            if device in before:
                chips.append(before[device])
    return tuple(chips), problem


def _survey_chip(calls: Calls, facts: Facts, chip: Place, sysfs: Path) -> Surveyed:
    logic_id = _checked("logic id", calls.logic_id(chip), chip)
    phy_id = _checked("physical id", calls.phy_id(logic_id, chip), chip)
    name, cores_by_name = facts.get("chip name", lambda: calls.chip_info(chip), ("", 0), chip)
    board_id = facts.get("board id", lambda: calls.board_id(chip), 0, chip)
    super_pod = facts.get("SuperPod", lambda: calls.super_pod(chip), None, chip)
    cores, vnpus = facts.get("virtual chips", lambda: _resources(calls, facts, chip, phy_id), _NOTHING, chip)
    return Surveyed(
        facts=ChipFacts(
            phy_id=phy_id,
            logic_id=logic_id,
            card_id=chip[0],
            device_id=chip[1],
            chip_name=name,
            address=ChipAddress(
                facts.get("RoCE address", lambda: calls.roce_address(chip), "", chip),
                super_pod.super_device_id if super_pod is not None else 0,
            ),
            numa_node=_numa_node(calls, facts, chip, sysfs),
            hbm_mb=facts.get("HBM size", lambda: calls.hbm_mb(chip), 0, chip),
            vnpus=vnpus,
        ),
        kind=chip_type(board_id, name),
        board_id=board_id,
        ai_cores=next((count for count in (cores, cores_by_name) if _MIN_CORES <= count <= _MAX_CORES), 0),
        super_pod=super_pod,
    )


def _checked(what: str, value: int, chip: Place) -> int:
    if not 0 <= value <= MAX_ID:
        raise DriverError(f"card {chip[0]} device {chip[1]}: {what} {value} is not within 0..{MAX_ID}")
    return value


def _resources(calls: Calls, facts: Facts, chip: Place, phy_id: int) -> tuple[int, tuple[VirtualNpu, ...]]:
    resources = calls.resources(chip)
    vnpus = tuple(
        facts.get(
            f"virtual chip {vdev_id}",
            lambda vdev_id=vdev_id: calls.virtual_chip(chip, vdev_id, phy_id),  # type: ignore[misc]
            VirtualNpu(vdev_id, phy_id),
            chip,
        )
        for vdev_id in resources.virtual_ids
    )
    return resources.ai_cores, vnpus


def _numa_node(calls: Calls, facts: Facts, chip: Place, sysfs: Path) -> int | None:
    node = node_of_cpus(facts.get("CPU affinity", lambda: calls.cpu_affinity(chip), "", chip), sysfs)
    if node is None:
        node = node_of_pci(facts.get("PCI address", lambda: calls.pci_address(chip), "", chip), sysfs)
    return node
