"""StatefulSets and Jobs, the owners in the core API: what they say of their pods, as number and time limit."""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from allocator.rules.job import JobKey
from ascend.jobs.core import INDEXED_JOB, STATEFUL_SET
from ascend.jobs.kind import JobFacts
from ascend.jobs.ray import RAY_GANG
from ascend.kube import kept
from ascend.kube.objects import Pod, unix_seconds
from ascend.kube.workloads import BatchJob, StatefulSet

SETTINGS: Final = kept.SETTINGS - {"app", "jobID", "ome.io/inferenceservice", RAY_GANG}
"""The labels and annotations that count on the pods of a job, its PodGroup and the object of its operator only.

The others are marks of other programs, too, or of one kind of object.
"""

_CORE_OWNERS: Final = {("apps/v1", "StatefulSet"): STATEFUL_SET, ("batch/v1", "Job"): INDEXED_JOB}


class Owned(NamedTuple):
    """What an owner of the core API says of its pods.

    Attributes:
        size: the desired number of pods at one time.
        is_one_by_one: a pod is created only when the one before it is ready.
        uid: its uid.
        limit_s: the time after its start at which its pods are ended; None for no limit.
        started: when it started, as the API server writes it; empty if that is unknown.
        settings: the keys of settings of its job that are written on itself, each as a label or an annotation.
        failures_left: how many more pods of a Job may fail; None if that is not limited.
        ignores_disruptions: whether a Job does not count failed pods with the condition DisruptionTarget.
    """

    size: int
    is_one_by_one: bool = False
    uid: str = ""
    limit_s: int | None = None
    started: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    failures_left: int | None = None
    ignores_disruptions: bool = False


class Owners:
    """The owners that are known.

    Attributes:
        by_key: what each of them says.
    """

    def __init__(self) -> None:
        self.by_key: dict[JobKey, Owned] = {}

    def apply(self, owner: StatefulSet | BatchJob) -> None:
        """Add or update an owner of pods."""
        metadata = owner.metadata
        written = (("label", metadata.labels), ("annotation", metadata.annotations))
        settings = tuple((what, key) for what, keys in written for key in sorted(SETTINGS.intersection(keys)))
        owned = Owned(owner.size, owner.is_one_by_one, owner.uid, settings=settings)
        if isinstance(owner, BatchJob):
            owned = owned._replace(
                limit_s=owner.spec.active_deadline_seconds,
                started=owner.status.start_time,
                failures_left=owner.failures_left,
                ignores_disruptions=owner.ignores_disruptions,
            )
        self.by_key[_key(owner)] = owned

    def delete(self, owner: StatefulSet | BatchJob) -> None:
        """Remove an owner of pods."""
        self.by_key.pop(_key(owner), None)

    def of(self, pod: Pod) -> Owned | None:
        """The facts of a pod's StatefulSet or Job; None for other controllers, or an unknown one."""
        controller, owned = pod.metadata.controller, self._named(pod)
        return owned if controller is not None and owned is not None and owned.uid == controller.uid else None

    def misplaced_settings(self, pod: Pod) -> Iterator[str]:
        """Yield a sentence for each setting on the owner of a pod; pods only have what is in their template."""
        owner, controller = self._named(pod), pod.metadata.controller  # in files objects have no uid
        if owner is None or controller is None:
            return
        own = {"label": pod.metadata.labels, "annotation": pod.metadata.annotations}
        for what, key in owner.settings:
            if key not in own[what]:
                yield (
                    f"{what} {key} on {controller.kind} {pod.metadata.namespace}/{controller.name}: settings on a "
                    f"{controller.kind} have no effect; write it in the metadata of its pod template"
                )

    def end_of(self, pod: Pod, source: JobFacts | None, now_s: float) -> float:
        """When a pod has to have ended, by ``activeDeadlineSeconds`` of the pod, its Job or its Kubeflow job.

        Args:
            pod: the pod; if it has not started yet, its limit counts from now on.
            source: what the object says from which an operator has created it.
            now_s: the time, Unix seconds.

        Returns:
            Unix seconds; infinite if there is no limit.
        """
        own_s = _end(pod.spec.active_deadline_seconds, pod.status.start_time or "", now_s)
        said = [facts for facts in (source, self.of(pod)) if facts is not None]
        return min([own_s, *(_end(facts.limit_s, facts.started, now_s) for facts in said)])

    def _named(self, pod: Pod) -> Owned | None:
        """The owner with the name of a pod's controller; it may be a former one."""
        controller = pod.metadata.controller
        kind = _CORE_OWNERS.get((controller.api_version, controller.kind)) if controller is not None else None
        if controller is None or kind is None:
            return None
        return self.by_key.get(JobKey(pod.metadata.namespace, controller.name, kind))


def _end(limit_s: int | None, started: str, now_s: float) -> float:
    if limit_s is None:
        return math.inf
    return (unix_seconds(started) or now_s) + limit_s


def _key(owner: StatefulSet | BatchJob) -> JobKey:
    # The pods of a Job without an index don't work together, however many there are.
    kind = STATEFUL_SET if isinstance(owner, StatefulSet) else INDEXED_JOB
    return JobKey(owner.metadata.namespace, owner.name, kind)
