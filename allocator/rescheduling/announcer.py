"""Tells of rescheduling, or why none happens: in the log, and in Events on pods and their creators."""

from collections.abc import Callable
from typing import Final

import structlog

from allocator.observe.refusal_events import Publish
from allocator.rescheduling.decision import JobPod, PodChoice, job_reason
from allocator.rescheduling.fault_watch import Extent
from allocator.state.job import Job
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod

log = structlog.get_logger()

DELETED: Final = "NPURescheduled"
PLANNED: Final = "NPUReschedulingPlanned"
HELD: Final = "NPUReschedulingHeld"
"""The reasons of the Events."""
_ACTION: Final = "Reschedule"
_NAMED: Final = 10
_REMEMBERED: Final = 100
"""So many sentences are said once on a pod: faults may come and go."""


class Announcer:
    """Says it, the same on a pod only once.

    Args:
        publish: posts an Event soon.
    """

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._said: dict[str, dict[str, None]] = {}

    def say_deletion(self, member: JobPod, sentence: str) -> None:
        """Say that a pod was deleted."""
        pod, kind = member.pod, member.fault.kind if member.fault is not None else "peer"
        log.warning(
            "deleted a pod", pod=pod.key, pod_uid=pod.uid, node=pod.spec.node_name, reason=str(kind), error=sentence
        )
        self._publish(_regarding(pod), DELETED, f"deleted, to be created anew: {sentence}", action=_ACTION)

    def say_rescheduling(self, job: Job, choice: PodChoice, why: str) -> None:
        """Say on the controller of a job which of its pods were deleted."""
        for member in choice.pods:
            self._said.pop(member.pod.uid, None)
        faults = [member.fault for member in choice.pods if member.fault is not None]
        log.warning("rescheduled a job", job=str(job.key), kind=job.kind, pods=len(choice.pods), faulty=len(faults),
                    reason=str(job_reason(faults) or "waiting"), stage=choice.stage.name, at_once=choice.at_once,
                    error=why)  # fmt: skip
        owner = choice.pods[0].pod.metadata.controller
        if owner is not None:
            about = Regarding(owner.kind, owner.name, job.key.namespace, owner.uid, owner.api_version)
            verb = "was" if len(choice.pods) == 1 else "were"
            sentence = f"{len(choice.pods)} of its pods {verb} deleted, {len(faults)} of them faulty: {why}"
            self._publish(about, DELETED, sentence, action=_ACTION)

    def plan(self, job: Job, choice: PodChoice, why: str) -> None:
        """Say which pods would be deleted."""
        names = ", ".join(member.pod.name for member in choice.pods[:_NAMED])
        more = f" and {len(choice.pods) - _NAMED} more" if len(choice.pods) > _NAMED else ""
        self._say(job, choice.pods[0].pod, PLANNED, f"dry run: of job {job.key}, {names}{more} would be deleted: {why}")

    def plan_mark(self, job: Job, pod: Pod, status: str, why: str) -> None:
        """Say that a pod would be marked as faulty for the deleting program."""
        self._say(job, pod, PLANNED, f"dry run: pod {pod.key} would be marked as {status}: {why}")

    def hold(self, job: Job, pod: Pod, why: str) -> None:
        """Say why the pods of a job with a fault are not deleted."""
        self._say(job, pod, HELD, why)

    def extent(self, before: Extent, now: Extent) -> None:
        """Log that faults reach so far that pods stay, and later the end of this."""
        if now.stopped is not None and before.stopped is None:
            log.warning("nothing is rescheduled", error=now.stopped)
        elif now.stopped is None and before.stopped is not None:
            log.info("jobs are rescheduled again")
        for zone in now.dark_zones.keys() - before.dark_zones.keys():
            log.warning("nothing is rescheduled in a zone", zone=zone[1], error=now.dark_zones[zone])

    def forget(self, is_gone: Callable[[str], bool]) -> None:
        """Forget what was said on pods that are gone, given by their uids."""
        for uid in list(filter(is_gone, self._said)):
            del self._said[uid]

    def _say(self, job: Job, pod: Pod, reason: str, sentence: str) -> None:
        said = self._said.setdefault(pod.uid, {})
        if sentence not in said:
            said[sentence] = None
            if len(said) > _REMEMBERED:
                del said[next(iter(said))]
            log.warning("a job has faulty pods", job=str(job.key), pod=pod.key, reason=reason, error=sentence)
            self._publish(_regarding(pod), reason, sentence, action=_ACTION)


def _regarding(pod: Pod) -> Regarding:
    return Regarding("Pod", pod.name, pod.metadata.namespace, pod.uid)
