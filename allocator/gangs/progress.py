"""How far a gang is: whether enough of its pods exist, have started, or can be bound."""

from typing import Final

from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.jobs import Jobs
from allocator.state.ledger import Ledger
from allocator.state.reservation import Stage
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason

WAITING: Final = (Stage.PLANNED, Stage.HELD)
"""The stages of a seat whose pod is not being bound."""


def group_missing(pod: Pod, job: Job, jobs: Jobs) -> Refusal:
    """The refusal of a pod whose job lacks its pod group, or the object that says how many pods it has."""
    return Refusal(Reason.GROUP_MISSING, f"pod {pod.key} names {job.kind} {job.key}, {jobs.why_lacking(job)}")


class Progress:
    """Reads how far gangs are.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger

    def incomplete(self, job: Job, pod: Pod) -> Refusal | None:
        """What a gang lacks apart from nodes; None if it is complete."""
        if self._cluster.jobs.lacks_group(job):
            return group_missing(pod, job, self._cluster.jobs)
        # Its scheduler may know the pod, or that its gates are gone, before the informers do; a pod that has failed or
        # is terminating doesn't count.
        seen = self._cluster.pods.get(pod.uid)
        present = job.present + (not pod.is_gated and (seen is None or seen.is_gated))
        if present >= job.min_available:
            return None
        missing = job.min_available - present
        gated = f"; {count(job.gated, 'has', 'have')} scheduling gates" if job.gated else ""
        return Refusal(
            Reason.GANG_INCOMPLETE,
            f"job {job.key}: {count(job.min_available, 'pod')} must be placed together; "
            f"{count(present, 'exists', 'exist')}, {count(missing, 'is missing', 'are missing')}{gated}",
        )

    def lacks(self, job: Job, pod: Pod) -> Refusal | None:
        """Why a pod can't be placed by itself: its gang is incomplete, and has not started; None if it can."""
        incomplete = self.incomplete(job, pod)
        return incomplete if incomplete is not None and self.find_started(job) is None else None

    def holds(self, job: Job) -> bool:
        """Whether Bindings of a gang are held."""
        return bool(self._ledger.plans.of(job.key.plan).held)

    def may_start(self, job: Job) -> bool:
        """Whether all pods that its minimum needs are bound, or their Bindings are held."""
        if self._cluster.jobs.lacks_group(job):
            return False
        passed = job.placed_beside("") - self._ledger.plans.of(job.key.plan).unused + job.ended
        return passed >= job.needed

    def find_started(self, job: Job, last: str = "") -> Pod | None:
        """A pod of a job that is bound or has a Binding in flight; the one with the uid ``last`` is examined first."""
        found = job.pods.get(last)
        if found is not None and self.is_started(found):
            return found
        if not job.placed_beside("") and not job.ended:
            return None  # pods of a gang that has stepped back ask this one after the other
        return next(filter(self.is_started, job.newest), None)  # binding a pod changes it

    def is_started(self, pod: Pod) -> bool:
        """Whether a pod is bound, its Binding is in flight, or a caller was given its chips."""
        held = self._ledger.get(pod.uid)
        waits = pod.waits_for_chips and (held is None or held.stage in WAITING)
        return pod.requests_chips and not waits
