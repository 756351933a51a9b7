"""The sentences on the blocks of a pod's job: the chosen SuperPods, and why none else."""

from collections import defaultdict
from collections.abc import Mapping

from allocator.state.reservation import InBlock
from allocator.superpods.choice import describe, describe_room
from allocator.superpods.demand import Demand
from ascend.annotations import read_block
from ascend.kube.objects import Pod
from npuctl.offline_allocator import OfflineAllocator


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
