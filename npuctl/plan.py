"""The command ``npuctl plan``: carries out a planning run and lays it out for eyes."""

from collections.abc import Sequence

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.chips import NAME_PREFIX
from ascend.errors import Refusal
from npuctl.output import Output, group, show, warn
from npuctl.planning import Candidate, Pending, Plan, plan
from npuctl.source import Source

EXIT_PENDING = 3
"""Something waits."""


def make_plan(source: Source, *, candidates: bool, output: Output) -> int:
    """Plan and print.

    Args:
        source: where the objects come from.
        candidates: tell of every node that fits, too.
        output: how to print.

    Returns:
        The exit status: 0, or 3 where a pod waits.

    Raises:
        InvalidValue: the input can't be used.
    """
    reading = source.read_files()
    answer = plan(reading.snapshot, source.settings, source.now_ns, candidates=candidates)
    if reading.ignored:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(reading.ignored.items()))
        warn(f"not looked at: {counts}")
    show(answer, output, lambda: _table(answer))
    return EXIT_PENDING if answer.pending else 0


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
