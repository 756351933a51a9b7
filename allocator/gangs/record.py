"""The nodes of a job's pods, running and ended, by rank, and its neighbours."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from allocator.gangs.policy import Peer
from allocator.rules.vacancy import Vacancy
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.previous_nodes import BlockRecord
from ascend.annotations import read_block
from ascend.kube.objects import Pod, unix_seconds

ENDS_S: Final = 10.0
"""A pod is about to end if it has to within so many seconds, or should have ended at most so many seconds ago."""


def read_record(job: Job, members: Collection[str], ledger: Ledger, past: BlockRecord) -> dict[int, Peer]:
    """Read the record of a job, by rank.

    Args:
        job: the job.
        members: the uids of the pods that are to be placed now: where they have seats does not count.
        ledger: the reservations.
        past: where pods that have ended were.
    """
    spots = past.of(job.key)
    owners = {owner.uid for pod in job.pods.values() if (owner := pod.metadata.controller) is not None} if spots else ()
    record = {rank: Peer(spot.node, spot.block, stays=False) for rank, spot in spots.items() if spot.owner in owners}
    for uid in job.placed:
        if uid not in members:
            pod, held = job.pods[uid], ledger.get(uid)
            if held is not None:
                record[job.rank_of(pod)] = Peer(held.node, held.part.block if held.part is not None else None)
            elif pod.spec.node_name:
                record[job.rank_of(pod)] = Peer(pod.spec.node_name, read_block(pod.metadata.annotations))
    return record


def ending_nodes(job: Job, record: Mapping[int, Peer], cluster: Cluster, now_s: float) -> list[str]:
    """The nodes of blocks on which pods of the job are about to end; its undamaged blocks keep them.

    Only healthy nodes, and pods that were deleted with a short grace period: others are not waited for
    (docs/spec/rescheduling.md#superpod-repair).

    Args:
        job: the job.
        record: where pods of it are or were, by rank.
        cluster: nodes and pods.
        now_s: the present, Unix seconds.
    """
    found = []
    for name in sorted({peer.node for peer in record.values() if not peer.stays}):
        node = cluster.nodes.get(name)
        if node is None or not isinstance(node.offer, Vacancy) or node.offer.faulty:
            continue
        pods = (cluster.pods.get(uid) for uid in node.holdings)
        if any(pod is not None and _ends(pod, now_s) and cluster.jobs.job_of(pod).key == job.key for pod in pods):
            found.append(name)
    return found


def _ends(pod: Pod, now_s: float) -> bool:
    end_s = unix_seconds(pod.metadata.deletion_timestamp)
    return end_s is not None and abs(end_s - now_s) <= ENDS_S


def count_neighbours(job: Job, labels: Mapping[str, str], cluster: Cluster) -> Counter[int]:
    """Count the live pods of other jobs of the namespace with these labels in each SuperPod.

    ``labels`` has at least one. Pods are counted, on all nodes of the SuperPod (docs/spec/inference.md#mindie-jobs).
    """
    (first, value), *others = labels.items()
    location = cluster.index.topology.location
    return Counter(
        number
        for pod in cluster.pods.values()
        if pod.metadata.labels.get(first) == value  # few pods have it, and there may be many pods
        and all(pod.metadata.labels.get(key) == wanted for key, wanted in others)
        and pod.spec.node_name
        and pod.is_live
        and pod.uid not in job.pods
        and pod.metadata.namespace == job.key.namespace  # as the terms of a pod's affinity mean by default
        and (number := location(pod.spec.node_name).super_pod) >= 0
    )
