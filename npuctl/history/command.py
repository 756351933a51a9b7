"""Carries out ``npuctl history``: why a job waited and behind whom, and where its pods ran."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from time import time as clock
from typing import Final, TypeAlias

import msgspec
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from ascend.errors import InvalidValue
from ascend.grammar import count, some
from npuctl.history.intervals import OPEN, Interval, IntervalKind, WaitDetail, WaitReason
from npuctl.history.reader import HistoryReader
from npuctl.history.store import GAP_S, MOST_ROWS
from npuctl.output import FittingTable, Output, show
from npuctl.queue.command import NEXT, in_short
from npuctl.reading.source import read_duration, rfc3339

_NEXT: Final = {next_.value: words for next_, words in NEXT.items()}
_NOT_RECORDED: Final = "nothing was recorded"
_TOO_MANY: Final = f"further changes of this day, after {MOST_ROWS}, are not recorded"


class _Span(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    """A time (RFC 3339) in which something did not change; ``ended`` is empty while it goes on."""

    began: str
    ended: str


class JobWait(_Span, frozen=True, tag="waits", kw_only=True):
    """The job, or its pods of one priority, waited.

    Attributes:
        next: what had to happen before it started, as of ``npuctl queue``.
        reason: why, a word; empty if it would have started at once.
        message: the same as a sentence, as it was at first.
        behind: jobs that got the chips, or kept them.
        position: its place in the queue, as it was at first.
        requests: what its pods requested.
        since: when the first of these pods was created, RFC 3339.
    """

    next: str
    reason: str
    message: str
    behind: tuple[str, ...]
    position: int
    requests: str
    since: str


class JobRun(_Span, frozen=True, tag="runs", kw_only=True):
    """A pod (``namespace/name``) of the job held chips of a node, by their numbers."""

    pod: str
    node: str
    chips: tuple[int, ...]


class JobFault(_Span, frozen=True, tag="fault", kw_only=True):
    """A chip that a pod of the job held could not be allocated; ``fault`` says why."""

    node: str
    chip: int
    fault: str


class Unknown(_Span, frozen=True, tag="gap", kw_only=True):
    """What happened then is not known; ``why`` is a sentence."""

    why: str


Span: TypeAlias = JobWait | JobRun | JobFault | Unknown

_STYLES: Final[dict[type[Span], str]] = {JobWait: "yellow", JobRun: "", JobFault: "red", Unknown: "dim"}


class HistoryAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/history/v1"):
    """The history of a job since a time (RFC 3339), in the order of the beginnings."""

    time: str
    since: str
    job: str
    intervals: tuple[Span, ...]


def run_history(path: Path, job: str, namespace: str | None, since: str, output: Output) -> int:
    """Print what a history knows of a job.

    Raises:
        InvalidValue: it knows of no such job, or of several.
        HistoryUnreadable: it can't be read.
    """
    reader, now_s = HistoryReader(path), int(clock())
    since_s = now_s - _seconds(since)
    answer = history_of(reader, _find(reader, job, namespace), since_s, now_s)
    show(answer, output, lambda: render(answer))
    return 0


def history_of(reader: HistoryReader, job: str, since_s: int, now_s: int) -> HistoryAnswer:
    """Return the history of a job (``namespace/name``) since a time.

    Raises:
        HistoryUnreadable: it can't be read.
    """
    with reader.decoding():
        spans = [*map(_span, reader.of_job(job, since_s)), *_gaps(reader, since_s, now_s)]
    spans.sort(key=lambda span: span.began)
    return HistoryAnswer(rfc3339(now_s * 10**9), rfc3339(since_s * 10**9), job, tuple(spans))


def _seconds(since: str) -> int:
    days = since.removesuffix("d")
    if days != since and days.isdecimal() and len(days) <= 4:  # noqa: PLR2004 - years
        return int(days) * 86_400
    return int(read_duration("--since", since))


def _find(reader: HistoryReader, argument: str, namespace: str | None) -> str:
    left, slash, name = argument.rpartition("/")
    found = reader.jobs_named(name, namespace)
    if slash and namespace is None and f"{left}/{name}" in found:
        return f"{left}/{name}"
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidValue(f"there are several {name}: {some(found)}; name the namespace with -n")
    where = f" in the namespace {namespace}" if namespace is not None else ""
    raise InvalidValue(f"nothing is recorded of a job or pod {name}{where}")


def _span(interval: Interval) -> Span:
    key, state = interval.key, interval.state
    began = rfc3339(interval.began * 10**9)
    ended = rfc3339(interval.ended * 10**9) if interval.ended != OPEN else ""
    match key.kind:
        case IntervalKind.WAITS:
            wait = msgspec.json.decode(state.state, type=WaitReason)
            told = msgspec.json.decode(state.detail, type=WaitDetail)
            return JobWait(
                began=began, ended=ended, next=wait.next, reason=wait.reason, message=told.message, behind=wait.behind,
                position=told.position, requests=told.requests, since=told.since,
            )  # fmt: skip
        case IntervalKind.RUNS:
            chips = tuple(map(int, state.state.split(",")))
            return JobRun(began=began, ended=ended, pod=key.name, node=key.node, chips=chips)
        case IntervalKind.FAULT:
            return JobFault(began=began, ended=ended, node=key.node, chip=int(key.name), fault=state.state)
        case _:
            return Unknown(began=began, ended=ended, why=_TOO_MANY)


def _gaps(reader: HistoryReader, since_s: int, now_s: int) -> Iterator[Unknown]:
    """When nothing was recorded; the time since the last record is without an end."""
    last_s = since_s
    for began, last_s in reader.recordings():
        if began - since_s >= GAP_S:
            yield Unknown(began=rfc3339(since_s * 10**9), ended=rfc3339(began * 10**9), why=_NOT_RECORDED)
        since_s = max(since_s, last_s)
    if now_s - last_s >= GAP_S:
        yield Unknown(began=rfc3339(last_s * 10**9), ended="", why=_NOT_RECORDED)


def render(answer: HistoryAnswer) -> RenderableType:
    """Lay out a history."""
    head = Text(f"{answer.job} since {answer.since}", style="bold")
    table = FittingTable(("FROM", "TO", "LASTED", "WHAT"), numeric=("LASTED",), drop=("TO",))
    seen = next((span.began for span in answer.intervals if isinstance(span, Unknown) and not span.ended), "")
    for (began, ended, kind), some_spans in groupby(
        answer.intervals, lambda span: (span.began, span.ended, type(span))
    ):
        is_known = bool(ended) or not seen or kind is Unknown
        lasted = in_short(_unix(ended or (answer.time if is_known else seen)) - _unix(began))
        for what, below in _lines(list(some_spans)):
            under = Padding(Text(below, style="dim"), (0, 0, 0, 5)) if below else None
            table.add_row(
                began, ended or "-", lasted if is_known else f">{lasted}", Text(what, style=_STYLES[kind]), below=under
            )
    return Stack(head, table)


def follows(next_: str, behind: Sequence[str]) -> str:
    """What had to happen before a job started, for people."""
    return f"behind {some(behind)}" if behind else _NEXT.get(next_, next_)


def _unix(moment: str) -> int:
    return int(datetime.fromisoformat(moment).timestamp())


def _lines(alike: Sequence[Span]) -> Iterable[tuple[str, str]]:
    """Lines for intervals of the same kind and time, each with what is below."""
    runs = [span for span in alike if isinstance(span, JobRun)]
    if len(runs) > 1:
        nodes = list(dict.fromkeys(run.node for run in runs))
        chips = sum(len(run.chips) for run in runs)
        yield f"ran: {count(len(runs), 'pod')} with {count(chips, 'chip')} on {some(nodes)}", ""
        return
    for span in alike:
        match span:
            case JobWait():
                yield f"waited, {span.requests}: {follows(span.next, span.behind)}", span.message
            case JobRun():
                yield f"ran: {span.pod} on {span.node}, chips {', '.join(map(str, span.chips))}", ""
            case JobFault():
                yield f"chip {span.chip} of {span.node}: {span.fault}", ""
            case Unknown():
                yield span.why, ""
