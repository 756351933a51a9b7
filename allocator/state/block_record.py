"""Where the pods of jobs with blocks were last, so that a successor finds its block again.

A pod's annotation names its block (docs/spec/superpod.md#annotations). What is remembered here outlives the pod: when
all pods of a job are deleted and created again, its undamaged blocks return to their nodes
(docs/spec/rescheduling.md#superpod-repair).
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from allocator.rules.job import JobKey
from allocator.switches.rooms import UNUSED, SwitchState

TTL_S: Final = 1200.0
"""How long a job without any change is remembered that has no pods; the reference forgets a fault after this time."""


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


class BlockRecord:
    """The spots of each job's ranks.

    Args:
        has_pods: whether a job has any pod.
    """

    def __init__(self, has_pods: Callable[[JobKey], bool]) -> None:
        self._has_pods = has_pods
        # In the order of these times, so that the oldest are found without examining the others.
        self._jobs: dict[JobKey, tuple[float, dict[int, RankSpot]]] = {}

    def of(self, job: JobKey) -> Mapping[int, RankSpot]:
        """The spots of a job by rank."""
        return self._jobs[job][1] if job in self._jobs else {}

    def remember(self, job: JobKey, rank: int, spot: RankSpot, now_s: float) -> None:
        """Record that the pod of a rank is bound."""
        _, spots = self._jobs.pop(job, (now_s, {}))
        spots[rank] = spot
        self._jobs[job] = now_s, spots
        while (oldest := next(iter(self._jobs))) != job and self._jobs[oldest][0] + TTL_S < now_s:
            _, past = self._jobs.pop(oldest)
            if self._has_pods(oldest):
                self._jobs[oldest] = now_s, past
