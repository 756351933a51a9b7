"""The command ``npuctl doctor``: carries out the checks of a node or of a cluster and lays them out for eyes."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
from pydantic import Field
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ascend.daemon.run import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue
from ascend.observe.logs import configure_logs
from device_plugin.settings import Settings
from npuctl.doctor.allocator import inquire
from npuctl.doctor.cluster import check_up
from npuctl.doctor.finding import Finding
from npuctl.doctor.node import examine
from npuctl.output import Output, show
from npuctl.source import Source

PROGRAM = "npuctl doctor"

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


class DoctorSettings(Settings):
    """Tell what is wrong with this node, in words. The settings are those of ascend-device-plugin."""

    node_name: str = Field(
        default_factory=os.uname().nodename.lower,
        description="this node's name; the host's name if not given",
    )


class _Diagnosis(msgspec.Struct):
    node: str
    problems: int
    warnings: int
    findings: Sequence[Finding]


async def diagnose(arguments: Sequence[str], output: Output) -> int:
    """Check this node and print what was found.

    Args:
        arguments: flags as of ascend-device-plugin.
        output: how to print.

    Returns:
        The exit status: 0, 1 where there are problems, 2 where it was called wrongly.
    """
    try:
        settings = SettingsSource(DoctorSettings, PROGRAM, arguments).read()
    except InvalidValue as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_USAGE
    configure_logs(PROGRAM, level="ERROR", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    progress = Console(stderr=True)
    with progress.status("looking around") as status:
        findings = await examine(settings, begin=lambda check: status.update(f"looking at the {check.name}"))
    return _tell(settings.node_name, findings, output)


async def diagnose_cluster(source: Source, allocator: str | None, authority: Path | None, output: Output) -> int:
    """Check a cluster from afar and print what was found.

    Args:
        source: where its objects come from.
        allocator: the address of a running allocator to ask; none, if None.
        authority: the certificates that vouch for it; None for those that the system trusts.
        output: how to print.

    Returns:
        The exit status: 0, or 1 where there are problems.

    Raises:
        InvalidValue: the input can't be used.
        ApiError: the API server refused.
        Unreachable: it doesn't answer.
    """
    findings = check_up(await source.read(), source.settings, source.now_ns)
    if allocator is not None:
        findings += await inquire(allocator, authority)
    return _tell("cluster", findings, output)


def _tell(name: str, findings: Sequence[Finding], output: Output) -> int:
    problems, warnings = (sum(each.severity == severity for each in findings) for severity in ("problem", "warning"))
    show(_Diagnosis(name, problems, warnings, findings), output, lambda: render(name, findings))
    return EXIT_FAILURE if problems else 0


def render(node: str, findings: Sequence[Finding]) -> RenderableType:
    """The findings, laid out for eyes: a line each, and below it what to do."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before = ""
    for finding in findings:
        mark, style = _MARKS[finding.severity]
        table.add_row(
            Text(mark, style=style),
            Text("" if finding.check == before else finding.check, style="dim"),
            Text(finding.sentence, style="" if finding.severity == "ok" else style),
        )
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", style="italic"))
        before = finding.check
    problems = sum(finding.severity == "problem" for finding in findings)
    warnings = sum(finding.severity == "warning" for finding in findings)
    summary = Text.assemble(
        (f"{node}: ", "bold"),
        (f"{problems} problems" if problems != 1 else "1 problem", "bold red" if problems else "green"),
        ", ",
        (f"{warnings} warnings" if warnings != 1 else "1 warning", "yellow" if warnings else "green"),
    )
    return Group(table, summary)
