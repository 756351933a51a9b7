"""The command ``ascend-device-plugin inventory``: settings in, a table or JSON out, exit status."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from ascend.annotations import UNKNOWN
from ascend.daemon.run import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.settings import SettingsSource
from ascend.errors import DriverError, InvalidValue
from ascend.observe.logs import configure_logs
from device_plugin.inventory.entries import ChipEntry, EventEntry, ScanEntry, scan_entry
from device_plugin.inventory.inspector import Inspector
from device_plugin.settings import DriverSettings

PROGRAM = "ascend-device-plugin inventory"

_BAD = "bold red"


class InventorySettings(DriverSettings):
    """Print one scan of the driver, without Kubernetes."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; its exit status: 0, 1 where the driver can't be read, 2 where it was called wrongly."""
    options = argparse.ArgumentParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    options.add_argument("-o", "--output", choices=("table", "json"), default="table", help="how to print")
    options.add_argument("--watch", action="store_true", help="then print a line for every fault event")
    chosen, flags = options.parse_known_args(arguments)
    try:
        settings = SettingsSource(InventorySettings, PROGRAM, flags, options=options).read()
    except InvalidValue as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_USAGE
    configure_logs("ascend-device-plugin", level="WARNING", stream=sys.stderr)
    as_json = chosen.output == "json"
    inspector = Inspector(settings.make_driver())
    try:
        asyncio.run(_inspect(inspector, _json if as_json else _table, _event_json if as_json else _event_text, chosen))
    except DriverError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_FAILURE
    except BrokenPipeError:
        # Whoever reads has enough. Standard output is closed here, as Python would try to empty it once more.
        sys.stderr.close()
    return 0


async def _inspect(
    inspector: Inspector,
    show: Callable[[ScanEntry], None],
    tell: Callable[[EventEntry], None],
    chosen: argparse.Namespace,
) -> None:
    show(scan_entry(await inspector.scan()))
    if not chosen.watch:
        return
    task = asyncio.ensure_future(inspector.watch(tell))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


def _json(scan: ScanEntry) -> None:
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(scan), indent=2).decode() + "\n")
    sys.stdout.flush()


def _event_json(event: EventEntry) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def _event_text(event: EventEntry) -> None:
    words = {"occur": "occurred", "recover": "recovered", "once": "occurred and is over"}
    found = " (found by polling)" if event.source == "poll" else ""
    network = "" if event.network_health == "Healthy" else ", network Unhealthy"
    sys.stdout.write(
        f"{event.time}  {event.name}  {event.code} {words[event.assertion]}{found}: "
        f"{event.level}, {event.health}{network}\n"
    )
    sys.stdout.flush()


def _table(scan: ScanEntry) -> None:
    console = Console()
    console.print(render(scan))
    sys.stdout.flush()


def render(scan: ScanEntry) -> RenderableType:
    """The scan, laid out for eyes."""
    facts = [f"{len(scan.chips)} chips"]
    facts += [f"driver {scan.driver_version}"] if scan.driver_version else []
    facts += [f"SuperPod {scan.super_pod_id}"] if scan.super_pod_id != UNKNOWN else []
    facts += [f"server {scan.server_index}"] if scan.server_index != UNKNOWN else []
    table = Table(box=None, header_style="dim", pad_edge=False)
    for name, right in (
        ("chip", False),
        ("card", True),
        ("logic", True),
        ("type", False),
        ("HBM", True),
        ("NUMA", True),
        ("address", False),
        ("health", False),
        ("network", False),
        ("level and faults", False),
    ):
        table.add_column(name, justify="right" if right else "left", overflow="fold")
    for chip in scan.chips:
        table.add_row(*_row(chip))
    virtual = [
        Text(f"{vnpu.name}: virtual, on chip {vnpu.phy_id}, {vnpu.template or 'size unknown'}", style="dim")
        for vnpu in scan.vnpus
    ]
    title = f"[bold]{scan.product}[/]  {'  '.join(facts)}"
    return Panel(Group(table, *virtual), title=title, title_align="left", expand=False)


def _row(chip: ChipEntry) -> list[RenderableType]:
    faults = chip.problem or " ".join([chip.level or "", *chip.fault_codes])
    return [
        chip.name,
        f"{chip.card_id}/{chip.device_id}",
        str(chip.logic_id),
        chip.chip_name or "-",
        f"{chip.hbm_mb // 1024} GB" if chip.hbm_mb else "-",
        "-" if chip.numa_node is None else str(chip.numa_node),
        chip.ip or "-",
        _health("Unknown" if chip.problem else chip.health),
        _health("Unknown" if chip.problem else chip.network_health),
        Text(faults, style="" if faults == "NormalNPU" else _BAD if chip.health == "Unhealthy" else "yellow"),
    ]


def _health(word: str) -> Text:
    return Text(word, style="green" if word == "Healthy" else _BAD)
