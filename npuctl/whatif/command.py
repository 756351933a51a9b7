"""Carries out ``npuctl whatif`` and lays out its answer."""

from collections.abc import Iterator
from typing import Final, Literal, TypeAlias

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from ascend.grammar import count
from npuctl.evaluation import Evaluation
from npuctl.output import FittingTable, Output, print_utf8, show
from npuctl.queue.command import next_of, why
from npuctl.reading.source import Source, rfc3339
from npuctl.topo.nodes import node_views
from npuctl.whatif.changes import ChangedCluster, WhatIfChanges
from npuctl.whatif.comparison import ClusterOutlook, Free, JobChange, changed_jobs, decide
from npuctl.whatif.picture import draw

Form: TypeAlias = Literal["table", "json", "yaml", "svg"]
"""The format of an answer; SVG is a picture of the chips before and after."""


_IN_LINE: Final = 3
"""Numbers in a line below the picture."""

_MOST_MOVED: Final = 3
"""Jobs in the table that only have another place in the queue: those that move most."""


class WhatIf(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/whatif/v1"):
    """The answer at a time (RFC 3339).

    Attributes:
        time: the time of the objects.
        changes: what was asked about, a sentence each.
        before: what becomes of the cluster as it is.
        after: what becomes of it with these changes.
        jobs: the jobs of which something else becomes.
        successors: how many pods controllers create in the place of those that end; they count as without scheduling
            gates of others.
    """

    time: str
    changes: tuple[str, ...]
    before: ClusterOutlook
    after: ClusterOutlook
    jobs: tuple[JobChange, ...]
    successors: int = 0


async def run_whatif(source: Source, changes: WhatIfChanges, form: Form) -> int:
    """Print what else would run, wait and be free after changes, which are not made.

    Raises:
        InvalidValue: a change names what the cluster has not, or the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    objects, settings, now_ns = await source.read(), source.settings, source.now_ns
    evaluation = Evaluation(objects, settings, now_ns)
    cluster = ChangedCluster(objects, evaluation.allocator, now_ns)
    changed = Evaluation(cluster.make(changes), settings, now_ns)
    before = await decide(evaluation, settings.sharing_products)
    after = await decide(changed, settings.sharing_products)
    jobs = tuple(changed_jobs(before, after))
    answer = WhatIf(rfc3339(now_ns), tuple(cluster.made), before.state, after.state, jobs, cluster.successors)
    if form == "svg":
        views = [node_views(outcome.evaluation.objects, settings, now_ns) for outcome in (before, after)]
        print_utf8(draw(*views, title=answer.changes, lines=list(_sentences(answer))))
        return 0
    show(answer, Output(form), lambda: _render(answer))
    return 0


def _render(answer: WhatIf) -> RenderableType:
    head = "; ".join(answer.changes) or "nothing changes: give --drain, --lose, --add, --end or --priority"
    table = FittingTable(("", "NOW", "THEN", "CHANGE"), numeric=("NOW", "THEN", "CHANGE"))
    for what, now, then in _numbers(answer):
        more = then - now
        style = "" if not more else "green" if (more > 0) != (what == "pods that wait") else "red"
        table.add_row(what, str(now), str(then), Text(f"{more:+}" if more else "-", style=style))
    parts: list[RenderableType] = [Text(head, style="bold"), Text(""), table, Text("")]
    parts.append(_jobs(answer) if answer.jobs else Text("every job runs and waits as before"))
    legend = (
        "NOW and THEN: once everything has started that starts now; CPU, memory, taints and affinity are not considered"
    )
    if answer.successors:
        created = count(answer.successors, "pod that is created anew counts", "pods that are created anew count")
        legend = f"{legend}; {created} as without scheduling gates of others, as Kueue's, which are not known"
    return Stack(*parts, Text(legend, style="dim"))


def _numbers(answer: WhatIf) -> Iterator[tuple[str, int, int]]:
    before, after = ({free.product: free for free in state.free} for state in (answer.before, answer.after))
    for product in dict.fromkeys([*before, *after]):
        now, then = before.get(product, Free(product)), after.get(product, Free(product))
        yield f"{product}: nodes that can be used", now.nodes, then.nodes
        yield f"{product}: free chips", now.chips, then.chips
        if (now.rings, then.rings) != (now.servers, then.servers):
            yield f"{product}: free rings", now.rings, then.rings
        yield f"{product}: free servers", now.servers, then.servers
    yield "pods that run", answer.before.running, answer.after.running
    yield "pods that wait", answer.before.waiting, answer.after.waiting


def _jobs(answer: WhatIf) -> RenderableType:
    entries = {entry.job: entry for entry in reversed(answer.after.queue)}
    table = FittingTable(
        ("JOB", "END", "RUN", "WAIT", "POSITION", "THEN"),
        numeric=("END", "RUN", "WAIT", "POSITION"),
        drop=("POSITION",),
    )
    moved = [change for change in answer.jobs if change.is_place_only]
    for change in (*(change for change in answer.jobs if not change.is_place_only), *moved[:_MOST_MOVED]):
        entry = entries.get(change.job)
        is_waiting = entry is not None and change.after.waiting > 0
        follows = next_of(entry) if entry is not None else "runs" if change.after.running else "is gone"
        table.add_row(
            change.job,
            str(change.ended or "-"),
            _arrow(change.before.running, change.after.running),
            _arrow(change.before.waiting, change.after.waiting),
            _arrow(change.before.position, change.after.position),
            Text(follows, style=_style(change)),
            below=Text(f"     {why(entry)}", style="dim") if entry is not None and is_waiting else None,
        )
    if len(moved) <= _MOST_MOVED:
        return table
    others = count(len(moved) - _MOST_MOVED, "other job has", "other jobs have")
    return Stack(table, Text(f"{others} another place in the queue (-o json has all)", style="dim"))


def _style(change: JobChange) -> str:
    more = change.after.running - change.before.running
    return "green" if more > 0 else "red" if more < 0 else "yellow" if change.ended else ""


def _arrow(before: int | None, after: int | None) -> str:
    now, then = ("-" if number is None else str(number) for number in (before, after))
    return now if now == then else f"{now} → {then}"


def _sentences(answer: WhatIf) -> Iterator[str]:
    """What the picture says below the chips."""
    changed = [f"{what} {now} → {then}" for what, now, then in _numbers(answer) if now != then]
    for first in range(0, len(changed), _IN_LINE):
        yield "; ".join(changed[first : first + _IN_LINE])
    for change in answer.jobs:
        if change.is_place_only:
            continue
        ended = f"{count(change.ended, 'pod')} {'ends' if change.ended == 1 else 'end'}, " if change.ended else ""
        yield (
            f"{change.job}: {ended}{_arrow(change.before.running, change.after.running)} run, "
            f"{_arrow(change.before.waiting, change.after.waiting)} wait"
        )
