"""One scan of the driver as the command ``inventory`` prints it: a public format that stays as it is."""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ascend.chips import chip_name
from device_plugin.driver import Assertion, ChipFacts, Inventory, VirtualNpu
from device_plugin.health.snapshot import Verdict

_SUFFIXES = {
    "vir16": "16c",
    "vir08": "8c",
    "vir04": "4c",
    "vir02": "2c",
    "vir01": "1c",
    "vir03_1c_8g": "3c.1cpu.8g",
    "vir05_1c_8g": "5c.1cpu.8g",
    "vir05_1c_16g": "5c.1cpu.16g",
    "vir06_1c_16g": "6c.1cpu.16g",
    "vir10_3c_16g": "10c.3cpu.16g",
    "vir10_3c_16g_nm": "10c.3cpu.16g.ndvpp",
    "vir10_3c_32g": "10c.3cpu.32g",
    "vir10_4c_16g_m": "10c.4cpu.16g.dvpp",
    "vir12_3c_32g": "12c.3cpu.32g",
}
"""What a virtual chip's template is in its name (spec/node-agent.md §3.5)."""


class ChipEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A chip.

    Attributes:
        level: as in reports; None where the driver does not tell of the chip.
        health: what the kubelet would be told: unknown is not healthy.
        problem: why the driver's word is missing; absent where it is not.
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
    """A virtual chip."""

    name: str
    phy_id: int
    vdev_id: int
    template: str


class ScanEntry(msgspec.Struct, frozen=True):
    """A server."""

    product: str
    driver_version: str
    super_pod_id: int
    server_index: int
    chips: tuple[ChipEntry, ...]
    vnpus: tuple[VirtualEntry, ...]


class EventEntry(msgspec.Struct, frozen=True):
    """A fault that came or went.

    Attributes:
        time: UTC, as RFC 3339 has it.
        name: the chip.
        code: the fault, spelled as in reports.
        assertion: ``occur``, ``recover``, or ``once``: it happened and is over.
        severity: as the driver announces it; None where polling found the fault.
        source: ``event``: the driver announced it; ``poll``: the chip was asked.
        level: of the chip from now on.
        health: the same.
        network_health: the same.
    """

    time: str
    name: str
    code: str
    assertion: Assertion
    severity: int | None
    source: str
    level: str
    health: str
    network_health: str


@dataclass(frozen=True, slots=True)
class Scan:
    """What was read.

    Attributes:
        server: as discovered.
        verdicts: by physical id.
        problems: why chips could not be read, by physical id.
    """

    server: Inventory
    verdicts: Mapping[int, Verdict]
    problems: Mapping[int, str]


def scan_entry(scan: Scan) -> ScanEntry:
    """The scan as printed."""
    server = scan.server
    return ScanEntry(
        product=server.chip_type,
        driver_version=server.driver_version,
        super_pod_id=server.super_pod_id,
        server_index=server.server_index,
        chips=tuple(
            _chip(chip, scan.verdicts[chip.phy_id], scan.problems.get(chip.phy_id, ""))
            for chip in sorted(server.chips, key=lambda chip: chip.phy_id)
        ),
        vnpus=tuple(
            VirtualEntry(virtual_name(each), each.phy_id, each.vdev_id, each.template)
            for chip in server.chips
            for each in chip.vnpus
        ),
    )


def virtual_name(vnpu: VirtualNpu) -> str:
    """The name of a virtual chip, as ``Ascend910-2c-100-1`` (spec/node-agent.md §3.5)."""
    suffix = _SUFFIXES.get(vnpu.template, vnpu.template or "unknown")
    return f"Ascend910-{suffix}-{vnpu.vdev_id}-{vnpu.phy_id}"


def health(healthy: bool) -> str:  # noqa: FBT001 - the word for this one thing
    """``Healthy`` or ``Unhealthy``."""
    return "Healthy" if healthy else "Unhealthy"


def _chip(chip: ChipFacts, verdict: Verdict, problem: str) -> ChipEntry:
    return ChipEntry(
        name=chip_name(chip.phy_id),
        phy_id=chip.phy_id,
        logic_id=chip.logic_id,
        card_id=chip.card_id,
        device_id=chip.device_id,
        chip_name=chip.chip_name,
        ip=chip.address.ip,
        super_device_id=chip.address.super_device_id,
        numa_node=chip.numa_node,
        hbm_mb=chip.hbm_mb,
        fault_codes=tuple(fault.name for fault in (*verdict.faults, *verdict.network_faults)),
        level=None if problem else max(verdict.level, verdict.network_level).wire,
        health=health(verdict.healthy),
        network_health=health(verdict.network_healthy),
        problem=problem,
    )
