"""Carries out ``npuctl doctor --cluster``, and lays out the findings of a node too."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ascend.daemon.exits import EXIT_FAILURE
from ascend.grammar import count
from npuctl.doctor.allocator import check_allocator
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.details import find_details, read_details
from npuctl.doctor.finding import Finding, named
from npuctl.output import Output, show
from npuctl.reading.source import Source

_MARKS: Final = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "problem": ("✗", "bold red")}


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
    problems, warnings = (
        sum(finding.severity == severity for finding in findings) for severity in ("problem", "warning")
    )
    return Diagnosis(node, problems, warnings, findings)


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
        objects, details = reading.objects, find_details(reading.manifests, reading.objects.nodes)
    else:
        objects = await source.read_cluster()
        async with await source.connect() as client:
            details = await read_details(client, objects.nodes)
    findings = await check_cluster(objects, details, source.settings, source.now_ns)
    if allocator is not None:
        findings += named("allocator", await check_allocator(allocator, authority))
    return report("cluster", findings, output)


def report(name: str, findings: Sequence[Finding], output: Output) -> int:
    """Print the findings about a node or the cluster; return the exit status of the command."""
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
