"""The kinds of Kubernetes itself, by the owners of pods: Jobs, StatefulSets, Deployments; and pods by themselves."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Generic, TypeAlias

import msgspec
from msgspec import structs

from ascend.errors import InvalidValue
from ascend.jobs.creation import MOST_PODS, NOTHING, Controller
from ascend.jobs.kind import ALONE, BINDINGS, ONE, JobKind, Text, Workload
from ascend.jobs.marks import COMPLETION_INDEX, ORDINAL, by_owner
from ascend.jobs.templates import PodTemplate, T
from ascend.kube.kept import settings_among
from ascend.kube.objects import KubeObject, Metadata, Pod
from ascend.kube.workloads import BatchJob, BatchJobSpec, StatefulSet, StatefulSetSpec

INDEXED_JOB: Final = "Indexed Job"
JOB: Final = "Job"
STATEFUL_SET: Final = "StatefulSet"
SINGLE: Final = "Pod"
_NO_JOBS = frozenset({"DaemonSet", "Node"})
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_PODS)]


class BatchJobTemplate(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    """What creates the pods of a Job."""

    template: T | None = None
    parallelism: _Count | None = None
    completions: _Count | None = None
    completion_mode: str = ""

    @property
    def at_once(self) -> int:
        """The number of pods at one time."""
        parallelism = 1 if self.parallelism is None else self.parallelism
        return parallelism if self.completions is None else min(parallelism, self.completions)

    def create(
        self, controller: Controller, labels: Mapping[str, str] = NOTHING, mode: str = ""
    ) -> Iterator[KubeObject]:
        """Yield its pods; ``mode`` counts if it has no completion mode."""
        index = COMPLETION_INDEX if (self.completion_mode or mode) == "Indexed" else ""
        return controller.pods(self.template, range(self.at_once), index=index, labels=labels)


class _JobSpec(BatchJobTemplate[PodTemplate], frozen=True):
    template: PodTemplate = PodTemplate()


class JobTemplate(msgspec.Struct, Generic[T], frozen=True):
    """A template of Jobs."""

    spec: BatchJobTemplate[T]
    metadata: Metadata = Metadata()

    def __post_init__(self) -> None:
        given = self.metadata
        kept = Metadata(labels=settings_among(given.labels), annotations=settings_among(given.annotations))
        structs.force_setattr(self, "metadata", kept)

    def create(
        self, controller: Controller, name: str, labels: Mapping[str, str] = NOTHING, mode: str = ""
    ) -> Iterator[KubeObject]:
        """Yield the Job of this name, and its pods with these labels."""
        metadata = structs.replace(
            controller.metadata("Job", name),
            labels=self.metadata.labels | dict(labels),
            annotations=self.metadata.annotations,
        )
        parallelism = 1 if self.spec.parallelism is None else self.spec.parallelism
        yield BatchJob(metadata=metadata, spec=BatchJobSpec(parallelism, self.spec.completions))
        yield from self.spec.create(controller.child("batch/v1", "Job", name), labels, mode)


class _CronJobSpec(msgspec.Struct, rename="camel"):
    job_template: JobTemplate[PodTemplate]

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield one of its Jobs."""
        return self.job_template.create(controller, f"{controller.name}-0")


class _DeploymentSpec(msgspec.Struct):
    template: PodTemplate = PodTemplate()
    replicas: _Count = 1

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods of its ReplicaSet."""
        return controller._replace(kind="ReplicaSet").pods(self.template, range(self.replicas))


class _StatefulSetSpec(_DeploymentSpec):
    ordinals: dict[str, _Count] = {}

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield its pods."""
        start = self.ordinals.get("start", 0)
        return controller.pods(self.template, range(start, start + self.replicas), index=ORDINAL)


