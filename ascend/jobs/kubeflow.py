"""The jobs of Kubeflow's training operator, and the AscendJob, whose operator was made from it.

Their pods are created at once.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Generic

import msgspec

from ascend.errors import InvalidValue
from ascend.grammar import a
from ascend.jobs.creation import Controller
from ascend.jobs.kind import (
    ALL,
    LEADERS,
    OF_OBJECT,
    ONE,
    VOLCANO_SCHEDULER,
    JobFacts,
    JobKind,
    JobObject,
    JobSpec,
    PodSet,
    Text,
    Workload,
)
from ascend.jobs.marks import Position, by_label, number
from ascend.jobs.templates import PodTemplate, Replicas, T, Template
from ascend.kube.kept import short
from ascend.kube.objects import KubeObject, Pod, Resource

ASCEND_JOB: Final = "AscendJob"
KUBEFLOW: Final = "kubeflow job"
_PREFIX = "training.kubeflow.org/"
OPERATOR: Final = f"{_PREFIX}operator-name"
"""A pod label: an operator builds the rank table of the pod's job (docs/spec/scheduling.md#ranks)."""
_NAME = f"{_PREFIX}job-name"
_TYPE = f"{_PREFIX}replica-type"
_INDEX = f"{_PREFIX}replica-index"
_DEFAULT_SCHEDULER = "default-scheduler"


class _SchedulingPolicy(msgspec.Struct, rename="camel", frozen=True):
    min_available: int | None = None


class _RunPolicy(msgspec.Struct, rename="camel", frozen=True):
    scheduling_policy: _SchedulingPolicy | None = None
    active_deadline_seconds: int | None = None


class _ElasticPolicy(msgspec.Struct, rename="camel", frozen=True):
    min_replicas: int | None = None


class KubeflowSpec(JobSpec[T], Generic[T], frozen=True):
    """The ``spec`` of any of the jobs: only the field of its kind is there."""

    pytorch_replica_specs: dict[str, Replicas[T]] = msgspec.field(default_factory=dict)
    tf_replica_specs: dict[str, Replicas[T]] = msgspec.field(default_factory=dict)
    mpi_replica_specs: dict[str, Replicas[T]] = msgspec.field(default_factory=dict)
    paddle_replica_specs: dict[str, Replicas[T]] = msgspec.field(default_factory=dict)
    replica_specs: dict[str, Replicas[T]] = msgspec.field(default_factory=dict)
    run_policy: _RunPolicy | None = None
    elastic_policy: _ElasticPolicy | None = None
    launcher_creation_policy: str = ""

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """Its replica types: masters first."""
        given = (
            self.pytorch_replica_specs
            or self.tf_replica_specs
            or self.mpi_replica_specs
            or self.paddle_replica_specs
            or self.replica_specs
        )
        ordered = sorted(given.items(), key=lambda item: (item[0].lower() not in LEADERS, item[0]))
        return tuple(PodSet(name, replicas.template, replicas.number) for name, replicas in ordered)

    @property
    def minimum(self) -> int | None:
        """What its policy states."""
        policy = self.run_policy.scheduling_policy if self.run_policy is not None else None
        return policy.min_available if policy is not None else None

    def whole(self, _labels: Mapping[str, str]) -> int | None:
        """All pods; an elastic job starts with fewer workers, and a launcher that waits for workers is not counted."""
        late = {"launcher"} if self.launcher_creation_policy == "WaitForWorkersReady" else set()
        numbers = {pod_set.part: pod_set.pods for pod_set in self.pod_sets if pod_set.part not in late}
        least = self.elastic_policy.min_replicas if self.elastic_policy is not None else None
        if least is not None and "worker" in numbers:
            numbers["worker"] = min(numbers["worker"], least)
        return sum(numbers.values())

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods; a group that the operator may create is not assumed.

        Raises:
            InvalidValue: the field of its kind has no templates.
        """
        prefix = controller.kind.removesuffix("Job").lower()
        if not getattr(self, f"{prefix}_replica_specs", self.replica_specs):
            field = "replicaSpecs" if controller.kind == ASCEND_JOB else f"{prefix}ReplicaSpecs"
            raise InvalidValue(f"{a(controller.kind)} has the templates of its pods in {field}, and there are none")
        for pod_set in self.pod_sets:
            role = pod_set.part
            labels = {_NAME: controller.name, OPERATOR: f"{controller.kind.lower()}-controller", _TYPE: role}
            yield from controller.pods(pod_set.template, range(pod_set.pods), role=role, index=_INDEX, labels=labels)


class AscendSpec(KubeflowSpec[T], Generic[T], frozen=True):
    """The ``spec`` of an AscendJob."""

    scheduler_name: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "scheduler_name", short(self.scheduler_name))

    @property
    def schedulers(self) -> set[str]:
        """The schedulers of its pods, as the operator sets them.

        A name in a template counts. If no template has one, that of the job counts, or Volcano. If only some have one,
        the operator leaves the others to the default scheduler.
        """
        named = {pod_set.scheduler for pod_set in self.pod_sets}
        if named <= {""}:
            return {self.scheduler_name or VOLCANO_SCHEDULER}
        return {name or _DEFAULT_SCHEDULER for name in named}


class _Status(msgspec.Struct, rename="camel", frozen=True):
    start_time: str | None = None


class KubeflowJob(JobObject, frozen=True, kw_only=True):
    """A job of Kubeflow's training operator."""

    spec: KubeflowSpec[Template] = KubeflowSpec()
    status: _Status = _Status()

    @property
    def facts(self) -> JobFacts:
        """The facts about the job that the object states."""
        limit_s = self.spec.run_policy.active_deadline_seconds if self.spec.run_policy is not None else None
        return msgspec.structs.replace(super().facts, limit_s=limit_s, started=self.status.start_time or "")


