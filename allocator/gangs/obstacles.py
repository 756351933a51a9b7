"""The obstacles to a gang's start besides chips: missing pods, gates, or a verdict of its scheduler.

A scheduler places pods by more than chips: CPU, volumes, affinity, taints, host ports, quotas. A gang with a pod that
its minimum needs and that is refused for such a reason can't start whatever chips it gets, so nothing is kept for it,
nobody waits for it and nobody ends for it, until the verdict changes. What says so is the condition PodScheduled of its
pods. A scheduler writes the condition only if it changes, so a verdict is in doubt for some time after the scheduler
has asked for the pod (it filters nodes only where its own filters have passed) and after the peers of the pod have
released what they had beside it.

A pod without the condition that waits for long, or names a scheduler that is not served, is one that no scheduler
tries: its scheduler does not run, or holds the pod back by a rule of its own.
"""

import math
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from allocator.rules.job import JobKey
from allocator.rules.scheduled import Refused, refused, refused_by_filters, verdict_on
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.grammar import count
from ascend.kube.objects import Condition, Pod

_T = TypeVar("_T")

UNTRIED_S: Final = 30.0
"""How long after its creation was seen a pod without a verdict counts as one that is about to be tried."""
SKIPPED_S: Final = 10.0
"""The same once its scheduler has tried another pod of its job, after it has done so for the first time."""
RELEASED_S: Final = 12.0
"""How long after its gang has released its seats a pod's verdict is in doubt, unless nothing that ends would help:
kube-scheduler tries it again after at most 10 s."""
ASKED_S: Final = 20.0
"""How long after a scheduler has asked for a pod an unchanged verdict of before is in doubt."""


class Lacking(StrEnum):
    """What a gang lacks."""

    PODS = "pods"
    """Pods, or the object that says how many start together."""

    ADMISSION = "admission"
    """Nothing but that the scheduling gates of its pods are removed."""

    SCHEDULER = "scheduler"
    """What its scheduler asks for besides chips; or nobody schedules its pods."""


class Obstacle(NamedTuple):
    """Why a gang can't start whatever chips are free.

    Attributes:
        lacking: what it lacks.
        why: the same for people, a part of a sentence.
    """

    lacking: Lacking
    why: str


