"""Reads the facts about the chips of a card; a fact that can't be read keeps its last known value."""

import re
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import structlog

from ascend.base_device_infos import ChipAddress
from ascend.errors import DriverError
from device_plugin.driver import NO_CARD, ChipFacts, ChipType, VirtualNpu
from device_plugin.driver.dcmi.calls import MAX_ID, Place, SuperPodPlace
from device_plugin.driver.dcmi.dividing_calls import DividingCalls
from device_plugin.driver.dcmi.errors import UNSUPPORTED_CODES, DcmiError

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_A3_BOARDS = frozenset({0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0x81, 0x83, 0xD1, 0xD3})
_B = re.compile(r"910B\d|A2G\d")
_A = re.compile(r"910")
_MIN_CORES, _MAX_CORES = 8, 36
_NO_RESOURCES: tuple[int, tuple[VirtualNpu, ...]] = (0, ())
_ATTEMPTS, _MAX_CHIPS = 3, 64

SYSFS = Path("/sys")
_NODE = re.compile(r"node([0-9]+)")
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")

T = TypeVar("T")


def chip_type(board_id: int, chip_name: str) -> ChipType | None:
    """Return the type of a chip; None if it is not of the 910 family.

    Args:
        board_id: 0 if unknown.
        chip_name: such as ``910B3``; empty if unknown.
    """
    if board_id in _A3_BOARDS:
        return "Ascend910A3"
    name = chip_name.removeprefix("Ascend")
    if _B.match(name):
        return "Ascend910B"
    return "Ascend910" if _A.match(name) else None


def node_of_cpus(cpus: str, sysfs: Path = SYSFS) -> int | None:
    """Return the NUMA node with exactly these CPUs, or None.

    Args:
        cpus: such as ``0-23``.
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
    """Return the NUMA node of a PCI device; None if unknown.

    Args:
        address: such as ``0000:c1:00.0``.
        sysfs: where sysfs is mounted.
    """
    if _PCI_ADDRESS.fullmatch(address.lower()) is None:
        return None
    text = _read(sysfs / "bus/pci/devices" / address.lower() / "numa_node")
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""


@dataclass(frozen=True, slots=True)
class Surveyed:
    """The facts about a chip, and the facts about the server that the driver reports per chip.

    Attributes:
        facts: the chip.
        board_id: None if it can't be read at present; 0 if this driver has no boards.
        ai_cores: 0 if unknown.
        super_pod: None if unknown.
    """

    facts: ChipFacts
    board_id: int | None
    ai_cores: int
    super_pod: SuperPodPlace | None


class OptionalFacts:
    """Facts that a chip can be used without: a call that fails is logged once and the last known value is used."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, Place | None], Any] = {}
        self._failing: dict[tuple[str, Place | None], int] = {}

    def get(
        self, name: str, call: Callable[[], T], default: T, chip: Place | None = None, *, first_attempts: int = 1
    ) -> T:
        """Return a fact.

        Args:
            name: of the fact, for the log.
            call: reads it.
            default: its value if it was never read.
            chip: the chip; None for a fact about the server.
            first_attempts: how often to call until the first success.
        """
        key = (name, chip)
        # One failed call says nothing; a call that keeps failing is not worth more.
        attempts = 1 if key in self._known or key in self._failing else first_attempts
        try:
            value = _persistently(call, attempts)
        except DcmiError as error:
            if self._failing.get(key) != error.code:
                self._failing[key] = error.code
                # A function that the driver does not have is not worth a warning; one that fails is.
                (log.debug if error.permanent else log.warning)("a fact can't be read", fact=name, error=error.message)
            known: T = self._known.get(key, default)
            return known
        self._failing.pop(key, None)
        self._known[key] = value
        return value

    def is_unsupported(self, name: str, chip: Place) -> bool:
        """Return whether the last call failed because this driver does not support it."""
        return self._failing.get((name, chip)) in UNSUPPORTED_CODES


def _persistently(call: Callable[[], T], attempts: int) -> T:
    for _ in range(attempts - 1):
        try:
            return call()
        except DcmiError as error:
            if error.permanent:
                raise
    return call()


def server_type(found: Sequence[Surveyed]) -> ChipType | None:
    """Return the type of a server's chips; None if none of them is of the 910 family.

    Raises:
        DriverError: the board of no chip can be read at present. Without it, chips of an A3 server look like a 910A.
    """
    surveyed = [chip for chip in found if chip.board_id is not None]
    if not surveyed:
        raise DriverError("the type of the server is unknown: the board of no chip can be read")
    # A chip without a board counts only if the driver has no boards at all.
    with_board = [chip for chip in surveyed if chip.board_id] or surveyed
    kinds = [kind for chip in with_board if (kind := chip_type(chip.board_id or 0, chip.facts.chip_name)) is not None]
    if len(set(kinds)) > 1:
        log.error("chips of several types, the first is reported", types=sorted(set(kinds)))
    return kinds[0] if kinds else None


