"""Examines the driver of this node, and changes nothing; needs the libraries of the device plugin.

No names, addresses, serial numbers or processes are in the report.
"""

import asyncio
import itertools
import os
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import msgspec

from ascend.chips import chip_name
from ascend.daemon.setting import setting
from ascend.daemon.settings import DISTRIBUTION, SettingsSource
from ascend.errors import AscendError, DriverError
from ascend.observe.logs import configure_logs
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts
from device_plugin.driver.dcmi.driver import DcmiDriver
from device_plugin.driver.dcmi.port_tool import LinkTool, PortCounters
from device_plugin.driver.dcmi.recording import Call, RecordingCalls, RecordingLingqu
from device_plugin.driver.telemetry import Label, Reading, plausible
from device_plugin.inventory import Scan, ScanEntry, scan, scan_entry
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.settings import DriverSettings
from npuctl.output import Output, show
from npuctl.selftest.command import render
from npuctl.selftest.pods import PodBooks
from npuctl.selftest.surprises import surprises

PROGRAM: Final = "npuctl selftest"
CHIP_S: Final = 30.0
"""For all questions about a chip together."""
_ODD: Final = "odd"
"""Begins the name of a reading whose values no chip can have."""


class Timing(msgspec.Struct, frozen=True):
    """How long the calls of a function took, in milliseconds."""

    calls: int
    median_ms: float
    longest_ms: float


class Examination(msgspec.Struct, frozen=True):
    """What the driver of a node answers.

    Attributes:
        driver: the setting ``driver``: ``dcmi`` or ``simulated``.
        versions: of this program, Python, the kernel, the architecture, and the node's Kubernetes programs if known.
        problem: why the driver can't be read; empty if it can.
        server: the chips as the device plugin sees them, without addresses; None if there is a problem.
        values: what was measured, by chip and quantity.
        missing: what could not be asked, by chip and question: why.
        surprises: sentences about answers that docs/spec/dcmi.md does not expect of such a server.
        timings: by function.
        calls: every call of the driver's libraries, in the order in which they began.
    """

    driver: str
    versions: Mapping[str, str]
    problem: str
    server: ScanEntry | None
    values: Mapping[str, Mapping[str, float]]
    missing: Mapping[str, Mapping[str, str]]
    surprises: Sequence[str]
    timings: Mapping[str, Timing]
    calls: Sequence[Call]


