"""Where the pods of a job with blocks are, and where those that have ended were."""

from collections.abc import Collection

from allocator.gangs.policy import Peer
from allocator.state.block_record import BlockRecord
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.annotations import read_block


def read_record(job: Job, members: Collection[str], ledger: Ledger, past: BlockRecord) -> dict[int, Peer]:
    """Read the record of a job, by rank.

    Args:
        job: the job.
        members: the uids of the pods that are to be placed now: where they have seats does not count.
        ledger: the reservations.
        past: where pods that have ended were.
    """
    record = {rank: Peer(spot.node, spot.block, stays=False) for rank, spot in past.of(job.key).items()}
    for uid in job.placed:
        if uid not in members:
            pod, held = job.pods[uid], ledger.get(uid)
            if held is not None and held.part is not None:
                record[job.rank_of(pod)] = Peer(held.node, held.part.block)
            elif pod.spec.node_name and (block := read_block(pod.metadata.annotations)) is not None:
                record[job.rank_of(pod)] = Peer(pod.spec.node_name, block)
    return record
