"""Carries out ``npuctl plan``."""

from collections.abc import Callable, Iterable

from msgspec import structs

from allocator.state.kinds import all_kinds
from ascend.daemon.exits import EXIT_USAGE
from ascend.errors import InvalidValue
from ascend.grammar import some
from npuctl.output import EXIT_NO_PLACE, Output, show, warn
from npuctl.plan.layout import render
from npuctl.plan.placement import PlacementPlan, Planning
from npuctl.plan.rescheduling import reschedule
from npuctl.plan.workloads import expand
from npuctl.reading.manifest import Manifest
from npuctl.reading.manifests import ManifestReading
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import DEFAULT_NAMESPACE, Source


async def run_plan(source: Source, *, cluster: bool, candidates: bool, pods: bool, output: Output) -> int:
    """Plan and print the answer.

    Args:
        source: the files, and the cluster.
        cluster: plan the objects of the files into the cluster.
        candidates: also list every node that each pod fits on.
        pods: have a line for each pod in a table, however many there are.
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
    reading = source.read_files() if source.files else ManifestReading()
    live = await source.read_cluster() if cluster else ClusterObjects()
    there = {pod.key for pod in live.pods}
    plan = await plan_into(live, reading, source, merge=cluster, candidates=candidates, say=warn)
    show(plan, output, lambda: render(plan, every_pod=pods))
    if plan.unplanned:
        return EXIT_USAGE
    of_cluster = there if source.files else set()
    waits = any(f"{pod.namespace}/{pod.name}" not in of_cluster for pod in plan.pending)
    return EXIT_NO_PLACE if waits else 0


async def plan_into(
    live: ClusterObjects,
    reading: ManifestReading,
    source: Source,
    *,
    merge: bool = True,
    candidates: bool = False,
    say: Callable[[str], None],
) -> PlacementPlan:
    """Plan the objects of files into a cluster.

    Args:
        live: the objects of the cluster.
        reading: what the files have.
        source: the settings and the time.
        merge: the files are not all there is.
        candidates: also list every node that each pod fits on.
        say: called with a sentence on what is not planned, or has no effect.

    Raises:
        InvalidValue: a workload is invalid.
    """
    there = {pod.key for pod in live.pods}
    new, known = _sort_out(reading.unsubmitted, live)
    if known := [*known, *(f"Pod {pod.key}" for pod in reading.objects.pods if pod.key in there)]:
        say(f"in the cluster already, so not planned again: {some(known)}")
    expansion = expand(new, live.with_new(reading.objects) if merge else reading.objects)
    # What was not submitted yet is planned as if it was admitted.
    objects = expansion.objects.without_gates(lambda pod: pod.uid == pod.key)
    if gated := [pod.key for pod in objects.pods if pod.requests_chips and pod.is_gated]:
        say(f"not planned, because of scheduling gates: {some(gated)}")
    planning = Planning(objects, source.settings, source.now_ns, candidates=candidates)
    rescheduled = await reschedule(planning, source.settings, held=say) if source.settings.reschedules else ()
    plan = structs.replace(await planning.rest(), rescheduled=rescheduled)
    of_cluster = there if reading.manifests else set()
    unplanned = [told for told in plan.unplanned if f"{told.namespace}/{told.name}" not in of_cluster]
    plan = structs.replace(plan, unplanned=(*expansion.unplanned, *unplanned))
    if skipped := reading.ignored - expansion.kinds:
        say(f"skipped: {', '.join(f'{number} {kind}' for kind, number in sorted(skipped.items()))}")
    for sentence in expansion.misplaced:
        say(sentence)
    if expansion.existing:
        say(f"the pods of {some(expansion.existing)} exist already, so no others are planned")
    if expansion.without_chips:
        say(f"the pods of {some(expansion.without_chips)} request no chips")
    return plan


def _sort_out(given: Iterable[Manifest], live: ClusterObjects) -> tuple[list[Manifest], list[str]]:
    """The workloads that are not in the cluster, and the names of the others."""
    there = {(kind.resource.kind, workload.key) for kind in all_kinds() for workload in live.by_kind.get(kind.name, ())}
    new, known = [], []
    for manifest in given:
        key = manifest.origin.key if "/" in manifest.origin.key else f"{DEFAULT_NAMESPACE}/{manifest.origin.key}"
        if (manifest.origin.kind, key) in there:
            known.append(f"{manifest.origin.kind} {key}")
        else:
            new.append(manifest)
    return new, known
