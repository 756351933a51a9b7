"""Who creates a deleted pod anew, by the kinds of jobs. A pod that nobody creates anew is never deleted."""

from collections.abc import Callable
from typing import Final

from allocator.state.job import Job
from allocator.state.owned import Owned
from ascend.jobs.leader_worker_set import LEADER_WORKER_SET
from ascend.jobs.table import TABLE
from ascend.kube.objects import Pod

_JOB: Final = "batch/v1 Job"


def owner_uid(pod: Pod) -> str:
    """Return the uid of the controller of a pod; its own if it has none."""
    owner = pod.metadata.controller
    return owner.uid if owner is not None else pod.uid


def goes_together(job: Job) -> bool:
    """Return whether the controller itself deletes all pods of a job when one is deleted."""
    return job.kind == LEADER_WORKER_SET


def wanted(job: Job, owned_by: Callable[[Pod], Owned | None]) -> int:
    """Return how many pods with chips a job has when it is whole; not all of them may have been created yet.

    Args:
        job: the job.
        owned_by: returns what the controller of a pod says of its pods; None if that is not known.
    """
    owners = {owned.uid: owned.size for pod in job.pods.values() if (owned := owned_by(pod)) is not None}
    return max(job.min_available, sum(owners.values()))


def why_nobody(pod: Pod, owned: Owned | None, pods: int) -> str | None:
    """Return why nobody would create a pod anew, a sentence; None if its controller would.

    Args:
        pod: the pod.
        owned: what its controller says, if it is a StatefulSet or a Job, and known.
        pods: how many pods of the controller are deleted together.
    """
    owner = pod.metadata.controller
    if owner is None:
        return f"pod {pod.key} has no controller"
    named = f"{owner.kind} {pod.metadata.namespace}/{owner.name}"
    if f"{owner.api_version} {owner.kind}" == _JOB:
        return _job(named, owned, pods)
    if f"{owner.api_version.partition('/')[0]} {owner.kind}" in TABLE.recreating:
        return None
    if owner.kind == "DaemonSet":
        return f"{named} would create pod {pod.key} anew on the same node"
    return f"it is not known whether {named} would create pod {pod.key} anew"


def _job(named: str, owned: Owned | None, pods: int) -> str | None:
    """Each deleted pod of a Job counts as a failure, unless its ``podFailurePolicy`` ignores disruptions."""
    if owned is None:
        return f"{named} is not known"
    if owned.ignores_disruptions or owned.failures_left is None or pods <= owned.failures_left:
        return None
    return (
        f"{named} would fail: deleted pods count as failures, {pods} would be deleted, and its backoffLimit leaves "
        f"{owned.failures_left}; let the first rule of its podFailurePolicy ignore the condition DisruptionTarget"
    )
