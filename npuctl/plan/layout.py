"""Lays out a plan: the shares placed, the pods with their nodes, and the waiting pods with the reasons."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.annotations import BLOCK, BLOCK_SUPER_POD
from ascend.grammar import count, some
from ascend.reasons import Category
from npuctl.chips import numbers
from npuctl.output import FittingTable
from npuctl.plan.placement import PendingPod, Placement, PlacementPlan, PlannedJob, Rescheduled
from npuctl.refusals import Group, NodeRefusal, group_alike

_MOST_PODS: Final = 40
"""More pods that get a place than these have a line for each job."""


def render(plan: PlacementPlan, *, every_pod: bool) -> RenderableType:
    """Lay out a plan.

    Args:
        plan: the plan.
        every_pod: have a line for each pod that gets a place, however many there are.
    """
    parts: list[RenderableType] = [Text(line) for job in plan.rescheduled for line in _rescheduled(job)]
    if not plan.pods and not plan.pending and not plan.unplanned:
        parts.append(Text("no pod waits for chips"))
    if len(plan.pods) + len(plan.pending) > 1:
        parts.append(_summary(plan))
    if plan.pods:
        some_have_candidates = any(pod.candidates for pod in plan.pods)
        single = every_pod or some_have_candidates or len(plan.pods) <= _MOST_PODS
        parts.append(_placements(plan.pods) if single else _placed_jobs(plan.pods))
    parts += [
        Text(f"{pod.namespace}/{pod.name} preempts {some(pod.preempts)} on node {pod.node}", "yellow")
        for pod in plan.pods
        if pod.preempts
    ]
    parts += _waiting(plan)
    several = [job for job in plan.jobs if every_pod or len(plan.jobs) <= _MOST_PODS]
    parts += [Text(f"job {job.job}: {_start(job)}") for job in several]
    parts += [Text(f"job {job.job}: {sentence}") for job in plan.jobs for sentence in job.blocks + job.switches]
    parts += [
        Text(f"{told.kind} {told.namespace}/{told.name} requests chips, but was not planned: {told.message}", "yellow")
        for told in plan.unplanned
    ]
    parts += [
        Text(f"job {told.job}, without effect here: {told.message} (pod {told.namespace}/{told.name})", "dim")
        for told in plan.without_effect
    ]
    parts += [
        Text(f"job {told.job}, pod {told.namespace}/{told.name}: {told.message}", "yellow")
        for told in plan.warnings or ()
    ]
    return Stack(*parts)


def _summary(plan: PlacementPlan) -> Text:
    """How many pods get a place, and how many wait for which reasons."""
    text = Text(f"{len(plan.pods)} of {count(len(plan.pods) + len(plan.pending), 'pod')} placed", "bold")
    reasons = Counter(pod.reason for pod in plan.pending)
    if reasons:
        counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        only = next(iter(reasons)) if len(reasons) == 1 else counts
        text.append(f", {len(plan.pending)} {'waits' if len(plan.pending) == 1 else 'wait'}: {only}")
    return text


def _placed_jobs(pods: Iterable[Placement]) -> RenderableType:
    by_job: dict[str, list[Placement]] = {}
    for pod in pods:
        by_job.setdefault(pod.job, []).append(pod)
    numeric = ("PODS", "CHIPS", "NODES")
    table = FittingTable(("JOB", *numeric, "NODE"), numeric=numeric)
    for job, members in by_job.items():
        nodes = list(dict.fromkeys(pod.node for pod in members))
        chips = sum(len(pod.chips) for pod in members)
        table.add_row(job, str(len(members)), str(chips), str(len(nodes)), some(nodes))
    return Stack(table, Text("--pods has a line for each pod", "dim"))


def _waiting(plan: PlacementPlan) -> Iterator[RenderableType]:
    """Pods grouped by sentence; the sentences of nodes that refuse all of them follow once."""
    alike: dict[object, list[PendingPod]] = {}
    for pod in plan.pending:
        alike.setdefault((pod.reason, _without_name(pod), pod.verdict), []).append(pod)
    grouped = [None if pod.verdict is None else _groups(plan, pod.verdict) for (pod, *_) in alike.values()]
    shared = _shared([groups for groups in grouped if groups is not None])
    for members, groups in zip(alike.values(), grouped, strict=True):
        yield _pending(members, [group for group in groups or () if group not in shared])
    if shared:
        yield _lines(Text("and for all of them", "bold"), shared)


def _shared(grouped: Sequence[Sequence[Group]]) -> list[Group]:
    """The nodes that refuse all of several pods for a reason of their own."""
    if len(grouped) < 2:  # noqa: PLR2004 - those of one are beside it
        return []
    first, *others = grouped
    return [
        group
        for group in first
        if group.reason.category in {Category.NODE, Category.NOT_NPU} and all(group in groups for groups in others)
    ]


def _groups(plan: PlacementPlan, verdict: int) -> Sequence[Group]:
    said = [plan.refusals[number] for number in plan.verdicts[verdict]]
    return group_alike((NodeRefusal(entry.reason, entry.message), plan.node_sets[entry.nodes]) for entry in said)


def _without_name(pod: PendingPod) -> str:
    """The sentence on a pod, without its name at the beginning."""
    return pod.message.removeprefix(f"pod {pod.namespace}/{pod.name}: ")


def _placements(pods: Iterable[Placement]) -> RenderableType:
    blocks = ("BLOCK",) if any(BLOCK in pod.annotations for pod in pods) else ()
    table = FittingTable(("POD", "JOB", "NODE", *blocks, "CHIPS"), drop=("JOB",))
    for pod in pods:
        own = (_block(pod.annotations),) if blocks else ()
        table.add_row(f"{pod.namespace}/{pod.name}", pod.job, pod.node, *own, numbers((*pod.chips, *pod.vnpus)))
        for candidate in pod.candidates or ():
            chips = f"{numbers((*candidate.chips, *candidate.vnpus))} (score {candidate.score})"
            table.add_row("", "", f"{candidate.rank}. {candidate.node}", *("" for _ in blocks), chips, style="dim")
    return table


def _rescheduled(job: Rescheduled) -> Iterator[str]:
    yield f"job {job.job} is rescheduled: {job.why}; {count(len(job.delete), 'pod')} deleted: {some(job.delete)}"
    for number, block in job.blocks.items():
        yield f"job {job.job}: block {number} is {block.verdict}: {', '.join(block.nodes)}"


def _block(annotations: Mapping[str, str]) -> str:
    """The block of a pod, and its SuperPod."""
    return f"{annotations[BLOCK]}, SuperPod {annotations.get(BLOCK_SUPER_POD, '?')}" if BLOCK in annotations else ""


def _pending(pods: Sequence[PendingPod], groups: Sequence[Group]) -> RenderableType:
    """Pods refused with the same sentence, and the nodes grouped by their sentences."""
    first = pods[0]
    names = Text(some([f"{pod.namespace}/{pod.name}" for pod in pods]), "bold")
    wait = " waits: " if len(pods) == 1 else " wait: "
    message = first.message if len(pods) == 1 else _without_name(first)
    head = Text.assemble(names, wait, (first.reason, "yellow"), f": {message}")
    return _lines(head, [group for group in groups if group.message != first.message])


def _lines(head: Text, groups: Sequence[Group]) -> RenderableType:
    if not groups:
        return head
    lines = Table.grid(padding=(0, 1))
    for group in groups:
        lines.add_row(f"  {count(len(group.nodes), 'node')}", Text(f"{group} ({group.names()})"))
    return Stack(head, lines)


def _start(job: PlannedJob) -> str:
    pods = count(job.pods, "pod")
    if job.together == 1:
        return f"{pods}; each starts when there is room for it"
    if job.together == job.pods:
        return f"{pods} start together or not at all"
    if job.together < job.pods:
        return f"{pods}; at least {job.together} of them start together or not at all"
    return f"{pods} of at least {job.together} that start together"
