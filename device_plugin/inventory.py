"""Reads the driver once, without Kubernetes, for support cases and acceptance; the scan has a public format.

Every call of the driver has a deadline and every chip its own thread: a chip that hangs is shown with a problem, the
others are read.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from ascend.chips import chip_name
from ascend.errors import AscendError, DriverError
from ascend.vnpus import Vnpu
from device_plugin.chips.call_thread import CallThread, R
from device_plugin.driver import ChipFacts, Driver, Inventory, VirtualNpu
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.levels import CARD_DROP
from device_plugin.health.moment import present_moment
from device_plugin.health.snapshot import Chip, Snapshot

DISCOVER_S = 30.0
"""Loading the driver and listing all chips can take long on a server that has just started."""

CHIP_S = 3.0


class ChipEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chip.

    Attributes:
        card_id: -1 if the driver does not list its card.
        device_id: likewise.
        level: as in reports; None if there is a problem.
        health: as reported to the kubelet: a chip that could not be read is ``Unhealthy``.
        network_health: ``Healthy``, ``Unhealthy``, or ``Unknown`` if the chip does not answer.
        problem: why the chip could not be read, or what is wrong with it although it has no fault; absent if neither.
    """

    name: str
    phy_id: int
    logic_id: int
    card_id: int
    device_id: int
    chip_name: str
    ip: str
    super_device_id: int
    numa_node: int | None
    hbm_mb: int
    fault_codes: tuple[str, ...]
    level: str | None
    health: str
    network_health: str
    problem: str = ""


class VirtualEntry(msgspec.Struct, frozen=True):
    """A vNPU.

    Attributes:
        phy_id: the chip that it is a part of.
        template: the driver's name of its size; empty if unknown.
        resource: as what it is requested; None if it is not offered: its size has no name, or vNPUs are cut when pods
            start.
        in_container: whether the driver says that a container has it.
    """

    name: str
    phy_id: int
    vdev_id: int
    template: str
    resource: str | None
    in_container: bool


class ScanEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server.

    Attributes:
        problems: sentences about cards that can't be read; absent if all can.
        unidentified: the number of chips that are missing from ``chips`` because their ids are unknown.
    """

    product: str
    driver_version: str
    super_pod_id: int
    server_index: int
    chips: tuple[ChipEntry, ...]
    vnpus: tuple[VirtualEntry, ...]
    problems: tuple[str, ...] = ()
    unidentified: int = 0


@dataclass(frozen=True, slots=True)
class Scan:
    """A scan of the driver.

    Attributes:
        snapshot: the server and its chips.
        problems: why chips could not be read or are in doubt, by physical id.
    """

    snapshot: Snapshot
    problems: Mapping[int, str]

    @property
    def server(self) -> Inventory:
        """The server as discovered."""
        return self.snapshot.server


def scan_entry(scan: Scan, *, dynamic_vnpus: bool = False) -> ScanEntry:
    """Return the scan in the public format.

    Args:
        scan: the scan.
        dynamic_vnpus: whether vNPUs are cut when pods start; none is requested by its size then.
    """
    server = scan.server
    return ScanEntry(
        product=server.chip_type,
        driver_version=server.driver_version,
        super_pod_id=server.super_pod_id,
        server_index=server.server_index,
        chips=tuple(_chip_entry(chip, scan.problems.get(chip.chip_id, "")) for chip in scan.snapshot.chips),
        vnpus=tuple(_virtual_entry(vnpu, is_offered=not dynamic_vnpus) for chip in server.chips for vnpu in chip.vnpus),
        problems=server.problems,
        unidentified=server.unidentified,
    )


def virtual_name(npu: VirtualNpu) -> str:
    """Return the name of a vNPU, such as ``Ascend910-2c-100-1`` (docs/spec/vnpu.md#names-and-templates)."""
    return (npu.vnpu or Vnpu(npu.template or "unknown", npu.phy_id, npu.vdev_id)).name


def _virtual_entry(npu: VirtualNpu, *, is_offered: bool) -> VirtualEntry:
    resource = npu.vnpu.resource if npu.vnpu is not None and is_offered else None
    return VirtualEntry(virtual_name(npu), npu.phy_id, npu.vdev_id, npu.template, resource, npu.in_container)


def health_word(healthy: bool) -> str:  # noqa: FBT001 - names its only argument
    """Return ``Healthy`` or ``Unhealthy``."""
    return "Healthy" if healthy else "Unhealthy"


def network_word(chip: Chip, problem: str = "") -> str:
    """Return ``Healthy``, ``Unhealthy``, or ``Unknown`` if the chip does not answer and its port had no fault."""
    answers = not problem and not chip.in_doubt and all(fault.code != CARD_DROP for fault in chip.faults)
    return health_word(chip.network_healthy) if answers or not chip.network_healthy else "Unknown"


def _chip_entry(chip: Chip, problem: str) -> ChipEntry:
    facts = chip.facts
    return ChipEntry(
        name=chip_name(facts.phy_id),
        phy_id=facts.phy_id,
        logic_id=facts.logic_id,
        card_id=facts.card_id,
        device_id=facts.device_id,
        chip_name=facts.chip_name,
        ip=facts.address.ip,
        super_device_id=facts.address.super_device_id,
        numa_node=facts.numa_node,
        hbm_mb=facts.hbm_mb,
        fault_codes=tuple(fault.name for fault in (*chip.faults, *chip.network_faults)),
        level=None if problem else max(chip.level, chip.network_level).wire,
        health=health_word(chip.healthy),
        network_health=network_word(chip, problem),
        problem=problem,
    )


async def scan(driver: Driver, *, discover_s: float = DISCOVER_S, chip_s: float = CHIP_S) -> Scan:
    """Read all chips once.

    Args:
        driver: what to read.
        discover_s: deadline for the list of chips.
        chip_s: deadline for reading a chip.

    Raises:
        DriverError: the driver can't be read; says why.
    """
    try:
        server = await _call("driver", driver.discover, discover_s)
    except TimeoutError:
        raise DriverError(f"the driver does not answer within {discover_s:g} s") from None
    book = HealthBook(default_rules(), hold_s=0.0)  # no damping: what the codes say now
    book.on_discovery(server, present_moment())

    async def read(chip: ChipFacts) -> str | None:
        at = present_moment()
        try:
            state = await _call(chip_name(chip.phy_id), lambda: driver.read(chip), chip_s)
        except TimeoutError:
            return f"driver silent: no answer within {chip_s:g} s"
        except AscendError as error:
            return error.message
        book.on_reading(chip.phy_id, state, at)
        return None

    answers = await asyncio.gather(*map(read, server.chips))
    snapshot = book.judge(present_moment())
    problems = {chip.chip_id: chip.sentence for chip in snapshot.chips if chip.in_doubt}
    problems |= {chip.phy_id: why for chip, why in zip(server.chips, answers, strict=True) if why is not None}
    return Scan(snapshot, problems)


async def _call(name: str, function: Callable[[], R], deadline_s: float) -> R:
    """Run a call in a thread of its own.

    Raises:
        TimeoutError: it has not returned within the deadline.
    """
    thread = CallThread(name)
    try:
        async with asyncio.timeout(deadline_s):
            return await thread.call(function)
    finally:
        thread.close()
