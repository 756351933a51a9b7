"""Carries out ``npuctl plan`` and lays out its answer."""

from msgspec import structs
from rich.console import Group as Stack
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ascend.daemon.run import EXIT_USAGE
from ascend.grammar import count
from npuctl.output import EXIT_NO_PLACE, FittingTable, Output, group, numbers, show, some, warn
from npuctl.plan.placement import PendingPod, PlacementPlan, plan_pods
from npuctl.plan.workloads import expand
from npuctl.reading.source import Source


def run_plan(source: Source, *, candidates: bool, output: Output) -> int:
    """Plan and print the answer; ``candidates`` also lists every node that each pod fits on.

    Returns:
        The exit status: 0; 2 if something given that requests chips was not planned; 3 if a pod has no place.

    Raises:
        InvalidValue: the input is invalid.
    """
    reading = source.read_files()
    expansion = expand(reading.unsubmitted, reading.objects)
    plan = plan_pods(expansion.objects, source.settings, source.now_ns, candidates=candidates)
    plan = structs.replace(plan, unplanned=expansion.unplanned + plan.unplanned)
    if skipped := reading.ignored - expansion.kinds:
        warn(f"skipped: {', '.join(f'{number} {kind}' for kind, number in sorted(skipped.items()))}")
    if expansion.without_chips:
        warn(f"the pods of {some(expansion.without_chips)} request no chips")
    show(plan, output, lambda: _render(plan))
    if plan.unplanned:
        return EXIT_USAGE
    return EXIT_NO_PLACE if plan.pending else 0


def _render(plan: PlacementPlan) -> RenderableType:
    parts: list[RenderableType] = []
    if not plan.pods and not plan.pending and not plan.unplanned:
        parts.append(Text("no pod waits for chips"))
    if plan.pods:
        table = FittingTable(("POD", "JOB", "NODE", "CHIPS"), drop=("JOB",))
        for pod in plan.pods:
            table.add_row(f"{pod.namespace}/{pod.name}", pod.job, pod.node, numbers(pod.chips))
            for each in pod.candidates or ():
                chips = f"{numbers(each.chips)} (score {each.score})"
                table.add_row("", "", f"{each.rank}. {each.node}", chips, style="dim")
        parts.append(table)
    parts += [_pending(pod) for pod in plan.pending]
    parts += [
        Text(f"{each.kind} {each.namespace}/{each.name} requests chips, but was not planned: {each.message}", "yellow")
        for each in plan.unplanned
    ]
    parts += [
        Text(f"job {each.job}, without effect here: {each.message} (pod {each.namespace}/{each.name})", "dim")
        for each in plan.without_effect
    ]
    return Stack(*parts)


def _pending(pod: PendingPod) -> RenderableType:
    head = Text.assemble(
        (f"{pod.namespace}/{pod.name}", "bold"), " waits: ", (pod.reason, "yellow"), f": {pod.message}"
    )
    lines = Table.grid(padding=(0, 1))
    for each in group(pod.nodes):
        lines.add_row(f"  {count(len(each.nodes), 'node')}", Text(f"{each} ({each.names()})"))
    return Stack(head, lines)
