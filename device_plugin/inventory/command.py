"""The command ``ascend-device-plugin inventory``: settings in, a table or JSON out, exit status."""

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ascend.annotations import UNKNOWN
from ascend.chips import count_chips
from ascend.daemon.exits import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.settings import SettingsSource
from ascend.errors import DriverError, InvalidValue
from ascend.observe.console import SafeConsole
from ascend.observe.logs import configure_logs
from ascend.printable import escaped_json, printable
from ascend.templates import RESOURCE_CORES
from device_plugin.driver import NO_CARD
from device_plugin.inventory.entries import ChipEntry, EventEntry, ScanEntry, scan_entry
from device_plugin.inventory.inspector import Inspector
from device_plugin.settings import DriverSettings

PROGRAM = "ascend-device-plugin inventory"

_BAD = "bold red"
_NUMBERS = frozenset({"card", "logic", "HBM", "NUMA"})
_COLUMNS = ("chip", "card", "logic", "type", "HBM", "NUMA", "address", "health", "network", "faults")


class InventorySettings(DriverSettings):
    """Print one scan of the driver, without Kubernetes."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; return its exit status: 0, 1 if the driver can't be read, 2 for invalid arguments."""
    options = argparse.ArgumentParser(prog=PROGRAM, add_help=False, allow_abbrev=False)
    options.add_argument("-o", "--output", choices=("table", "json"), default="table", help="the output format")
    options.add_argument("--watch", action="store_true", help="then print a line for every fault that occurs or clears")
    chosen, flags = options.parse_known_args(arguments)
    try:
        settings = SettingsSource(InventorySettings, PROGRAM, flags, options=options).read()
    except InvalidValue as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_USAGE
    configure_logs("ascend-device-plugin", level="WARNING", stream=sys.stderr)
    try:
        inspector = Inspector(settings.make_driver())
        dynamic, as_json = settings.dynamic_vnpus, chosen.output == "json"
        asyncio.run(_inspect(inspector, as_json=as_json, watch=chosen.watch, dynamic_vnpus=dynamic))
    except DriverError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_FAILURE
    except BrokenPipeError:
        # The reader has gone. Python would try to flush standard output again at exit, and complain.
        sys.stderr.close()
    return 0


async def _inspect(inspector: Inspector, *, as_json: bool, watch: bool, dynamic_vnpus: bool) -> None:
    scan = scan_entry(await inspector.scan(), dynamic_vnpus=dynamic_vnpus)
    if as_json:
        _print(escaped_json(msgspec.json.format(msgspec.json.encode(scan), indent=2).decode()))
    else:
        print_table(scan, SafeConsole(), dynamic_vnpus=dynamic_vnpus)
    if not watch:
        return
    event_line: Callable[[EventEntry], str] = _event_json if as_json else _event_text
    task = asyncio.ensure_future(inspector.watch(lambda event: _print(event_line(event))))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait((task,))
    if not task.cancelled():
        task.result()


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _event_json(event: EventEntry) -> str:
    return escaped_json(msgspec.json.encode(event).decode())


def _event_text(event: EventEntry) -> str:
    words = {"occur": "occurred", "recover": "recovered", "once": "occurred and is over"}
    found = " (found by polling)" if event.source == "poll" else ""
    network = "" if event.network_health == "Healthy" else f", network {event.network_health}"
    return printable(
        f"{event.time}  {event.name}  {event.code} {words[event.assertion]}{found}: "
        f"{event.level}, {event.health}{network}"
    )


def print_table(scan: ScanEntry, console: Console, *, dynamic_vnpus: bool = False) -> None:
    """Print a scan for people. Only faults are folded, and only on a terminal; nothing is cut.

    Args:
        scan: the scan.
        console: where it is printed.
        dynamic_vnpus: whether vNPUs are cut when pods start, and AI cores are requested instead of them.
    """
    facts = [scan.product, count_chips(len(scan.chips))]
    facts += [f"driver {scan.driver_version}"] if scan.driver_version else []
    facts += [f"SuperPod {scan.super_pod_id}"] if scan.super_pod_id != UNKNOWN else []
    facts += [f"server {scan.server_index}"] if scan.server_index != UNKNOWN else []
    table = Table(box=None, header_style="dim", padding=(0, 1, 0, 0))
    rows = [_row(chip) for chip in scan.chips]
    for name, cells in zip(_COLUMNS, zip(*rows, strict=True), strict=False):
        width = None if name == _COLUMNS[-1] else max(len(str(cell)) for cell in cells)
        table.add_column(name, justify="right" if name in _NUMBERS else "left", min_width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
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
    content = Group(Text("  ".join(facts), style="bold"), table, *virtual, *problems)
    # rich cuts what is wider than the console. A terminal wraps such lines, and a pipe has no width.
    needed = console.measure(content, options=console.options.update(max_width=sys.maxsize))
    console.width = max(console.width, needed.minimum) if console.is_terminal else needed.maximum
    console.print(content)


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
