"""JobSets. Their pods start one by one unless a minimum is stated: some of the Jobs may wait for others."""

from collections.abc import Iterator
from typing import Final, Generic

import msgspec

from ascend.jobs.core import JobTemplate
from ascend.jobs.creation import Controller
from ascend.jobs.kind import ONE, JobKind, JobObject, JobSpec, PodSet, Text, Workload
from ascend.jobs.marks import COMPLETION_INDEX, Position, by_label, index_of, number
from ascend.jobs.templates import Count, PodTemplate, T, Template
from ascend.kube.containers import INDEX_VARIABLES
from ascend.kube.objects import KubeObject, Pod, Resource

JOB_SET: Final = "JobSet"
_PREFIX = "jobset.sigs.k8s.io/"
NAME: Final = f"{_PREFIX}jobset-name"
_JOBS = f"{_PREFIX}replicatedjob-name"
JOBS_ALIKE: Final = f"{_PREFIX}replicatedjob-replicas"
"""A pod label: the number of Jobs of the pod's template."""
_ALL_JOBS = f"{_PREFIX}global-replicas"
_JOB_INDEX = f"{_PREFIX}job-index"


class ReplicatedJob(msgspec.Struct, Generic[T], frozen=True):
    """Jobs that are made from one template."""

    name: str
    template: JobTemplate[T]
    replicas: Count = 1


class JobSetSpec(JobSpec[T], Generic[T], frozen=True):
    """The ``spec`` of a JobSet."""

    replicated_jobs: list[ReplicatedJob[T]] = msgspec.field(default_factory=list)

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """A set for the Jobs of each template; some of the pods of a Job may run after others."""
        found = []
        for alike in self.replicated_jobs:
            job = alike.template.spec
            indexes = job.completions or (1 if job.parallelism is None else job.parallelism)
            ranks = alike.replicas * indexes
            found.append(PodSet(alike.name, job.template, alike.replicas * job.at_once, indexes, ranks))
        return tuple(found)

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the Jobs, indexed unless the template says otherwise, and the pods."""
        total = sum(alike.replicas for alike in self.replicated_jobs)
        for alike in self.replicated_jobs:
            labels = {
                NAME: controller.name,
                _JOBS: alike.name,
                JOBS_ALIKE: str(alike.replicas),
                _ALL_JOBS: str(total),
            }
            for at in range(alike.replicas):
                name = f"{controller.name}-{alike.name}-{at}"
                yield from alike.template.create(controller, name, {**labels, _JOB_INDEX: str(at)}, mode="Indexed")


class JobSet(JobObject, frozen=True, kw_only=True):
    """A JobSet."""

    spec: JobSetSpec[Template] = JobSetSpec()


def _position(pod: Pod) -> Position:
    labels = pod.metadata.labels
    outer = number(labels.get(_JOB_INDEX, "")) or 0
    index = index_of(pod, (COMPLETION_INDEX,), INDEX_VARIABLES[1:])
    # The index within the only Job is that within the JobSet.
    own = index if labels.get(_ALL_JOBS, "1") == "1" else None
    return Position(labels.get(_JOBS, "").lower(), index, outer, own)


_VERSION = "jobset.x-k8s.io/v1alpha2"

KIND: Final = JobKind(
    JOB_SET,
    Text("JobSet", f"label `{NAME}`", "`parallelism` times `replicas` of its templates", ONE,
         "by template, then by Job, then by completion index", "its Jobs; the JobSet itself by `failurePolicy`"),
    by_label(NAME), _position, marks=(NAME,), objects=(Resource(JobSet, JOB_SET, f"apis/{_VERSION}", "jobsets"),),
    workloads=(Workload(JOB_SET, _VERSION, JobSetSpec[PodTemplate], "those of each Job"),),
)  # fmt: skip
