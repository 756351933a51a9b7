"""The schedulers' verdicts on refused pods that wait for chips, by job.

Whether a gang has to give up is asked every second, of gangs of thousands of pods: so the verdicts are noted when they
change.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from allocator.rules.job import JobKey
from allocator.rules.scheduled import is_refusal, verdict_on
from allocator.state.cluster import Cluster
from ascend.kube.objects import Condition, Pod


class SchedulerVerdict(msgspec.Struct, gc=False):
    """A scheduler's verdict on a pod that was refused.

    Attributes:
        condition: the condition PodScheduled of the pod.
        number: of the last refusal, in the order of refusals; 0 if the pod was asked for since, or waits for victims.
    """

    condition: Condition
    number: int


_NONE: Final[Mapping[str, SchedulerVerdict]] = MappingProxyType({})


class Verdicts:
    """Follows the pods that were refused.

    Args:
        cluster: nodes, pods and jobs.

    Attributes:
        last: the number of the last refusal.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._by_job: dict[JobKey, dict[str, SchedulerVerdict]] = {}
        self._jobs: dict[str, JobKey] = {}
        self.last = 0
        for pod in cluster.waiting:
            self._on_pod(pod)
        cluster.followers.add(self._on_pod, self._forget)

    def of(self, job: JobKey) -> Mapping[str, SchedulerVerdict]:
        """The verdicts on pods of a job, by uid."""
        return self._by_job.get(job, _NONE)

    def settle(self, uid: str) -> None:
        """The last refusal of a pod does not count any more."""
        if (key := self._jobs.get(uid)) is not None:
            self._by_job[key][uid].number = 0

    def _on_pod(self, pod: Pod) -> None:
        key, condition = self._jobs.get(pod.uid), verdict_on(pod)
        known = self._by_job[key][pod.uid] if key is not None else None
        if known is not None and known.condition == condition and pod.waits_for_chips:
            return
        self._forget(pod)
        if condition is None or not pod.waits_for_chips:
            return
        if is_refusal(condition):
            self.last += 1
            self._note(pod, SchedulerVerdict(condition, self.last))
        elif known is not None:
            self._note(pod, SchedulerVerdict(condition, known.number))

    def _note(self, pod: Pod, verdict: SchedulerVerdict) -> None:
        key = self._jobs[pod.uid] = self._cluster.jobs.job_of(pod).key
        self._by_job.setdefault(key, {})[pod.uid] = verdict

    def _forget(self, pod: Pod) -> None:
        if (key := self._jobs.pop(pod.uid, None)) is not None:
            of_job = self._by_job[key]
            del of_job[pod.uid]
            if not of_job:
                del self._by_job[key]