class Selftest(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/selftest/v1"):
    """The answer.

    Attributes:
        node: what its driver answers.
        pods: the pods that were tried; empty without ``--pods``.
    """

    node: Examination
    pods: Sequence[PodBooks] = ()


@dataclass(frozen=True, kw_only=True)
class SelftestSettings(DriverSettings):
    """Examine the driver of this node. The settings are those of ascend-device-plugin."""

    pod_resources_socket: Path = setting(
        default=Path("/var/lib/kubelet/pod-resources/kubelet.sock"), description="the kubelet's pod-resources socket"
    )


async def examine_node(arguments: Sequence[str], output: Output, devices_of: str) -> int:
    """Examine this node with these flags of ascend-device-plugin, and print the report.

    With ``devices_of``, a pod as NAMESPACE/NAME, only print what the kubelet has given it.

    Returns:
        The exit status: 0, 1 if the driver can't be read.

    Raises:
        InvalidValue: a flag is wrong.
        Unreachable: the kubelet does not answer.
    """
    settings = SettingsSource(SelftestSettings, PROGRAM, arguments).read()
    configure_logs(PROGRAM, level="CRITICAL", stream=sys.stderr)
    if devices_of:
        containers = (await read_ledger(settings.pod_resources_socket)).pods.get(devices_of, {})
        sys.stdout.write(
            msgspec.json.encode(sorted(itertools.chain.from_iterable(containers.values()))).decode() + "\n"
        )
        return 0
    answer = Selftest(await examine(settings))
    show(answer, output, lambda: render(msgspec.to_builtins(answer)))
    return 1 if answer.node.problem else 0


async def examine(settings: DriverSettings) -> Examination:
    """Make all calls of the device plugin to the driver except calls with effects, and record the answers."""
    calls: list[Call] = []
    driver: Any = settings.make_driver()
    if settings.driver == "dcmi":  # without the policy of dies, which would be set
        driver = DcmiDriver(
            settings.dcmi_library,
            links=LinkTool(settings.link_tool),
            counters=PortCounters(settings.link_tool),
            bind=lambda library, _observe: RecordingCalls(library, calls),
        )
    values: dict[str, dict[str, float]] = defaultdict(dict)
    missing: dict[str, dict[str, str]] = defaultdict(dict)
    problem, scanned = "", None
    try:
        scanned = await scan(driver)
    except DriverError as error:
        problem = error.message
    else:
        server = scanned.server
        await asyncio.gather(*(_ask(driver, chip, values, missing) for chip in server.chips if chip.is_listed))
        await _within("server", lambda: driver.partner_cards(server))
    if settings.driver == "dcmi":
        await _within("switches", RecordingLingqu(calls).list_faults)  # most servers have no such library
    made = list(calls)  # a call that hangs may return at any time
    of_server = scanned.server if scanned is not None else None
    found = surprises(made, of_server.chip_type if of_server else None, len(of_server.chips) if of_server else 0)
    odd = (
        f"{name}: {why}" for name, reasons in sorted(missing.items()) for what, why in reasons.items() if _ODD in what
    )
    return Examination(
        driver=settings.driver,
        versions=_versions(),
        problem=problem,
        server=_without_addresses(scanned) if scanned is not None else None,
        values=dict(sorted(values.items())),
        missing=dict(sorted(missing.items())),
        surprises=(*found, *odd, *(of_server.problems if of_server else ())),
        timings=timings(made),
        calls=made,
    )


async def _ask(
    driver: Any, chip: ChipFacts, values: Mapping[str, dict[str, float]], missing: Mapping[str, dict[str, str]]
) -> None:
    """Ask all about a chip; what is asked after a call that hangs is missing."""
    name = chip_name(chip.phy_id)

    def measure(reading: Reading) -> None:
        kept, wrong = plausible(driver.measure(chip, reading))
        values[name].update({str(quantity): value for quantity, value in kept.items()})
        if wrong:
            missing[name][f"{_ODD} {reading}"] = wrong

    questions: dict[str, Callable[[], object]] = {
        **{str(reading): partial(measure, reading) for reading in Reading},
        **{str(label): partial(driver.describe, chip, label) for label in Label},
        "processes": lambda: driver.users(chip),
        "division": lambda: driver.division(chip),
        "boot status": lambda: driver.has_started(chip),
    }

    def ask() -> None:
        for question, answer in questions.items():
            try:
                answer()
            except AscendError as error:
                missing[name][question] = error.message

    await _within(name, ask)


async def _within(name: str, function: Callable[[], object]) -> None:
    """Ask in a thread; what fails and what does not return is in the record of calls."""
    thread = CallThread(name)
    with suppress(AscendError, TimeoutError):
        async with asyncio.timeout(CHIP_S):
            await thread.call(function)
    thread.close()


def _without_addresses(scanned: Scan) -> Any:
    entry = scan_entry(scanned)
    chips = (msgspec.structs.replace(chip, ip="left out" if chip.ip else "") for chip in entry.chips)
    return msgspec.structs.replace(entry, chips=tuple(chips))


def _versions() -> dict[str, str]:
    host = os.uname()
    return {
        "npuctl": version(DISTRIBUTION),
        "python": platform.python_version(),
        "kernel": host.release,
        "machine": host.machine,
    }


def timings(calls: Sequence[Call]) -> dict[str, Timing]:
    """Return how long the calls took that have returned, by function."""
    took: dict[str, list[float]] = defaultdict(list)
    for call in calls:
        if call.code is not None:
            took[call.function].append(call.took_ms)
    return {name: Timing(len(ms), round(statistics.median(ms), 3), max(ms)) for name, ms in sorted(took.items())}
