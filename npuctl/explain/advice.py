"""The sentences about a pod beside the verdicts of nodes: blocks of its job, and advice for its author."""

import math
from collections import defaultdict
from collections.abc import Mapping

from msgspec import structs

from allocator.rules.request import ChipRequest
from allocator.settings import Settings
from allocator.state.job import Job
from allocator.state.reservation import InBlock
from allocator.state.view import Without
from allocator.superpods.choice import describe, describe_room
from allocator.superpods.demand import Demand
from ascend.annotations import INDEPENDENT, read_block
from ascend.errors import Refusal
from ascend.grammar import count, some
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Reason
from npuctl.explain.answer import Explanation
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects
from npuctl.reading.source import rfc3339


def describe_blocks(
    allocator: OfflineAllocator, pod: Pod, asked: tuple[Demand, Mapping[int, int]] | None
) -> tuple[str, ...]:
    """Describe the blocks of a pod's job, after it was tried to place it.

    Args:
        allocator: where it was tried.
        pod: the pod.
        asked: what its job asks for, and how many servers each SuperPod had free for it before, by its id; None for
            a job without blocks.
    """
    if asked is None:
        return ()
    demand, free = asked
    job, location = allocator.job_of(pod), allocator.cluster.index.topology.location
    running: defaultdict[int, list[int]] = defaultdict(list)
    planned: defaultdict[int, list[int]] = defaultdict(list)
    for member in job.pods.values():
        if member.spec.node_name:
            block = read_block(member.metadata.annotations)
            if block is None and not demand.may_split:
                block = job.rank_of(member) // demand.size
            if block is not None:
                running[block].append(location(member.spec.node_name).super_pod)
        elif (held := allocator.ledger.get(member.uid)) is not None and isinstance(held.part, InBlock):
            planned[held.part.block].append(held.part.super_pod)
    said = describe(free, planned, demand, running) if planned else describe_room(free, demand, running)
    return (*said, *allocator.engine.advice(pod))


def advice_or_kept(waiting: Explanation, pod: Pod, allocator: OfflineAllocator, invalid: str) -> tuple[str, ...]:
    """The jobs for which chips are kept that a waiting pod could use, or else the cure; ``invalid`` without either."""
    kept = _kept(pod, allocator)
    advice = kept if waiting.remedies or kept else _advice(waiting, pod, allocator)
    return advice or ((invalid,) if invalid else ())


def advice_of_several(pod: Pod, request: ChipRequest, allocator: OfflineAllocator) -> str:
    """The advice for a pod that would fit as the only pod of its job; else empty."""
    index, nodes, job = allocator.cluster.index, allocator.selected_nodes(pod), allocator.job_of(pod)
    needs_network = request.needs_network and job.is_gang
    alone = structs.replace(request, distributed=False, needs_network=needs_network, is_spread=False)
    if alone == request or index.best(alone, nodes) is None:
        return ""
    shares = index.best(structs.replace(request, is_spread=False), nodes) is not None
    return (
        f"it would fit if the pods of job {job.key} did not work together: if they don't, give them the annotation "
        f'{INDEPENDENT}: "true"{"; or name the product in the setting sharing_products" if shares else ""}'
    )


def advice_of_peers(
    pod: Pod, objects: ClusterObjects, settings: Settings, now_ns: int, allocator: OfflineAllocator
) -> str:
    """For which pods of its job a pod waits whose request is invalid only beside their vNPUs; empty if for none."""
    if allocator.engine.is_of_gang(pod):
        return ""  # they start together
    job = allocator.job_of(pod)
    before = {uid: job.pods[uid].key for uid in job.vnpus_beside(pod)}
    if not before:
        return ""
    try:
        OfflineAllocator(objects.without(lambda peer: peer.uid in before), settings, now_ns).engine.request_of(pod)
    except Refusal:
        return ""
    names = some(sorted(before.values()))
    it = "it comes" if len(before) == 1 else "they come"
    return f"wait for the end of {names}: {it} first, unless the allocator's setting vnpus_per_job allows more"


def advice_of_ends(pod: Pod, allocator: OfflineAllocator, now_ns: int, *, is_first: bool) -> str:
    """When a pod fits at the latest, by the time limits of pods that hold chips; empty if they do not tell.

    Args:
        pod: the pod.
        allocator: the cluster as it is then, without this pod's turn; pods are deleted in it.
        now_ns: the time, Unix nanoseconds.
        is_first: whether no pod waits before this one.
    """
    cluster, now_s = allocator.cluster, now_ns / 1e9
    uids = [uid for record in cluster.nodes.values() for uid in record.holdings]
    holders = [holder for uid in uids if (holder := cluster.pods.get(uid)) is not None]
    ends = [(end_s, holder) for holder in holders if math.isfinite(end_s := cluster.jobs.end_of(holder, now_s))]
    own = Without.of(pod, owners=(allocator.job_of(pod).key.plan,))
    for number, (end_s, holder) in enumerate(sorted(ends, key=lambda end: (end[0], end[1].uid)), start=1):
        cluster.pod_deleted(holder)
        if allocator.has_room(pod, own):
            when, limited = rfc3339(int(max(end_s, now_s) * 1e9)), count(number, "pod has", "pods have")
            unless = "" if is_first else ", unless those before it take the chips"
            return f"wait: it fits by {when} at the latest{unless}: {limited} reached activeDeadlineSeconds then"
    return ""


def _kept(pod: Pod, allocator: OfflineAllocator) -> tuple[str, ...]:
    """For what chips are kept that the pod could use."""
    found = []
    for promise in allocator.kept_for(pod):
        waits = "which waits for these nodes to drain" if promise.drains else "which has preempted other pods for them"
        found.append(
            f"chips on {count(len(promise.chips), 'node')} are kept for {promise.what}, {waits}: it comes first"
        )
    return tuple(found)


def _missing(job: Job) -> str:
    """What completes a gang: its pods with scheduling gates exist, and nobody should create more for them."""
    missing = job.min_available - job.present
    gated = min(job.gated, missing)
    create = f"create {count(missing - gated, 'missing pod')}" if missing > gated else ""
    ungate = f"wait until the scheduling gates of {count(gated, 'pod')} are removed" if gated else ""
    return f"{' and '.join(filter(None, (create, ungate)))} (job {job.key})" if gated else f"{create} of job {job.key}"


def _advice(waiting: Explanation, pod: Pod, allocator: OfflineAllocator) -> tuple[str, ...]:
    """What to do if the obstacle is not a node, as in docs/reasons.md, for this pod."""
    job = allocator.job_of(pod)
    selector = printable(",".join(f"{key}={value}" for key, value in sorted(pod.spec.node_selector.items())))
    labels, what = (selector, "node selector") if selector else ("what that requires", "required node affinity")
    cures = {
        Reason.GANG_INCOMPLETE: _missing(job),
        Reason.GROUP_MISSING: f"create the {job.kind} {job.key}, or correct the name in the pod",
        Reason.PRODUCT_NOT_NAMED: (
            f"set the node selector accelerator-type in the pods of job {job.key}, or default_product"
        ),
        Reason.NODE_SELECTOR_MISMATCH: f"label a node that has room with {labels}, or change the pod's {what}",
    }
    found = {waiting.reason, *(group.reason for group in waiting.groups)}
    return tuple(cure for reason, cure in cures.items() if reason in found)
