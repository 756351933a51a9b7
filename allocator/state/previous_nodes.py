"""The previous nodes of each job's pods, by rank, so that their successors can return there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.rules.job import JobKey

TTL_S = 72 * 3600.0
"""A job is dropped if none of its pods was bound for this time, as in the reference.

See docs/spec/rescheduling.md#previous-nodes.
"""


@dataclass(slots=True)
class _JobNodes:
    since_s: float
    nodes: dict[int, str] = field(default_factory=dict)


class PreviousNodes:
    """Remembers the nodes of jobs, also of jobs that were deleted recently."""

    def __init__(self) -> None:
        # In the order of their last change, so that the oldest are found without examining the others.
        self._jobs: dict[JobKey, _JobNodes] = {}

    def of(self, job: JobKey) -> Mapping[int, str]:
        """The nodes of a job by rank."""
        known = self._jobs.get(job)
        return known.nodes if known is not None else {}

    def remember(self, job: JobKey, rank: int, node: str, now_s: float) -> None:
        """Record that the pod of this rank is on a node."""
        known = self._jobs.pop(job, None) or _JobNodes(now_s)
        known.since_s = now_s
        known.nodes[rank] = node
        self._jobs[job] = known
        while (oldest := next(iter(self._jobs))) != job and self._jobs[oldest].since_s + TTL_S < now_s:
            del self._jobs[oldest]
