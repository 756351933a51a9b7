"""Jobs of Volcano. The controller creates a PodGroup, which counts first."""

from collections.abc import Iterator, Mapping
from typing import Final, Generic

import msgspec

from ascend.jobs.creation import Controller
from ascend.jobs.kind import (
    ALL,
    LEADERS,
    VOLCANO_SCHEDULER,
    JobKind,
    JobObject,
    JobSpec,
    PodSet,
    Text,
    Workload,
)
from ascend.jobs.marks import VOLCANO_INDEX, VOLCANO_TASK, by_owner
from ascend.jobs.pod_groups import VOLCANO_ANNOTATIONS
from ascend.jobs.templates import Count, PodTemplate, Replicas, T, Template
from ascend.kube.kept import short
from ascend.kube.objects import KubeObject, Resource
from ascend.kube.workloads import NetworkTopology, PartOfGroup, PodGroup, PodGroupSpec, task_minima, topologies

VOLCANO_JOB: Final = "Job.batch.volcano.sh"
_VERSION = "batch.volcano.sh/v1alpha1"


class _Task(Replicas[T], Generic[T], frozen=True):
    name: str = ""
    min_available: Count | None = None
    partition_policy: PartOfGroup | None = None


class VolcanoSpec(JobSpec[T], Generic[T], frozen=True):
    """The ``spec`` of a Job of Volcano."""

    tasks: list[_Task[T]] = msgspec.field(default_factory=list)
    min_available: Count | None = None
    network_topology: NetworkTopology | None = None
    scheduler_name: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scheduler_name", short(self.scheduler_name))

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """Its tasks: masters and leaders first."""
        named = (PodSet(name, task.template, task.number) for name, task in self._named)
        return tuple(sorted(named, key=lambda pod_set: pod_set.part not in LEADERS))

    @property
    def minimum(self) -> int | None:
        """What it states."""
        return self.min_available or None

    def whole(self, _labels: Mapping[str, str]) -> int:
        """The sum of the minima of the tasks, with which the webhook of Volcano replaces a missing minimum or 0."""
        return self.min_available or sum(self._minima)

    @property
    def asked(self) -> dict[str, str]:
        """The minima of its tasks, and its network topology."""
        partitions = [task.partition_policy for task in self.tasks if task.partition_policy is not None]
        asked = topologies(self.network_topology, partitions)
        minimum = self.whole({})
        if minimum < sum(task.number for task in self.tasks):
            asked |= task_minima(
                dict(zip((short(name).lower() for name, _ in self._named), self._minima, strict=True)), minimum
            )
        return asked

    @property
    def schedulers(self) -> set[str]:
        """The schedulers of its pods: a name in a template counts before that of the job."""
        own = self.scheduler_name or VOLCANO_SCHEDULER
        return {pod_set.scheduler or own for pod_set in self.pod_sets} or {own}

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield its PodGroup and its pods."""
        # Volcano copies labels and annotations of the job to its group.
        partitions = tuple(task.partition_policy for task in self.tasks if task.partition_policy is not None)
        group = PodGroupSpec(self.whole({}), self.network_topology, sub_group_policy=partitions)
        yield PodGroup(metadata=controller.metadata_with_labels("PodGroup", controller.name), spec=group)
        for role, task in self._named:
            own = {"volcano.sh/job-name": controller.name, VOLCANO_TASK: role}
            yield from controller.pods(
                task.template,
                range(task.number),
                role=role,
                index=VOLCANO_INDEX,
                labels=own,
                annotations={**own, VOLCANO_ANNOTATIONS[0]: controller.name},
            )

    @property
    def _named(self) -> list[tuple[str, _Task[T]]]:
        return [(task.name or f"default{at}", task) for at, task in enumerate(self.tasks)]

    @property
    def _minima(self) -> list[int]:
        return [task.number if task.min_available is None else task.min_available for task in self.tasks]


class VolcanoJob(JobObject, frozen=True, kw_only=True):
    """A Job of Volcano."""

    spec: VolcanoSpec[Template] = VolcanoSpec()


KIND: Final = JobKind(
    VOLCANO_JOB,
    Text("vcjob", f"its owner, a Job of `{_VERSION}`; normally its PodGroup", "the replicas of its tasks",
         f"`minAvailable`, else those of its tasks, else {ALL}",
         "master or leader task first, then the tasks in their order, each by index",
         "Volcano's controller, by the `policies` of the job"),
    by_owner("Job", "batch.volcano.sh/"), owners=("batch.volcano.sh Job",), is_enqueued=True,
    objects=(Resource(VolcanoJob, "Job", f"apis/{_VERSION}", "jobs"),),
    workloads=(Workload("Job", _VERSION, VolcanoSpec[PodTemplate], "`replicas` of each task, as a gang of "
                        "`minAvailable` (else the minima of the tasks, all by default)", ("vj", "vcjob")),),
)  # fmt: skip
