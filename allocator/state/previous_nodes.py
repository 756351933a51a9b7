"""The nodes where the pods of each job were: their successors return there, or go there last.

What is remembered outlives the pods. A pod's annotation names its block (docs/spec/superpod.md#annotations): when all
pods of a job are deleted and created again, its undamaged blocks return to their nodes
(docs/spec/rescheduling.md#superpod-repair).
"""

from collections.abc import Callable, Collection, Mapping
from typing import Final, Generic, TypeVar

import msgspec

from allocator.rules.job import JobKey
from allocator.switches.rooms import UNUSED, SwitchState

TTL_S: Final = 72 * 3600.0
"""A job's nodes are dropped if none of its pods was bound for this time, as in the reference.

See docs/spec/rescheduling.md#previous-nodes.
"""
BLOCKS_TTL_S: Final = 1200.0
"""How long the blocks of a job without pods are remembered; the reference forgets a fault after this time."""
_NONE: Final[frozenset[str]] = frozenset()

_Spot = TypeVar("_Spot")


class RankSpot(msgspec.Struct, frozen=True, gc=False):
    """Where the pod of a rank is or was.

    Attributes:
        node: the name of its node.
        block: the id of its block.
        owner: the uid of its controller: what another object of the same name makes is another job.
        state: how the job used its leaf switch.
    """

    node: str
    block: int
    owner: str
    state: SwitchState = UNUSED


class _LastSpots(Generic[_Spot]):
    """The last spot of each rank of each job, for some time after the job's last change."""

    def __init__(self, ttl_s: float, is_kept: Callable[[JobKey], bool]) -> None:
        self._ttl_s = ttl_s
        self._is_kept = is_kept
        # When each job changed last, and its spots by rank. In the order of these times, so that the oldest are found
        # without examining the others.
        self._jobs: dict[JobKey, tuple[float, dict[int, _Spot]]] = {}

    def of(self, job: JobKey) -> Mapping[int, _Spot]:
        """The spots of a job by rank."""
        return self._jobs[job][1] if job in self._jobs else {}

    def remember(self, job: JobKey, rank: int, spot: _Spot, now_s: float) -> None:
        """Record that the pod of a rank is bound."""
        _, spots = self._jobs.pop(job, (now_s, {}))
        spots[rank] = spot
        self._jobs[job] = now_s, spots
        while (oldest := next(iter(self._jobs))) != job and self._jobs[oldest][0] + self._ttl_s < now_s:
            _, past = self._jobs.pop(oldest)
            if self._is_kept(oldest):
                self._jobs[oldest] = now_s, past


class PreviousNodes(_LastSpots[str]):
    """The names of the nodes of jobs, also of jobs that were deleted recently."""

    def __init__(self) -> None:
        super().__init__(TTL_S, lambda _job: False)


class BlockRecord(_LastSpots[RankSpot]):
    """The spots of jobs with blocks.

    Args:
        has_pods: whether a job has any pod.
    """

    def __init__(self, has_pods: Callable[[JobKey], bool]) -> None:
        super().__init__(BLOCKS_TTL_S, has_pods)


class FaultyNodes:
    """The nodes on which pods of a job have failed lately, until the job is whole again: new pods go there last.

    See docs/spec/scheduling.md#fault-penalty.
    """

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
