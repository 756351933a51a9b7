"""Carries out ``npuctl doctor`` and lays out its findings."""

import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ascend.daemon.run import EXIT_FAILURE, EXIT_USAGE
from ascend.daemon.setting import setting
from ascend.daemon.settings import SettingsSource
from ascend.errors import InvalidValue
from ascend.grammar import count
from ascend.observe.console import SafeConsole
from ascend.observe.logs import configure_logs
from device_plugin.settings import Settings
from npuctl.doctor import chips, kubelet
from npuctl.doctor.allocator import check_allocator
from npuctl.doctor.api_server import ApiServerChecks
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.details import find_details, read_details
from npuctl.doctor.finding import Check, Finding, named, run_check
from npuctl.doctor.processes import check_processes
from npuctl.output import Output, show
from npuctl.reading.source import Source

PROGRAM: Final = "npuctl doctor"

PROCESSES_S: Final = 60.0

_MARKS: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


@dataclass(frozen=True, kw_only=True)
class NodeSettings(Settings):
    """Check this node. The settings are those of ascend-device-plugin."""

    node_name: str = setting(
        default=os.uname().nodename.lower(),
        description="this node's name; the host's name if not given",
    )


class Diagnosis(msgspec.Struct, tag_field="schema", tag="npuctl/doctor/v1"):
    """The answer: the findings, and how many of them are problems and warnings."""

    node: str
    problems: int
    warnings: int
    findings: Sequence[Finding]

    @property
    def exit_status(self) -> int:
        """The exit status of the command."""
        return EXIT_FAILURE if self.problems else 0


def diagnosis_of(node: str, findings: Sequence[Finding]) -> Diagnosis:
    """Return the diagnosis of a node, or of the cluster."""
    problems, warnings = (sum(each.severity == severity for each in findings) for severity in ("problem", "warning"))
    return Diagnosis(node, problems, warnings, findings)


async def diagnose_node(arguments: Sequence[str], output: Output) -> int:
    """Check this node with these flags of ascend-device-plugin, and print the findings.

    Returns:
        The exit status: 0, 1 if there are problems, 2 if a flag is wrong.
    """
    try:
        settings = SettingsSource(NodeSettings, PROGRAM, arguments).read()
    except InvalidValue as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return EXIT_USAGE
    configure_logs(PROGRAM, level="ERROR", stream=sys.stderr)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    with SafeConsole(stderr=True).status("checking", spinner="line") as status:  # a spinner that ASCII has
        findings = await check_node(settings, begin=lambda check: status.update(f"checking: {check.name}"))
    return _report(settings.node_name, findings, output)


async def check_node(
    settings: Settings,
    *,
    begin: Callable[[Check], None] = lambda _check: None,
    environment: Mapping[str, str] = os.environ,
) -> list[Finding]:
    """Run all checks of this node, one after another; ``begin`` is called before each, to show progress."""
    api_server = ApiServerChecks(settings)
    findings: list[Finding] = []
    try:
        for check in node_checks(settings, api_server, environment):
            begin(check)
            findings.extend(await run_check(check))
    finally:
        await api_server.close()
    return findings


def node_checks(settings: Settings, api_server: ApiServerChecks, environment: Mapping[str, str]) -> tuple[Check, ...]:
    """Return the checks of a node, in the order in which one explains the findings of the next."""
    processes = Check(
        "processes",
        "processes use a chip that no pod holds, or another pod: their container took it by its environment or by hand",
        lambda: check_processes(settings, lambda: api_server.pods),
        deadline_s=PROCESSES_S,
    )
    return (*chips.checks(settings, environment), *kubelet.checks(settings), *api_server.checks(), processes)


async def diagnose_cluster(source: Source, allocator: str | None, authority: Path | None, output: Output) -> int:
    """Check a cluster, and the allocator at an address if there is one, and print the findings.

    The authority of the allocator's certificate is the system's if not given.

    Returns:
        The exit status: 0, or 1 if there are problems.

    Raises:
        InvalidValue: the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    if source.files:
        reading = source.read_files(strict=False)
        objects, details = reading.objects, find_details(reading.manifests)
    else:
        objects = await source.read_cluster()
        async with await source.connect() as client:
            details = await read_details(client)
    findings = await check_cluster(objects, details, source.settings, source.now_ns)
    if allocator is not None:
        findings += named("allocator", await check_allocator(allocator, authority))
    return _report("cluster", findings, output)


def _report(name: str, findings: Sequence[Finding], output: Output) -> int:
    diagnosis = diagnosis_of(name, findings)
    show(diagnosis, output, lambda: render(diagnosis))
    return diagnosis.exit_status


def render(diagnosis: Diagnosis) -> RenderableType:
    """Lay out findings: a line each, and below it what to do."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    before = ""
    for finding in diagnosis.findings:
        mark, style = _MARKS[finding.severity]
        table.add_row(
            Text(mark, style=style),
            Text("" if finding.check == before else finding.check, style="dim"),
            Text(finding.sentence, style="" if finding.severity == "ok" else style),
        )
        if finding.advice:
            table.add_row("", "", Text(f"→ {finding.advice}", style="italic"))
        before = finding.check
    summary = Text.assemble(
        (f"{diagnosis.node}: ", "bold"),
        (count(diagnosis.problems, "problem"), "bold red" if diagnosis.problems else "green"),
        ", ",
        (count(diagnosis.warnings, "warning"), "yellow" if diagnosis.warnings else "green"),
    )
    return Group(table, summary)