class AscendJob(KubeflowJob, frozen=True, kw_only=True):
    """MindCluster's job."""

    spec: AscendSpec[Template] = AscendSpec()


def _by_operator(kind: str) -> Callable[[Pod], str | None]:
    """Finds the job if it is of this kind."""
    operators = {f"{kind.lower()}-controller", *(("mpi-operator",) if kind == "MPIJob" else ())}

    def find(pod: Pod) -> str | None:
        labels, owner = pod.metadata.labels, pod.metadata.controller
        is_owned = owner is not None and owner.kind == kind
        if is_owned or labels.get(OPERATOR) in operators:
            return labels.get(_NAME) or (owner.name if is_owned and owner is not None else None)
        return None

    return find


def _position(pod: Pod) -> Position:
    labels = pod.metadata.labels
    part = labels.get(_TYPE) or labels.get(f"{_PREFIX}job-role", "")
    return Position(part.lower(), number(labels.get(_INDEX, "")))


_PODS = "`replicas` of each type; a group that the operator may create is not assumed"


def _kind(
    name: str,
    minimum: str,
    ranks: str,
    owner: str = "the training operator, by `restartPolicy`",
    *,
    versions: tuple[str, ...] = ("kubeflow.org/v1",),
    job: type[KubeflowJob] = KubeflowJob,
    short_names: tuple[str, ...] = (),
) -> JobKind:
    spec = AscendSpec[PodTemplate] if job is AscendJob else KubeflowSpec[PodTemplate]
    return JobKind(
        name,
        Text(name, f"label `{OPERATOR}: {name.lower()}-controller`, or its owner", OF_OBJECT,
             f"`runPolicy.schedulingPolicy.minAvailable`, else {minimum}", ranks, owner),
        _by_operator(name), _position, marks=(_NAME, OPERATOR), is_enqueued=True,
        owners=(f"{versions[0].partition('/')[0]} {name}",),
        objects=tuple(Resource(job, name, f"apis/{version}", f"{name.lower()}s") for version in versions),
        workloads=tuple(Workload(name, version, spec, _PODS, short_names) for version in versions),
    )  # fmt: skip


_MASTER_FIRST = "master first, then workers by index"

# fmt: off
KINDS: Final = (
    _kind(ASCEND_JOB, ALL, _MASTER_FIRST, "the ascend-operator", versions=("mindxdl.gitee.com/v1",), job=AscendJob,
          short_names=("acjob",)),
    _kind("PyTorchJob", f"{ALL}, or `elasticPolicy.minReplicas` of its workers", _MASTER_FIRST),
    _kind("TFJob", ALL, "chief or master first, then evaluators, ps and workers by index"),
    _kind("MPIJob", f"{ALL}; without a launcher that waits for its workers",
          "the launcher if it requests chips, then workers by index",
          versions=("kubeflow.org/v1", "kubeflow.org/v2beta1")),
    _kind("PaddleJob", ALL, _MASTER_FIRST),
    JobKind(
        KUBEFLOW,
        Text("another job of Kubeflow", f"label `{_NAME}`", "unknown", ONE,
             "master first, then by replica type and index", "the training operator, by `restartPolicy`"),
        by_label(_NAME), _position, marks=(_NAME,),
    ),
)
# fmt: on