class Obstacles:
    """Follows the verdicts on the pods that wait for chips.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations; its clock counts.
        awaits_victims: whether other pods are ending for a pod of a gang.

    Attributes:
        revision: changes with every verdict that counts.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, awaits_victims: Callable[[Pod, Job], bool]) -> None:
        self._awaits_victims = awaits_victims
        self._cluster = cluster
        self._ledger = ledger
        self.revision = 0
        self._jobs: dict[str, JobKey] = {}
        self._refused: dict[JobKey, dict[str, tuple[Condition, Refused]]] = {}
        self._untried: dict[JobKey, dict[str, float]] = {}  # the first has waited longest
        self._tried_s: dict[
            JobKey, float
        ] = {}  # when a pod of a job was tried for the first time, if others are untried
        self._in_doubt: dict[str, tuple[tuple[Condition | None, ...], float]] = {}
        for pod in cluster.waiting:
            self._on_apply(pod)
        cluster.followers.add(self._on_apply, self._on_delete)

    def on_request(self, pod: Pod) -> None:
        """A scheduler asks where a pod may be: it passes the scheduler's own filters."""
        self._note_try(pod.uid)
        self._doubt(pod, ASKED_S)

    def on_release(self, job: Job) -> None:
        """Forget refusals of a gang's pods that may be due to the seats that the gang has released."""
        for uid, (_, what) in self._refused.get(job.key, {}).items():
            if what is not Refused.NEVER:
                self._doubt(job.pods[uid], RELEASED_S)

    def of(self, job: Job) -> Obstacle | None:
        """What keeps a job from starting, apart from chips; None if nothing is known."""
        missing = job.min_available - job.present
        if self._cluster.jobs.lacks_group(job) or missing > job.gated:
            return Obstacle(Lacking.PODS, f"{count(max(missing, 1), 'pod')} or its group do not exist")
        if missing > 0:
            return Obstacle(Lacking.ADMISSION, f"{count(job.gated, 'pod has', 'pods have')} scheduling gates")
        if (why := self.refusal(job) or self.why_untried(job)) is not None:
            return Obstacle(Lacking.SCHEDULER, why)
        return None

    def short_of_chips(self) -> Iterator[tuple[Pod, Job]]:
        """A pod of each job that its scheduler refuses for nothing but chips, as it counts them."""
        for key, verdicts in tuple(self._refused.items()):
            uid = next((uid for uid, (_, what) in verdicts.items() if what is Refused.CHIPS), None)
            if uid is not None:
                job = self._cluster.jobs.by_key[key]
                yield job.pods[uid], job

    def refusal(self, job: Job, *, for_ever: bool = False, for_chips: bool = False) -> str | None:
        """Why the scheduler refuses a pod of a job's minimum on every node, or tries only its peers.

        It is a part of a sentence.

        Args:
            job: the job.
            for_ever: whether only refusals count that stay whatever ends.
            for_chips: whether refusals count as well for which chips may be the reason.
        """
        now_s, spare = self._ledger.monotonic(), job.present - job.min_available
        for uid, (verdict, what) in self._refused.get(job.key, {}).items():
            pod = job.pods[uid]
            does_count = what is Refused.NEVER or (what is Refused.OTHER and not for_ever) or for_chips
            if not does_count or not self._counts(uid, verdict, now_s):
                continue
            if not self._awaits_victims(pod, job):  # it was refused before they were evicted
                spare -= 1
                if spare < 0:
                    return refused(pod, verdict)
        return self.why_untried(job) if job.key in self._tried_s and not for_ever else None

    def count_refused(self, pod: Pod) -> int:
        """How many pods of the minimum of a gang, or of a pod alone, the filters of its scheduler refuse everywhere."""
        job, now_s = self._cluster.jobs.job_of(pod), self._ledger.monotonic()
        refused = self._refused.get(job.key, {})
        if not job.is_gang:
            return pod.uid in refused and self._counts(pod.uid, refused[pod.uid][0], now_s)
        certain = sum(self._counts(uid, verdict, now_s) for uid, (verdict, _) in refused.items())
        return max(0, certain - (job.present - job.min_available))

    def why_untried(self, job: Job, *, for_s: float = SKIPPED_S) -> str | None:
        """Which pod that the minimum of a job needs its scheduler does not try, a part of a sentence.

        Args:
            job: the job.
            for_s: how long it has not tried the pod after one of its peers.
        """
        now_s, spare = self._ledger.monotonic(), job.present - job.min_available
        tried_s = self._tried_s.get(job.key, -math.inf)
        for_s = for_s if job.key in self._tried_s else UNTRIED_S
        for uid, since_s in self._untried.get(job.key, {}).items():
            if since_s > -math.inf and now_s - max(since_s, tried_s) < for_s:
                break
            spare -= 1
            if spare < 0:
                return _untried(job.pods[uid])
        return None

    def of_pod(self, pod: Pod) -> Obstacle | None:
        """The same for a pod that is placed by itself."""
        key, now_s = self._jobs.get(pod.uid, _NO_JOB), self._ledger.monotonic()
        if (why := self.refusal_of(pod)) is not None:
            return Obstacle(Lacking.SCHEDULER, why)
        if now_s - self._untried.get(key, {}).get(pod.uid, now_s) >= UNTRIED_S:
            return Obstacle(Lacking.SCHEDULER, _untried(pod))
        return None

    def refusal_of(self, pod: Pod) -> str | None:
        """Why its scheduler refuses a pod that is placed by itself on every node, a part of a sentence."""
        verdict, what = self._refused.get(self._jobs.get(pod.uid, _NO_JOB), {}).get(pod.uid, (None, None))
        if verdict is None or what is Refused.CHIPS or not self._counts(pod.uid, verdict, self._ledger.monotonic()):
            return None
        return refused(pod, verdict)

    def lacks_more_than_chips(self, pod: Pod) -> bool:
        """Whether its scheduler has refused a pod on every node last, for other reasons than chips."""
        _, what = self._refused.get(self._jobs.get(pod.uid, _NO_JOB), {}).get(pod.uid, (None, None))
        return what not in {None, Refused.CHIPS}

    def _counts(self, uid: str, verdict: Condition, now_s: float) -> bool:
        """Whether a verdict is not in doubt, and no Binding of its pod is held or in flight."""
        held = self._ledger.get(uid)
        if held is not None and held.stage not in {Stage.PLANNED, Stage.RESERVED}:
            return False
        doubted, until_s = self._in_doubt.get(uid, ((), 0.0))
        return verdict not in doubted or now_s >= until_s

    def _doubt(self, pod: Pod, for_s: float) -> None:
        if pod.uid in self._jobs:
            known = self._refused.get(self._jobs[pod.uid], {}).get(pod.uid)
            # The scheduler may have seen a later one than the informers.
            verdicts = known[0] if known is not None else None, verdict_on(pod)
            self.revision += verdicts != (None, None)
            self._in_doubt[pod.uid] = verdicts, self._ledger.monotonic() + for_s

    def _on_apply(self, pod: Pod) -> None:
        verdict = verdict_on(pod)
        key = self._cluster.jobs.job_of(pod).key if pod.waits_for_chips and not pod.is_terminating else None
        if self._jobs.get(pod.uid, key) != key or key is None:
            self._on_delete(pod)
        if key is None:
            return
        is_new = pod.uid not in self._jobs
        self._jobs[pod.uid] = key
        if verdict is None:
            if is_new:
                served = self._cluster.plain.schedulers
                is_served = not served or pod.spec.scheduler_name in served
                now_s, untried = self._ledger.monotonic(), self._untried.setdefault(key, {})
                untried[pod.uid] = now_s if is_served else -math.inf
                if self._cluster.jobs.job_of(pod).size > len(untried):
                    self._tried_s.setdefault(key, now_s)
            return
        self._note_try(pod.uid)
        known = self._refused.get(key, {}).get(pod.uid)
        if known is not None and known[0] == verdict:
            return
        if (what := refused_by_filters(verdict)) is not None:
            self.revision += 1
            self._refused.setdefault(key, {})[pod.uid] = verdict, what
        else:
            self._drop(self._refused, pod.uid)

    def _note_try(self, uid: str) -> None:
        """Its scheduler tries a pod, for the first time or again."""
        key, now_s = self._jobs.get(uid, _NO_JOB), self._ledger.monotonic()
        if uid in self._untried.get(key, ()):
            self._tried_s[key] = now_s
            self._drop(self._untried, uid)
        elif key in self._untried:
            self._tried_s.setdefault(key, now_s)

    def _on_delete(self, pod: Pod) -> None:
        self._drop(self._untried, pod.uid)
        self._drop(self._refused, pod.uid)
        self._in_doubt.pop(pod.uid, None)
        self._jobs.pop(pod.uid, None)

    def _drop(self, pods: dict[JobKey, dict[str, _T]], uid: str) -> None:
        key = self._jobs.get(uid, _NO_JOB)
        of_job = pods.get(key)
        if of_job is not None and uid in of_job:
            self.revision += 1
            del of_job[uid]
            if not of_job:
                del pods[key]
                if pods is self._untried:
                    self._tried_s.pop(key, None)


_NO_JOB: Final = JobKey("", "", "")


def _untried(pod: Pod) -> str:
    name = pod.spec.scheduler_name or "its scheduler"
    return f"no scheduler tries pod {pod.key}: {name} does not run, or holds the pod back"
