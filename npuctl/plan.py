"""The command ``npuctl plan``: its options, and how the plan is laid out for eyes."""

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import typer
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from allocator.settings import Settings
from ascend.chips import NAME_PREFIX
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue, Refusal
from npuctl.manifests import read_manifests
from npuctl.output import Output, group, show
from npuctl.planning import Candidate, Pending, Plan, plan

EXIT_PENDING = 3
"""Something waits."""


def make_plan(
    files: Sequence[str],
    *,
    config: Path | None,
    values: Sequence[str],
    now: str | None,
    candidates: bool,
    output: Output,
) -> int:
    """Plan and print.

    Args:
        files: what to read the objects from.
        config: the allocator's settings file.
        values: settings as ``key=value``, which go before the file's.
        now: the present, RFC 3339; the clock's if not given.
        candidates: tell of every node that fits, too.
        output: how to print.

    Returns:
        The exit status: 0, or 3 where a pod waits.

    Raises:
        InvalidValue: the input can't be used.
    """
    settings = fixed_settings(Settings, config, dict(map(_setting, values)))
    now_ns = read_time(now)
    reading = read_manifests(files)
    answer = plan(reading.snapshot, settings, now_ns, candidates=candidates)
    if reading.ignored:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(reading.ignored.items()))
        typer.echo(f"npuctl: not looked at: {counts}", err=True)
    show(answer, output, lambda: _table(answer))
    return EXIT_PENDING if answer.pending else 0


def read_time(text: str | None) -> int:
    """The present as Unix nanoseconds: as given, else the clock's.

    Raises:
        InvalidValue: it is no time.
    """
    if text is None:
        return time.time_ns()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue(f"--now: {text!r} is no RFC 3339 time, such as 2026-01-31T12:00:00Z")
    whole_s = int(moment.replace(microsecond=0).timestamp())
    return whole_s * 10**9 + moment.microsecond * 1000


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidValue(f"--set: {text!r} is not key=value")
    return key, value


def _table(answer: Plan) -> RenderableType:
    if not answer.pods and not answer.pending:
        return Text("no pod waits for chips")
    parts: list[RenderableType] = []
    if answer.pods:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for title in ("POD", "JOB", "NODE", "CHIPS"):
            table.add_column(title, overflow="fold")
        for pod in answer.pods:
            table.add_row(f"{pod.namespace}/{pod.name}", pod.job, pod.node, _chips(pod.chips))
            for each in pod.candidates or ():
                table.add_row("", "", *_candidate(each), style="dim")
        parts.append(table)
    parts += [_pending(pod) for pod in answer.pending]
    return Stack(*parts)


def _pending(pod: Pending) -> RenderableType:
    head = Text.assemble(
        (f"{pod.namespace}/{pod.name}", "bold"), " waits: ", (pod.reason, "yellow"), f": {pod.message}"
    )
    lines = Table.grid(padding=(0, 1))
    for each in group({node: Refusal(why.reason, why.message) for node, why in pod.nodes.items()}):
        lines.add_row(
            f"  {len(each.nodes)} nodes" if len(each.nodes) != 1 else "  1 node", Text(f"{each} ({each.names()})")
        )
    return Stack(head, lines)


def _candidate(each: Candidate) -> tuple[str, str]:
    return f"{each.rank}. {each.node}", f"{_chips(each.chips)} (score {each.score})"


def _chips(names: Sequence[str]) -> str:
    return ",".join(name.removeprefix(NAME_PREFIX) for name in names)
