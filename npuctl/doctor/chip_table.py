"""Carries out ``npuctl doctor --chips``: one scan of the driver of this node, without Kubernetes."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from ascend.annotations import UNKNOWN
from ascend.chips import count_chips
from ascend.daemon.settings import SettingsSource
from ascend.observe.logs import configure_logs
from ascend.templates import RESOURCE_CORES
from device_plugin.driver import NO_CARD
from device_plugin.inventory import ChipEntry, ScanEntry, scan, scan_entry
from device_plugin.settings import DriverSettings
from npuctl.output import FittingTable, Output, show

PROGRAM: Final = "npuctl doctor --chips"

_BAD: Final = "bold red"
_NUMBERS: Final = ("card", "logic", "HBM", "NUMA")
_COLUMNS: Final = ("chip", "card", "logic", "type", "HBM", "NUMA", "address", "health", "network", "faults")


class ChipsSettings(DriverSettings):
    """Print one scan of the driver, without Kubernetes."""


async def show_chips(arguments: Sequence[str], output: Output) -> int:
    """Print the chips of this node, read with these flags of ascend-device-plugin.

    Raises:
        InvalidValue: a flag is wrong.
        DriverError: the driver can't be read.
    """
    settings = SettingsSource(ChipsSettings, PROGRAM, arguments).read()
    configure_logs(PROGRAM, level="WARNING", stream=sys.stderr)
    entry = scan_entry(await scan(settings.make_driver()), dynamic_vnpus=settings.dynamic_vnpus)
    show(entry, output, lambda: lay_out(entry, dynamic_vnpus=settings.dynamic_vnpus))
    return 0


def lay_out(scan: ScanEntry, *, dynamic_vnpus: bool = False) -> RenderableType:
    """Lay out a scan for people.

    Args:
        scan: the scan.
        dynamic_vnpus: whether vNPUs are cut when pods start, and AI cores are requested instead of them.
    """
    facts = [scan.product, count_chips(len(scan.chips))]
    facts += [f"driver {scan.driver_version}"] if scan.driver_version else []
    facts += [f"SuperPod {scan.super_pod_id}"] if scan.super_pod_id != UNKNOWN else []
    facts += [f"server {scan.server_index}"] if scan.server_index != UNKNOWN else []
    table = FittingTable(_COLUMNS, numeric=_NUMBERS)
    for chip in scan.chips:
        table.add_row(*_row(chip))
    not_offered = f"not offered: pods request {RESOURCE_CORES} here" if dynamic_vnpus else "not offered"
    virtual = [
        Text(
            f"{vnpu.name}: vNPU {vnpu.vdev_id} of chip {vnpu.phy_id}, {vnpu.template or 'size unknown'}, "
            f"{f'requested as {vnpu.resource}' if vnpu.resource is not None else not_offered}"
            f"{', a container has it' if vnpu.in_container else ''}",
            style="dim",
        )
        for vnpu in scan.vnpus
    ]
    problems = [Text(problem, style=_BAD) for problem in scan.problems]
    if scan.unidentified:
        verb = "is" if scan.unidentified == 1 else "are"
        problems.append(Text(f"{count_chips(scan.unidentified)} {verb} missing here: the ids are unknown", style=_BAD))
    return Group(Text("  ".join(facts), style="bold"), table, *virtual, *problems)


def _row(chip: ChipEntry) -> list[RenderableType]:
    faults = " ".join([chip.problem or chip.level or "", *chip.fault_codes])
    return [
        chip.name,
        "-" if chip.card_id == NO_CARD else f"{chip.card_id}/{chip.device_id}",
        str(chip.logic_id),
        chip.chip_name or "-",
        f"{chip.hbm_mb // 1024} GB" if chip.hbm_mb else "-",
        "-" if chip.numa_node is None else str(chip.numa_node),
        chip.ip or "-",
        _health(chip.health),
        _health(chip.network_health),
        Text(faults, style="" if faults == "NormalNPU" else _BAD if chip.health == "Unhealthy" else "yellow"),
    ]


def _health(word: str) -> Text:
    return Text(word, style="green" if word == "Healthy" else _BAD)
