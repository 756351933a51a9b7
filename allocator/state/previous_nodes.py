"""Where the pods of each job were, by rank: what is needed to send their successors there again."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from allocator.rules.job import JobKey

LIFE_S = 72 * 3600.0
"""A job of which no pod was bound for so long is forgotten, as in the reference (spec/superpod.md §2.8)."""


@dataclass(slots=True)
class _Places:
    since_s: float
    nodes: dict[int, str] = field(default_factory=dict)


class PreviousNodes:
    """Remembers the nodes of jobs, also of those that are gone for a while."""

    def __init__(self) -> None:
        # In the order of their last change, so that the oldest are found without looking at the others.
        self._jobs: dict[JobKey, _Places] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def of(self, job: JobKey) -> Mapping[int, str]:
        """The nodes of a job by rank."""
        places = self._jobs.get(job)
        return places.nodes if places is not None else {}

    def remember(self, job: JobKey, rank: int, node: str, now_s: float) -> None:
        """A pod of a job is on a node."""
        places = self._jobs.pop(job, None) or _Places(now_s)
        places.since_s = now_s
        places.nodes[rank] = node
        self._jobs[job] = places
        while (oldest := next(iter(self._jobs))) != job and self._jobs[oldest].since_s + LIFE_S < now_s:
            del self._jobs[oldest]
