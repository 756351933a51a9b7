"""Carries out ``npuctl explain`` and lays out its answer."""

from collections import Counter
from collections.abc import Iterable, Iterator
from http import HTTPStatus
from typing import Final

import msgspec
from msgspec.structs import replace
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.annotations import PLACEMENT_GATE
from ascend.errors import ApiError, InvalidValue
from ascend.grammar import count, some
from ascend.printable import printable
from npuctl.chips import numbers
from npuctl.explain.answer import Explanation
from npuctl.explain.explanation import explain
from npuctl.explain.target import ExplainTarget, find_target, is_known, require_name
from npuctl.output import EXIT_NO_PLACE, Output, show, warn
from npuctl.plan.placement import Candidate
from npuctl.plan.workloads import expand
from npuctl.reading.manifests import read_manifests
from npuctl.reading.source import Source

_NOTHING_TO_DO: Final = {
    "none": "requests no chips and no vNPU: the allocator does not handle it",
    "terminating": "is being deleted: no scheduler binds it any more",
}
_OTHER_DEVICES: Final = "requests no chips that the allocator handles"
_STATES: Final = {
    "none": "without chips",
    "waits": "waiting",
    "fits": "not bound yet",
    "preempts": "not bound yet, preempts others",
}
_TRIED: Final = "the end of up to three pods, the recovery of chips, a node that is Ready, uncordoned and has a report"
_MOST_REMEDIES: Final = 5
_MOST_CANDIDATES: Final = 3
_MOST_HOLDUPS: Final = 3
_MOST_AHEAD: Final = 5


class JobExplanation(msgspec.Struct, tag_field="schema", tag="npuctl/explain-job/v1"):
    """The explanations of the pods of a job, ``namespace/name``."""

    job: str
    pods: tuple[Explanation, ...]


async def run_explain(argument: str, namespace: str | None, source: Source, output: Output) -> int:
    """Explain a pod or the pods of a job, and print the answer; the argument is one for ``find_target``.

    Without the rights to list the cluster's objects those of the namespace count, and what the allocator says.

    Returns:
        The exit status: 0, or 3 if a pod waits and fits on no node.

    Raises:
        InvalidValue: there is no such pod, or the input is invalid.
    """
    require_name(argument)
    try:
        objects = await source.read()
    except ApiError as error:
        if error.status != HTTPStatus.FORBIDDEN:
            raise
        return await _run_within(argument, namespace, source, output, error)
    try:
        target = find_target(argument, namespace, objects.pods, source.namespace)
    except InvalidValue:
        if not source.files:
            raise
        # It may be a workload that was not submitted yet.
        reading = read_manifests(source.files, strict=False)
        objects = expand(reading.unsubmitted, objects).objects
        target = find_target(argument, namespace, objects.pods, source.namespace)
    return _show(target, await explain(target.pods, objects, source.settings, source.now_ns), output)


async def _run_within(argument: str, namespace: str | None, source: Source, output: Output, denied: ApiError) -> int:
    """Explain pods by the objects of their namespace alone."""
    from npuctl.explain.own_namespace import explain_own
    from npuctl.reading.listing import list_within

    left, slash, _ = argument.partition("/")
    where = namespace or (left if slash and not is_known(left) else source.namespace())
    warn(f"{denied.message}: so only the namespace {where} is looked at")
    async with await source.connect() as client:
        objects = await list_within(client, where, skipped=warn)
        target = find_target(argument, namespace, objects.pods, source.namespace)
        answers = await explain_own(target.pods, objects, client, source.settings, source.now_ns)
    return _show(target, answers, output)


def _show(target: ExplainTarget, answers: tuple[Explanation, ...], output: Output) -> int:
    if target.job is None:
        (answer,) = answers
        show(answer, output, lambda: render(answer))
    else:
        job = JobExplanation(target.job, answers)
        show(job, output, lambda: _render_job(job))
    return EXIT_NO_PLACE if any(answer.state == "waits" for answer in answers) else 0


