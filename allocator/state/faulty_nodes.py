"""The nodes on which pods of a job have failed lately: new pods of the job are placed there last."""

from collections.abc import Collection
from typing import Final

from allocator.rules.job import JobKey

_NONE: Final[frozenset[str]] = frozenset()


class FaultyNodes:
    """Remembers nodes for each job, until the job is whole again (docs/spec/scheduling.md#fault-penalty)."""

    def __init__(self) -> None:
        self._jobs: dict[JobKey, frozenset[str]] = {}

    def of(self, job: JobKey) -> frozenset[str]:
        """The names of the nodes to be used last."""
        return self._jobs.get(job, _NONE)

    def note(self, job: JobKey, nodes: Collection[str]) -> None:
        """Remember the names of nodes for a job, instead of those before; none forgets the job."""
        if nodes:
            self._jobs[job] = frozenset(nodes)
        else:
            self._jobs.pop(job, None)