def survey_unlisted(
    calls: DividingCalls, listed: Sequence[Surveyed], known: Mapping[int, Surveyed], expected: int
) -> tuple[tuple[Surveyed, ...], int]:
    """Return the chips whose cards the driver does not list, and how many of them are unknown even to the kernel.

    The table of cards has no ids for a card that was not ready when the library was initialized, but the kernel has the
    physical id of each logic id.

    Args:
        calls: the library.
        listed: the chips that were surveyed.
        known: what earlier surveys found, by physical id.
        expected: the number of all chips.
    """
    missing = expected - len(listed)
    surveyed = {chip.facts.logic_id for chip in listed}
    found: dict[int, Surveyed] = {}
    for logic_id in sorted({*range(_MAX_CHIPS)} - surveyed):  # the ids have gaps if a chip is off the bus
        if missing <= 0:
            break
        try:
            phy_id = calls.phy_id(logic_id)
        except DcmiError:
            continue
        if not 0 <= phy_id <= MAX_ID:
            continue
        earlier = known.get(phy_id, Surveyed(ChipFacts(phy_id), None, 0, None))
        facts = replace(earlier.facts, logic_id=logic_id, card_id=NO_CARD, device_id=NO_CARD)
        found[phy_id] = replace(earlier, facts=facts)
        missing -= 1
    return tuple(found.values()), max(missing, 0)


def survey_missing(known: Mapping[int, Surveyed], found: Container[int]) -> dict[int, Surveyed]:
    """Return the chips that were found before and are not now, as chips that the driver does not list."""
    return {
        phy_id: replace(chip, facts=replace(chip.facts, card_id=NO_CARD, device_id=NO_CARD))
        for phy_id, chip in known.items()
        if phy_id not in found
    }


def survey_card(
    calls: DividingCalls, facts: OptionalFacts, card: int, known: Sequence[Surveyed], sysfs: Path
) -> tuple[tuple[Surveyed, ...], str]:
    """Return the chips of a card, and why the ids of one can't be read; empty if all were read.

    Args:
        calls: the library.
        facts: reads optional facts.
        card: the card.
        known: the chips of the last survey; used for a chip whose ids can't be read.
        sysfs: where sysfs is mounted.

    Raises:
        DriverError: the number of chips on the card can't be read.
    """
    before = {chip.facts.device_id: chip for chip in known}
    chips, problem = [], ""
    for device in calls.devices(card):
        try:
            chips.append(_survey_chip(calls, facts, (card, device), sysfs))
        except DriverError as error:
            problem = error.message
            if device in before:
                chips.append(before[device])
    return tuple(chips), problem


def _survey_chip(calls: DividingCalls, facts: OptionalFacts, chip: Place, sysfs: Path) -> Surveyed:
    logic_id = _checked("logic id", calls.logic_id(chip), chip)
    phy_id = _checked("physical id", calls.phy_id(logic_id, chip), chip)
    name, cores_by_name = facts.get("chip name", lambda: calls.chip_info(chip), ("", 0), chip)
    # The product depends on the board, and whether the chip can be used as a whole on its virtual NPUs.
    board_id = facts.get("board id", lambda: calls.board_id(chip), None, chip, first_attempts=_ATTEMPTS)
    if board_id is None and facts.is_unsupported("board id", chip):
        board_id = 0
    super_pod = facts.get("SuperPod", lambda: calls.super_pod(chip), None, chip)
    cores, vnpus = facts.get(
        "virtual NPUs",
        lambda: _resources(calls, facts, chip, phy_id),
        _NO_RESOURCES,
        chip,
        first_attempts=_ATTEMPTS,
    )
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
        board_id=board_id,
        ai_cores=next((count for count in (cores, cores_by_name) if _MIN_CORES <= count <= _MAX_CORES), 0),
        super_pod=super_pod,
    )


def _checked(what: str, value: int, chip: Place) -> int:
    if not 0 <= value <= MAX_ID:
        raise DriverError(f"card {chip[0]} device {chip[1]}: {what} {value} is not within 0..{MAX_ID}")
    return value


def _resources(
    calls: DividingCalls, facts: OptionalFacts, chip: Place, phy_id: int
) -> tuple[int, tuple[VirtualNpu, ...]]:
    ai_cores, virtual_ids = calls.resources(chip)
    return ai_cores, tuple(
        facts.get(
            f"virtual NPU {vdev_id}",
            partial(calls.virtual_npu, chip, vdev_id, phy_id),
            VirtualNpu(vdev_id, phy_id),
            chip,
        )
        for vdev_id in virtual_ids
    )


def _numa_node(calls: DividingCalls, facts: OptionalFacts, chip: Place, sysfs: Path) -> int | None:
    cpus = facts.get("CPU affinity", lambda: calls.cpu_affinity(chip), "", chip)
    if (node := node_of_cpus(cpus, sysfs)) is not None:
        return node
    return node_of_pci(facts.get("PCI address", lambda: calls.pci_address(chip), "", chip), sysfs)
