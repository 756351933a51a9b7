"""Carries out ``npuctl queue`` and lays out its answer."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.console import Group as Stack
from rich.padding import Padding
from rich.text import Text

from ascend.grammar import count, some
from npuctl.evaluation import Evaluation
from npuctl.output import FittingTable, Output, breaks_lines, show
from npuctl.queue.entries import Next, Queue, QueueEntry
from npuctl.reading.source import Source, rfc3339

NEXT: Final = {
    Next.STARTS: "starts now",
    Next.CHIPS: "when pods end",
    Next.NODES: "needs nodes",
    Next.PODS: "needs its other pods",
    Next.SCHEDULER: "needs its scheduler",
    Next.NEVER: "never",
}
"""What happens before a job starts, in words, where no other jobs are named."""

_STARTING: Final = {Next.STARTS, Next.PREEMPTS}
_STYLES: Final = {Next.STARTS: "green", Next.PREEMPTS: "green", Next.NEVER: "red"}
_MOST_BEHIND: Final = 2

_AGES: Final = ((86_400, "d", 2), (3_600, "h", 3), (60, "m", 2))
"""Seconds of a unit, its letter, and from how many units on it is used."""


class QueueAnswer(msgspec.Struct, frozen=True, tag_field="schema", tag="npuctl/queue/v1"):
    """The answer at a time (RFC 3339).

    Attributes:
        time: the time of the objects.
        entries: what waits, in the order in which it is decided on.
        gated: the pods (``namespace/name``) that are in no entry, because scheduling gates keep schedulers from them.
    """

    time: str
    entries: tuple[QueueEntry, ...]
    gated: tuple[str, ...]


async def run_queue(source: Source, namespace: str | None, output: Output) -> int:
    """Print the queue of all namespaces or of a given namespace; positions count all namespaces.

    Raises:
        InvalidValue: the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    objects = await source.read()
    entries = await Queue(Evaluation(objects, source.settings, source.now_ns)).read()
    gated = (pod for pod in objects.pods if pod.is_gated and pod.is_live and pod.requests_chips)
    answer = QueueAnswer(
        rfc3339(source.now_ns),
        tuple(entry for entry in entries if namespace in {None, entry.namespace}),
        tuple(pod.key for pod in gated if namespace in {None, pod.metadata.namespace}),
    )
    show(answer, output, lambda: _render(answer, source.now_ns))
    return 0


def _render(answer: QueueAnswer, now_ns: int) -> RenderableType:
    parts: list[RenderableType] = []
    if answer.entries:
        parts += [_Entries(answer.entries, now_ns), Text(_summary(answer.entries), style="bold")]
    else:
        parts.append(Text("no pod waits for chips"))
    if answer.gated:
        gates = f"{count(len(answer.gated), 'pod')} with scheduling gates: {some(answer.gated)}"
        parts.append(Text(f"not in the queue: {gates}", style="dim"))
    return Stack(*parts)


class _Entries:
    """A line for each entry; the reason is on a line below, or in the last column if the output is a pipe."""

    def __init__(self, entries: Sequence[QueueEntry], now_ns: int) -> None:
        self._entries = entries
        self._now_ns = now_ns

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        in_column = not breaks_lines(console)
        titles = ("#", "JOB", "PRIORITY", "REQUESTS", "CHIPS", "AGE", "NEXT", *(("WHY",) if in_column else ()))
        table = FittingTable(titles, numeric=("#", "PRIORITY", "CHIPS", "AGE"), drop=("CHIPS", "PRIORITY", "REQUESTS"))
        for entry in self._entries:
            reason = why(entry)
            below = Padding(Text(reason, style="dim"), (0, 0, 0, 5)) if reason and not in_column else None
            table.add_row(
                str(entry.position),
                entry.job,
                str(entry.priority),
                requests(entry),
                str(entry.chips),
                age(entry.since, self._now_ns),
                Text(next_of(entry), style=_STYLES.get(entry.next, "yellow" if entry.starting else "")),
                *((reason,) if in_column else ()),
                below=below,
            )
        yield table


def why(entry: QueueEntry) -> str:
    """The reason to wait, without the name of the pod; empty if the job starts."""
    if not entry.reason:
        return ""
    first = next(pod for pod in entry.pods if pod.state == "waits")
    return f"{entry.reason}: {entry.message.removeprefix(f'pod {entry.namespace}/{first.name}: ')}"


def requests(entry: QueueEntry) -> str:
    """What its pods request, as in ``4 x 8 chips``."""
    alike = [what if number == 1 else f"{number} x {what}" for what, number in entry.requests.items()]
    return alike[0] if len(alike) == 1 else f"{count(len(entry.pods), 'pod')}: {', '.join(alike)}"


def next_of(entry: QueueEntry) -> str:
    """What happens before it starts, for people."""
    match entry.next:
        case Next.PREEMPTS:
            victims = [key for pod in entry.pods for key in pod.preempts]
            follows = f"preempts {some(victims, _MOST_BEHIND)}"
        case Next.BEHIND:
            follows = f"behind {some(entry.behind, _MOST_BEHIND)}"
        case _:
            follows = NEXT[entry.next]
    if not entry.starting or entry.next in _STARTING:
        return follows
    return (
        f"{entry.starting} of {len(entry.pods)} {'starts' if entry.starting == 1 else 'start'} now, the rest {follows}"
    )


def _summary(entries: Sequence[QueueEntry]) -> str:
    pods, starting = sum(len(entry.pods) for entry in entries), sum(entry.starting for entry in entries)
    jobs, chips = len({entry.job for entry in entries}), sum(entry.chips for entry in entries)
    start = f"{starting} of them {'starts' if starting == 1 else 'start'} now"
    wait = f"{count(pods, 'pod')} of {count(jobs, 'job')}, {count(chips, 'chip')}: {start}"
    reasons = Counter(pod.reason for entry in entries for pod in entry.pods if pod.reason)
    counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
    left = pods - starting
    return f"{wait}, {left} {'waits' if left == 1 else 'wait'}: {counts}" if counts else wait


def age(since: str, now_ns: int) -> str:
    """How long something waits, as in ``45s``, ``12m``, ``5h`` or ``3d``; ``-`` if unknown."""
    if not since:
        return "-"
    return in_short(int(now_ns // 10**9 - msgspec.convert(since, datetime).timestamp()))


def in_short(seconds: int) -> str:
    """A time as in ``45s``, ``12m``, ``5h`` or ``3d``."""
    seconds = max(seconds, 0)
    for unit, letter, least in _AGES:
        if seconds >= least * unit:
            return f"{seconds // unit}{letter}"
    return f"{seconds}s"
