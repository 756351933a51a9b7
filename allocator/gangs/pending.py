"""Finds the pods of a gang that need a seat."""

from bisect import insort
from collections.abc import Callable
from typing import Final

import msgspec

from allocator.gangs.policy import Member
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.memo import Memo
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.turn import Steps, at_once

_MOST_GANGS: Final = 256
"""The most gangs whose pods are cached; beyond it the least recently used one is dropped."""
_STEP: Final = 16
"""After so many pods there is a pause."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A pod that needs a seat.

    Attributes:
        rank: its rank within the gang.
        pod: the pod.
        member: the pod as policies see it, or why its request is invalid.
    """

    rank: int
    pod: Pod
    member: Member | Refusal

    @classmethod
    def of(cls, rank: int, pod: Pod, request: ChipRequest | Refusal) -> "Waiting":
        """A pod without a seat, with its request of a node, or the reason why the request is invalid."""
        if isinstance(request, Refusal):
            return cls(rank, pod, request)
        return cls(rank, pod, Member(pod.uid, pod.key, rank, request))


class PendingMembers:
    """Finds the pods of a gang that need a seat.

    A scheduler filters the pods of a waiting gang one after the other, and other pods come and go in between: the
    result for the gang is cached until one of its own pods changes.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, request_of: Callable[[Pod], ChipRequest]) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._request_of = request_of
        self._read_members = Memo[JobKey, list[Waiting]](_MOST_GANGS)

    def needed(self, pod: Pod, request: ChipRequest, job: Job) -> tuple[list[Waiting], int]:
        """The pods that need a seat, by rank, and how many of them must get one.

        Args:
            pod: the pod being scheduled; it needs a seat, whether it has one now or not.
            request: what it requests of a node.
            job: the gang.
        """
        others = job.size - (pod.uid in job.pods)
        # If all other pods are placed, there is nothing to search: for example if a pod has to leave its own seat.
        if job.placed_beside(pod.uid) < min(job.min_available, others):
            waiting = [member for member in at_once(self.read(job)) or () if member.pod.uid != pod.uid]
            insort(waiting, Waiting.of(job.rank_of(pod), pod, request), key=lambda member: member.rank)
            size = len(job.pods) + (pod.uid not in job.pods)
            needed = job.min_available - (size - len(waiting))
            if needed > 0:
                return waiting, needed
        # The minimum is placed: this pod is an additional one, or the successor of one that has ended.
        return [Waiting.of(job.rank_of(pod), pod, request)], 1

    def read(self, job: Job) -> Steps[list[Waiting] | None]:
        """Read the pods of a job that need a seat, unless they are cached; None if its pods have changed meanwhile."""
        version = self._version(job)
        if (known := self._read_members.recall(job.key, version)) is not None:
            return known
        found: list[Waiting] = []
        yield from job.assign_ranks()
        ranked = job.by_rank()
        if len(ranked) > _STEP:
            yield
        for rank, pod in ranked:
            if pod.waits_for_chips and self._ledger.get(pod.uid) is None:
                found.append(Waiting.of(rank, pod, self._read(pod)))
                if not len(found) % _STEP:
                    yield
            if self._version(job) != version:
                return None
        return self._read_members.keep(job.key, version, found)

    def _version(self, job: Job) -> tuple[int, int]:
        # Requests depend on the labels and products of nodes as well.
        return job.version, self._cluster.labels.version

    def _read(self, pod: Pod) -> ChipRequest | Refusal:
        try:
            return self._request_of(pod)
        except Refusal as refusal:
            return refusal.without_frames()
