"""The previous nodes of each job's pods, by rank, so that their successors can return there."""

from collections.abc import Mapping

from allocator.rules.job import JobKey

TTL_S = 72 * 3600.0
"""A job is dropped if none of its pods was bound for this time, as in the reference.

See docs/spec/rescheduling.md#previous-nodes.
"""


class PreviousNodes:
    """Remembers the nodes of jobs, also of jobs that were deleted recently."""

    def __init__(self) -> None:
        # When each job changed last, and its nodes by rank. In the order of these times, so that the oldest are found
        # without examining the others.
        self._jobs: dict[JobKey, tuple[float, dict[int, str]]] = {}

    def of(self, job: JobKey) -> Mapping[int, str]:
        """The nodes of a job by rank."""
        return self._jobs[job][1] if job in self._jobs else {}

    def remember(self, job: JobKey, rank: int, node: str, now_s: float) -> None:
        """Record that the pod of this rank is on a node."""
        _, nodes = self._jobs.pop(job, (now_s, {}))
        nodes[rank] = node
        self._jobs[job] = now_s, nodes
        while (oldest := next(iter(self._jobs))) != job and self._jobs[oldest][0] + TTL_S < now_s:
            del self._jobs[oldest]