def replicas_of(
    controller: Controller, kind: str, name: str, template: PodTemplate, number: int, *, policy: str = "Parallel"
) -> Iterator[KubeObject]:
    """Yield the pods of a StatefulSet or a Deployment of this name that the controller creates, and the StatefulSet.

    Raises:
        InvalidValue: the kind is another one.
    """
    if kind == "Deployment":
        yield from controller.child("apps/v1", "ReplicaSet", name).pods(template, range(number))
    elif kind == STATEFUL_SET:
        yield StatefulSet(metadata=controller.metadata(kind, name), spec=StatefulSetSpec(number, policy))
        yield from controller.child("apps/v1", kind, name).pods(template, range(number), index=ORDINAL)
    else:
        raise InvalidValue(f"{name}: npuctl plan does not expand {kind} there")


def _indexed_job(pod: Pod) -> str | None:
    metadata = pod.metadata
    has_index = COMPLETION_INDEX in metadata.labels or COMPLETION_INDEX in metadata.annotations
    return by_owner(JOB)(pod) if has_index else None


def _other_owner(pod: Pod) -> str | None:
    owner = pod.metadata.controller
    return None if owner is None or owner.kind in _NO_JOBS else owner.name


_REPLICAS = "`replicas`"

# fmt: off
KINDS: Final = (
    JobKind(
        INDEXED_JOB,
        Text("Indexed Job", f"its owner, a Job, and label `{COMPLETION_INDEX}`",
             "`parallelism`, at most `completions`", ONE, "the completion index", "the Job, by `backoffLimit`"),
        _indexed_job, owners=("batch Job",),
        workloads=(
            Workload("Job", "batch/v1", _JobSpec,
                     "`parallelism`, at most `completions`; with `completionMode: Indexed` they have their index"),
            Workload("CronJob", "batch/v1", _CronJobSpec, "those of one of its Jobs", ("cj",), "Job"),
        ),
    ),
    JobKind(
        JOB, Text("Job without an index", "its owner, a Job", ALONE, ONE, BINDINGS, "the Job, by `backoffLimit`"),
        by_owner(JOB), owners=("batch Job",), is_alone=True,
    ),
    JobKind(
        STATEFUL_SET,
        Text("StatefulSet", "its owner, a StatefulSet", _REPLICAS, "1; a minimum needs `podManagementPolicy: Parallel`",
             "the ordinal", "the StatefulSet"),
        by_owner(STATEFUL_SET), owners=("apps StatefulSet",), is_scaled=True,
        workloads=(Workload(STATEFUL_SET, "apps/v1", _StatefulSetSpec, _REPLICAS, ("sts",)),),
    ),
    JobKind(
        "ReplicaSet",
        Text("Deployment, ReplicaSet", "its owner, a ReplicaSet", ALONE, ONE, BINDINGS, "the ReplicaSet"),
        by_owner("ReplicaSet"), owners=("apps ReplicaSet",), is_alone=True,
        workloads=(
            Workload("Deployment", "apps/v1", _DeploymentSpec, _REPLICAS, ("deploy",), "ReplicaSet"),
            Workload("ReplicaSet", "apps/v1", _DeploymentSpec, _REPLICAS, ("rs",)),
        ),
    ),
    JobKind(
        "ReplicationController",
        Text("ReplicationController", "its owner, a ReplicationController", ALONE, ONE, BINDINGS,
             "the ReplicationController"),
        by_owner("ReplicationController"), owners=("v1 ReplicationController",), is_alone=True,
    ),
    JobKind(
        "", Text("any other owner", "its owner, unless that is a DaemonSet or a Node", ALONE, ONE, BINDINGS,
                 "its owner"),
        _other_owner, is_alone=True,
    ),
    JobKind(
        SINGLE, Text("a pod without an owner", "none of the above", "1", ONE, "0", "whoever created it"),
        lambda pod: pod.metadata.name, is_alone=True,
    ),
)
"""From the most specific to the most general; the kind of the second to last is that of the owner."""
# fmt: on