def _render_job(job: JobExplanation) -> RenderableType:
    """Lay out the pods of a job; those with the same explanation once."""
    states = Counter(answer.state for answer in job.pods)
    summary = ", ".join(f"{number} {_STATES.get(state, state)}" for state, number in states.items())
    parts: list[RenderableType] = [Text(f"job {job.job}, {count(len(job.pods), 'pod')}: {summary}", style="bold")]
    alike: dict[object, list[Explanation]] = {}
    blocks = {answer.blocks for answer in job.pods if answer.blocks}
    if len(blocks) == 1:
        parts += _blocks("\nblocks:", *blocks)
    for answer in job.pods:
        # The pods of a gang that fits are placed on different nodes.
        groups = tuple((group.reason, group.nodes) for group in answer.groups) if answer.state == "waits" else ()
        nodes = tuple(candidate.node for candidate in answer.candidates) if answer.block is not None else ()
        key = (
            answer.state,
            answer.reason,
            answer.requests,
            answer.gates,
            answer.node,
            answer.chips,
            answer.vnpus,
            answer.preempts,
            answer.broken,
            groups,
            nodes,
        )
        alike.setdefault(key, []).append(replace(answer, blocks=()) if len(blocks) == 1 else answer)
    for first, *others in alike.values():
        parts += [Text(""), render(first)]
        if others:
            names = some([f"{other.namespace}/{other.name}" for other in others])
            parts.append(Text(f"\nthe same for {count(len(others), 'other pod')}: {names}"))
    return Stack(*parts)


def render(answer: Explanation) -> RenderableType:
    """Lay out an explanation."""
    head = Text(f"pod {answer.namespace}/{answer.name} ", style="bold").append_text(_verdict(answer))
    parts: list[RenderableType] = [head]
    if answer.blocks:
        own = f" (its own is block {answer.block})" if answer.block is not None else ""
        parts += _blocks(f"\nblocks of job {answer.job}{own}:", answer.blocks)
    if answer.switches:
        parts += _blocks(f"\nswitches of job {answer.job}:", answer.switches)
    if answer.state == "waits":
        parts += _obstacles(answer)
        parts += [Text("\nwhat would help:", style="bold"), _remedies(answer)]
        if answer.gang and answer.remedies:
            parts.append(Text(f"  job {answer.job} is placed as a whole: each of these makes room for one of its pods"))
    if answer.state == "fits":
        parts += _candidates(answer)
        if not answer.gates:
            says = f"its scheduler says: {answer.scheduler}"
            look = "if it stays unbound, look at its scheduler: kubectl describe pod shows its events"
            parts.append(Text(f"\n{says if answer.scheduler else look}"))
    if answer.broken:
        parts.append(Text("\nbroken:", style="bold red"))
        parts += [Text(f"  {chip.chip}: {chip.what}\n    → {chip.advice}", style="red") for chip in answer.broken]
    parts += [*_queue(answer), *_holdups(answer), *_gates(answer)]
    if answer.without_effect:
        parts.append(Text("\nwithout effect here:", style="bold"))
        parts += [Text(f"  {sentence}") for sentence in answer.without_effect]
    parts += [Text(f"\n{sentence}", style="yellow") for sentence in answer.warnings]
    return Stack(*parts)


def _blocks(title: str, sentences: Iterable[str]) -> Iterator[Text]:
    yield Text(title, style="bold")
    yield from (Text(f"  {sentence}") for sentence in sentences)


def _queue(answer: Explanation) -> Iterator[Text]:
    """The jobs before the pod in the queue that get devices."""
    if answer.told is not None and (ahead := answer.told.ahead).pods:
        chips = f", for {count(ahead.chips, 'chip')}" if ahead.chips else ""
        yield Text(f"\nbefore it in the queue: {count(ahead.pods, 'pod')} of other jobs{chips}")
    getting = [job for job in answer.ahead if job.placed]
    if not getting:
        return
    yield Text("\nbefore it in the queue:", style="bold")
    for job in getting[:_MOST_AHEAD]:
        what = f"{count(job.chips, 'chip')} for " if job.chips else ""
        more = f", and {job.pods - job.placed} that wait" if job.pods > job.placed else ""
        priority = f", priority {job.priority}" if job.priority else ""
        yield Text(f"  job {job.job}: {what}{count(job.placed, 'pod')}{more}{priority}")
    if (others := len(getting) - _MOST_AHEAD) > 0:
        yield Text(f"  and {count(others, 'other job')} (-o json has all)", style="dim")
    if answer.fits_alone:
        yield Text(f"  without these it would fit on {count(answer.fits_alone, 'node')}; behind them it does not")


def _holdups(answer: Explanation) -> Iterator[Text]:
    if not answer.holdups:
        return
    yield Text("\nwhat keeps its gang from starting:", style="bold")
    yield from (Text(f"  {sentence}") for sentence in answer.holdups[:_MOST_HOLDUPS])
    more = len(answer.holdups) - _MOST_HOLDUPS
    if more > 0:
        yield Text(f"  and {count(more, 'more pod')} (-o json has all)", style="dim")


