"""Carries out ``npuctl plan`` and lays out its answer."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import structs
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from allocator.state.kinds import KINDS
from ascend.annotations import BLOCK, BLOCK_SUPER_POD
from ascend.daemon.run import EXIT_USAGE
from ascend.errors import InvalidValue
from ascend.grammar import count, some
from npuctl.output import EXIT_NO_PLACE, FittingTable, Output, group, numbers, show, warn
from npuctl.plan.placement import PendingPod, Placement, PlacementPlan, PlannedJob, Planning, Rescheduled
from npuctl.plan.rescheduling import reschedule
from npuctl.plan.workloads import expand
from npuctl.reading.manifests import Manifest, Reading
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import DEFAULT_NAMESPACE, Source


async def run_plan(source: Source, *, cluster: bool, candidates: bool, output: Output) -> int:
    """Plan and print the answer.

    Args:
        source: the files, and the cluster.
        cluster: plan the objects of the files into the cluster.
        candidates: also list every node that each pod fits on.
        output: the format.

    Returns:
        The exit status: 0; 2 if something given that requests chips was not planned; 3 if a pod has no place. With a
        cluster and files only the pods of the files count.

    Raises:
        InvalidValue: the input is invalid.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    if not cluster and not source.files:
        raise InvalidValue("give the objects to plan with -f, or plan the waiting pods of a cluster with --cluster")
    reading = source.read_files() if source.files else Reading()
    live = await source.read_cluster() if cluster else ClusterObjects()
    there = {pod.key for pod in live.pods}
    new, known = _sort_out(reading.unsubmitted, live)
    if known := [*known, *(f"Pod {pod.key}" for pod in reading.objects.pods if pod.key in there)]:
        warn(f"in the cluster already, so not planned again: {some(known)}")
    expansion = expand(new, live.with_new(reading.objects) if cluster else reading.objects)
    # What was not submitted yet is planned as if it was admitted.
    objects = expansion.objects.without_gates(lambda pod: pod.uid == pod.key)
    if gated := [pod.key for pod in objects.pods if pod.requests_chips and pod.is_gated]:
        warn(f"not planned, because of scheduling gates: {some(gated)}")
    planning = Planning(objects, source.settings, source.now_ns, candidates=candidates)
    rescheduled = await reschedule(planning, source.settings, held=warn) if source.settings.reschedules else ()
    plan = structs.replace(await planning.rest(), rescheduled=rescheduled)
    of_cluster = there if source.files else set()
    unplanned = [each for each in plan.unplanned if f"{each.namespace}/{each.name}" not in of_cluster]
    plan = structs.replace(plan, unplanned=(*expansion.unplanned, *unplanned))
    if skipped := reading.ignored - expansion.kinds:
        warn(f"skipped: {', '.join(f'{number} {kind}' for kind, number in sorted(skipped.items()))}")
    for sentence in expansion.misplaced:
        warn(sentence)
    if expansion.existing:
        warn(f"the pods of {some(expansion.existing)} exist already, so no others are planned")
    if expansion.without_chips:
        warn(f"the pods of {some(expansion.without_chips)} request no chips")
    show(plan, output, lambda: _render(plan))
    if plan.unplanned:
        return EXIT_USAGE
    waits = any(f"{each.namespace}/{each.name}" not in of_cluster for each in plan.pending)
    return EXIT_NO_PLACE if waits else 0


def _sort_out(given: Iterable[Manifest], live: ClusterObjects) -> tuple[list[Manifest], list[str]]:
    """The workloads that are not in the cluster, and the names of those that are."""
    there = {(kind.resource.kind, each.key) for kind in KINDS for each in live.by_kind.get(kind.name, ())}
    new, known = [], []
    for each in given:
        key = each.origin.key if "/" in each.origin.key else f"{DEFAULT_NAMESPACE}/{each.origin.key}"
        if (each.origin.kind, key) in there:
            known.append(f"{each.origin.kind} {key}")
        else:
            new.append(each)
    return new, known


def _render(plan: PlacementPlan) -> RenderableType:
    parts: list[RenderableType] = [Text(each) for job in plan.rescheduled for each in _rescheduled(job)]
    if not plan.pods and not plan.pending and not plan.unplanned:
        parts.append(Text("no pod waits for chips"))
    if plan.pods:
        parts.append(_placements(plan.pods))
    alike: dict[object, list[PendingPod]] = {}
    for waiting in plan.pending:
        nodes = tuple((each.reason, each.nodes) for each in group(waiting.nodes))
        alike.setdefault((waiting.job, waiting.reason, waiting.message, nodes), []).append(waiting)
    parts += [
        Text(f"{each.namespace}/{each.name} preempts {some(each.preempts)} on node {each.node}", "yellow")
        for each in plan.pods
        if each.preempts
    ]
    parts += map(_pending, alike.values())
    parts += [Text(f"job {each.job}: {_start(each)}") for each in plan.jobs]
    parts += [Text(f"job {each.job}: {sentence}") for each in plan.jobs for sentence in each.blocks + each.switches]
    parts += [
        Text(f"{each.kind} {each.namespace}/{each.name} requests chips, but was not planned: {each.message}", "yellow")
        for each in plan.unplanned
    ]
    parts += [
        Text(f"job {each.job}, without effect here: {each.message} (pod {each.namespace}/{each.name})", "dim")
        for each in plan.without_effect
    ]
    parts += [
        Text(f"job {each.job}, pod {each.namespace}/{each.name}: {each.message}", "yellow")
        for each in plan.warnings or ()
    ]
    return Stack(*parts)


def _placements(pods: Iterable[Placement]) -> RenderableType:
    blocks = ("BLOCK",) if any(BLOCK in pod.annotations for pod in pods) else ()
    table = FittingTable(("POD", "JOB", "NODE", *blocks, "CHIPS"), drop=("JOB",))
    for pod in pods:
        own = (_block(pod.annotations),) if blocks else ()
        table.add_row(f"{pod.namespace}/{pod.name}", pod.job, pod.node, *own, numbers((*pod.chips, *pod.vnpus)))
        for each in pod.candidates or ():
            chips = f"{numbers((*each.chips, *each.vnpus))} (score {each.score})"
            table.add_row("", "", f"{each.rank}. {each.node}", *("" for _ in blocks), chips, style="dim")
    return table


def _rescheduled(job: Rescheduled) -> Iterator[str]:
    yield f"job {job.job} is rescheduled: {job.why}; {count(len(job.delete), 'pod')} deleted: {some(job.delete)}"
    for number, block in job.blocks.items():
        yield f"job {job.job}: block {number} is {block.verdict}: {', '.join(block.nodes)}"


def _block(annotations: Mapping[str, str]) -> str:
    """The block of a pod, and its SuperPod."""
    return f"{annotations[BLOCK]}, SuperPod {annotations.get(BLOCK_SUPER_POD, '?')}" if BLOCK in annotations else ""


def _pending(pods: Sequence[PendingPod]) -> RenderableType:
    """Pods of a job that are refused with the same sentence."""
    first = pods[0]
    names = Text(some([f"{pod.namespace}/{pod.name}" for pod in pods]), "bold")
    wait = " waits: " if len(pods) == 1 else " wait: "
    head = Text.assemble(names, wait, (first.reason, "yellow"), f": {first.message}")
    groups = [each for each in group(first.nodes) if each.message != first.message]
    if not groups:
        return head
    lines = Table.grid(padding=(0, 1))
    for each in groups:
        lines.add_row(f"  {count(len(each.nodes), 'node')}", Text(f"{each} ({each.names()})"))
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
