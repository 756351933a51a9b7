"""The running jobs, waiting jobs and free chips of two clusters, after the decisions on all waiting pods."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

import msgspec

from npuctl.capacity.room import rooms
from npuctl.evaluation import Evaluation
from npuctl.queue.entries import Queue, QueueEntry


class Free(msgspec.Struct, frozen=True):
    """What the usable nodes of a product have free once everything has started that starts now.

    Attributes:
        product: the product.
        nodes: the number of usable nodes.
        chips: the free chips; those that are kept for others are not.
        rings: rings, meshes or cards all of whose chips are free.
        servers: nodes all of whose chips are free.
    """

    product: str
    nodes: int = 0
    chips: int = 0
    rings: int = 0
    servers: int = 0


class ClusterOutlook(msgspec.Struct, frozen=True):
    """What becomes of a cluster.

    Attributes:
        running: the pods with chips that run, with those that start now.
        waiting: the pods that wait for chips then.
        free: what is free then, by product.
        queue: what waits now, in the order in which it is decided on.
    """

    running: int
    waiting: int
    free: tuple[Free, ...]
    queue: tuple[QueueEntry, ...]


class JobState(msgspec.Struct, frozen=True):
    """What becomes of a job.

    Attributes:
        running: its pods that run, with those that start now.
        waiting: its pods that wait then.
        position: its place in the queue, from 1; None if no pod of it is there.
    """

    running: int = 0
    waiting: int = 0
    position: int | None = None


class JobChange(msgspec.Struct, frozen=True):
    """A job of which something else becomes.

    Attributes:
        job: ``namespace/name``.
        ended: how many of its pods that run now end, whether others start instead or not.
        before: what becomes of it as it is.
        after: what becomes of it with the changes.
    """

    job: str
    ended: int
    before: JobState
    after: JobState

    @property
    def is_place_only(self) -> bool:
        """Whether no pod ends, and as many run and wait as before: it only has another place in the queue."""
        before, after = self.before, self.after
        return not self.ended and (before.running, before.waiting) == (after.running, after.waiting)


class ChangeOutcome(NamedTuple):
    """What becomes of a cluster.

    Attributes:
        state: all of it.
        jobs: what becomes of each job.
        staying: the job of each pod that has a node already, and does not end, by uid.
        evaluation: the evaluation in which it was decided.
    """

    state: ClusterOutlook
    jobs: Mapping[str, JobState]
    staying: Mapping[str, str]
    evaluation: Evaluation


async def decide(evaluation: Evaluation, sharing_products: Container[str]) -> ChangeOutcome:
    """Decide on everything that waits; nothing has been decided yet. The products are the setting of that name."""
    bound = {pod.uid for pod in evaluation.objects.pods if pod.spec.node_name}
    queue = await Queue(evaluation).read()
    staying = dict[str, str]()
    running, waiting = Counter[str](), Counter[str]()
    for pod in evaluation.objects.pods:
        if pod.requests_chips and pod.is_live and pod.spec.node_name:
            job = str(evaluation.allocator.job_of(pod).key)
            running[job] += 1
            if pod.uid in bound:
                staying[pod.uid] = job
    positions: dict[str, int] = {}
    for entry in queue:
        positions.setdefault(entry.job, entry.position)
        waiting[entry.job] += len(entry.pods) - entry.starting
    jobs = {job: JobState(running[job], waiting[job], positions.get(job)) for job in sorted({*running, *positions})}
    free = tuple(
        Free(room.product, room.nodes, room.chips, room.rings, room.servers)
        for room in rooms(evaluation.allocator, sharing_products)
    )
    return ChangeOutcome(ClusterOutlook(running.total(), waiting.total(), free, queue), jobs, staying, evaluation)


def changed_jobs(before: ChangeOutcome, after: ChangeOutcome) -> Iterator[JobChange]:
    """The jobs of which something else becomes.

    First those of which fewer pods run, then those of which more do, then those that have another place in the queue,
    each with the largest change first.
    """
    none = JobState()
    ended = Counter(job for uid, job in before.staying.items() if uid not in after.staying)
    changes = (
        JobChange(job, ended[job], before.jobs.get(job, none), after.jobs.get(job, none))
        for job in sorted({*before.jobs, *after.jobs})
    )
    yield from sorted((change for change in changes if change.ended or change.before != change.after), key=_order)


def _order(change: JobChange) -> tuple[bool, int, int, str]:
    more = change.after.running - change.before.running
    jump = abs((change.after.position or 0) - (change.before.position or 0))
    return change.is_place_only, (more > 0) - (more < 0), -(abs(more) or change.ended or jump), change.job