def _gates(answer: Explanation) -> Iterator[Text]:
    if answer.gates == (PLACEMENT_GATE,):
        yield Text(f"\nthe allocator removes its scheduling gate {PLACEMENT_GATE} once its chips are reserved")
    elif answer.gates:
        gates = f"its scheduling {'gate' if len(answer.gates) == 1 else 'gates'}: {printable(', '.join(answer.gates))}"
        yield Text(f"\nit is gated: no scheduler looks at it before somebody removes {gates}", style="yellow")


def _verdict(answer: Explanation) -> Text:
    requests = f"requests {answer.requests}"
    match answer.state:
        case "none" | "terminating":
            other = answer.state == "none" and answer.without_effect
            return Text(_OTHER_DEVICES if other else _NOTHING_TO_DO[answer.state])
        case "finished":
            return Text(f"has finished: {answer.reason or 'done'}: {answer.message}")
        case "placed":
            return _place(answer)
        case "fits":
            gang = ", and so do the other pods of its gang" if answer.gang else ""
            nodes = count(len(answer.candidates) if answer.told is None else answer.told.fitting, "node")
            where = " of the SuperPod of its block" if answer.block is not None else ""
            return Text(f"{requests} and fits on {nodes}{where} now{gang}; it is not bound yet")
        case "preempts":
            end = "end" if len(answer.preempts) > 1 else "ends"
            on = f"it gets {_devices(answer)} of node {answer.node}"
            victims = f"{some(answer.preempts)} {end}, of lower priority"
            return Text(f"{requests} and preempts: {on} once {victims}")
    waits = f"{requests} and waits: " if answer.request or answer.vnpu or answer.cores else "waits: "
    return Text.assemble(waits, (answer.reason, "yellow"), f": {answer.message}")


def _place(answer: Explanation) -> Text:
    if answer.reason:
        return Text.assemble(f"is on node {answer.node}: ", (answer.reason, "red"), f": {answer.message}")
    return Text(f"is on node {answer.node} with {_devices(answer)}")


def _devices(answer: Explanation | Candidate) -> str:
    """The chips or the vNPU of a pod."""
    return f"vNPU {numbers(answer.vnpus)}" if answer.vnpus else f"chips {numbers(answer.chips)}"


def _obstacles(answer: Explanation) -> Iterator[RenderableType]:
    told = answer.told.obstacles if answer.told is not None else ()
    rows = [(obstacle.nodes, obstacle.reason, printable(obstacle.message), "") for obstacle in told]
    rows += [(len(group.nodes), group.reason, group.message, group.names()) for group in answer.groups]
    if all(message == answer.message for _, _, message, _ in rows):
        return
    yield Text("\nwhy not:", style="bold")
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right")
    for nodes, reason, message, names in rows:
        number, noun = count(nodes, "node").split()
        table.add_row(f"  {number}", noun, Text.assemble((reason, "yellow"), f": {message}"))
        if names:
            table.add_row("", "", Text(names, style="dim"))
    yield table


def _remedies(answer: Explanation) -> RenderableType:
    if not answer.remedies:
        return Stack(*(Text(f"  {sentence}") for sentence in _without_remedy(answer)))
    lines = [
        Text(f"  on node {remedy.node}, once {remedy}", style="green") for remedy in answer.remedies[:_MOST_REMEDIES]
    ]
    more = len(answer.remedies) - _MOST_REMEDIES
    if more > 0:
        lines.append(Text(f"  and {count(more, 'other way')} (-o json has all)", style="dim"))
    lines += [Text(f"  {sentence}") for sentence in answer.advice]
    return Stack(*lines)


def _without_remedy(answer: Explanation) -> Iterator[str]:
    if answer.examined:
        yield f"nothing that was tried on {count(answer.examined, 'node')}: {_TRIED}"
    yield from answer.advice
    if not answer.examined and not answer.advice:
        yield "nothing on any node; change the pod's request, or add nodes with NPUs"


def _candidates(answer: Explanation) -> Iterator[RenderableType]:
    if not answer.candidates:
        return
    yield Text("\nbest nodes:", style="bold")
    table = Table.grid(padding=(0, 2))
    for candidate in answer.candidates[:_MOST_CANDIDATES]:
        table.add_row(f"  {candidate.rank}.", candidate.node, _devices(candidate))
    yield table
