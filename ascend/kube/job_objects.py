"""Slim types for the objects from which operators create the pods of jobs, and what the allocator reads of them.

Such an object says before its pods exist how many there will be, how many of them start together, and how the job is to
be placed. Quantities of custom resources are stored as they were written, so a number of chips may be a number or text.
"""

from typing import Any, Final

import msgspec

from ascend.chips import RESOURCE
from ascend.kube.kept import NETWORK_TOPOLOGY, short
from ascend.kube.objects import Resource
from ascend.kube.workloads import RAY_GANG, NetworkTopology, OfJob, task_minima
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of

LEADERS: Final = frozenset({"master", "chief", "launcher", "leader", "head", "headgroup"})
"""Names of parts of jobs that come first, in lower case."""


class JobPart(msgspec.Struct, frozen=True, gc=False):
    """Pods of a job that are made from one template.

    Attributes:
        name: the name of the task, replica type, group or template, in lower case.
        pods: the number of pods at one time.
        each: the number of pods of each of its Jobs, for a JobSet; 0 if the index within the part is unique.
        ranks: the number of ranks: that of the pods, or more for Jobs whose pods run one after the other.
        requests_chips: its pods request chips.
    """

    name: str
    pods: int
    each: int = 0
    ranks: int = 0
    requests_chips: bool = True


class JobFacts(msgspec.Struct, frozen=True, gc=False):
    """What an object says of its job.

    Attributes:
        parts: its parts, in the order of their ranks.
        minimum: how many pods must be placed together, as the object states; None if it does not.
        whole: the same by the rules of its own project, if nothing is stated; None if they start one by one.
        labels: the labels that decide how it is placed.
        annotations: the annotations that do.
        limit_s: the time after its start at which its operator deletes its pods; None for no limit.
        started: when it started, as its operator writes it; empty if that is unknown.
    """

    parts: tuple[JobPart, ...] = ()
    minimum: int | None = None
    whole: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    limit_s: int | None = None
    started: str = ""

    @property
    def pods_with_chips(self) -> int:
        """The number of its pods that request chips."""
        return sum(part.pods for part in self.parts if part.requests_chips)


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _Template(msgspec.Struct, frozen=True):
    """A template of pods, of which only the devices that it requests are kept."""

    spec: _PodSpec | None = None

    def __post_init__(self) -> None:
        if self.spec is not None:
            msgspec.structs.force_setattr(self, "spec", _WITH_CHIPS if self.requests_chips else None)

    @property
    def requests_chips(self) -> bool:
        spec = self.spec or _PodSpec()
        resources = (each.resources for each in (*(spec.containers or ()), *(spec.init_containers or ())))
        return any(
            str(quantity) != "0" and (name in {RESOURCE, RESOURCE_CORES} or suffix_of(name) is not None)
            for each in resources
            if each is not None
            for quantities in (each.limits, each.requests)
            if quantities
            for name, quantity in quantities.items()
        )


_WITH_CHIPS: Final = _PodSpec([_Container(_Resources({RESOURCE: "1"}))])


class _Replicas(msgspec.Struct, rename="camel", frozen=True):
    replicas: int | None = None
    template: _Template = _Template()
    name: str = ""
    group_name: str = ""
    min_replicas: int | None = None
    max_replicas: int | None = None
    suspend: bool | None = None
    num_of_hosts: int | None = None
    min_available: int | None = None

    @property
    def number(self) -> int:
        return 1 if self.replicas is None else self.replicas


class JobObject(OfJob, frozen=True, kw_only=True):
    """An object from which an operator creates the pods of a job."""

    @property
    def facts(self) -> JobFacts:
        """What it says of its job."""
        raise NotImplementedError

    def _facts(self, parts: tuple[JobPart, ...], minimum: int | None, whole: int | None) -> JobFacts:
        return JobFacts(parts, minimum, whole, self.metadata.labels, self.metadata.annotations)


class _SchedulingPolicy(msgspec.Struct, rename="camel", frozen=True):
    min_available: int | None = None


class _RunPolicy(msgspec.Struct, rename="camel", frozen=True):
    scheduling_policy: _SchedulingPolicy | None = None
    active_deadline_seconds: int | None = None


class _ElasticPolicy(msgspec.Struct, rename="camel", frozen=True):
    min_replicas: int | None = None


class _KubeflowSpec(msgspec.Struct, rename="camel", frozen=True):
    pytorch_replica_specs: dict[str, _Replicas] = {}
    tf_replica_specs: dict[str, _Replicas] = {}
    mpi_replica_specs: dict[str, _Replicas] = {}
    replica_specs: dict[str, _Replicas] = {}
    run_policy: _RunPolicy | None = None
    elastic_policy: _ElasticPolicy | None = None
    launcher_creation_policy: str = ""


class _KubeflowStatus(msgspec.Struct, rename="camel", frozen=True):
    start_time: str | None = None


class KubeflowJob(JobObject, frozen=True, kw_only=True):
    """A job of Kubeflow's training operator, or an AscendJob, whose operator was made from it.

    Its pods are created at once. With an ``elasticPolicy`` it starts with fewer workers; a launcher that waits for its
    workers is not counted.
    """

    spec: _KubeflowSpec = _KubeflowSpec()
    status: _KubeflowStatus = _KubeflowStatus()

    @property
    def facts(self) -> JobFacts:
        """What it says of its job."""
        spec = self.spec
        given = spec.pytorch_replica_specs or spec.tf_replica_specs or spec.mpi_replica_specs or spec.replica_specs
        ordered = sorted(given.items(), key=lambda each: (each[0].lower() not in LEADERS, each[0]))
        parts = tuple(_part(name, replicas) for name, replicas in ordered)
        late = {"launcher"} if spec.launcher_creation_policy == "WaitForWorkersReady" else set()
        numbers = {part.name: part.pods for part in parts if part.name not in late}
        least = spec.elastic_policy.min_replicas if spec.elastic_policy is not None else None
        if least is not None and "worker" in numbers:
            numbers["worker"] = min(numbers["worker"], least)
        run = spec.run_policy or _RunPolicy()
        policy = run.scheduling_policy or _SchedulingPolicy()
        facts = self._facts(parts, policy.min_available, sum(numbers.values()))
        return msgspec.structs.replace(facts, limit_s=run.active_deadline_seconds, started=self.status.start_time or "")


class _VolcanoJobSpec(msgspec.Struct, rename="camel", frozen=True):
    tasks: list[_Replicas] = []
    min_available: int | None = None
    network_topology: NetworkTopology | None = None


class VolcanoJob(JobObject, frozen=True, kw_only=True):
    """A Job of Volcano. Its controller creates a PodGroup, which counts first."""

    spec: _VolcanoJobSpec = _VolcanoJobSpec()

    @property
    def facts(self) -> JobFacts:
        """What it says of its job."""
        named = [_part(task.name or f"default{at}", task) for at, task in enumerate(self.spec.tasks)]
        parts = tuple(sorted(named, key=lambda part: part.name not in LEADERS))
        minima = [task.number if task.min_available is None else task.min_available for task in self.spec.tasks]
        # Its webhook replaces a missing minimum, or 0.
        minimum = self.spec.min_available or sum(minima)
        facts = self._facts(parts, self.spec.min_available or None, minimum)
        asked = {}
        if self.spec.network_topology is not None:
            asked[NETWORK_TOPOLOGY] = self.spec.network_topology.mode
        if minimum < sum(part.pods for part in parts):
            asked |= task_minima(dict(zip((part.name for part in named), minima, strict=True)), minimum)
        return msgspec.structs.replace(facts, annotations={**facts.annotations, **asked}) if asked else facts


class _JobSpec(msgspec.Struct, frozen=True):
    parallelism: int | None = None
    completions: int | None = None
    template: _Template = _Template()


class _JobTemplate(msgspec.Struct, frozen=True):
    spec: _JobSpec


class _ReplicatedJob(msgspec.Struct, frozen=True):
    name: str
    template: _JobTemplate
    replicas: int = 1


class _JobSetSpec(msgspec.Struct, rename="camel", frozen=True):
    replicated_jobs: list[_ReplicatedJob] = []


class JobSet(JobObject, frozen=True, kw_only=True):
    """A JobSet. Its pods start one by one unless a minimum is stated: some of its Jobs may wait for others."""

    spec: _JobSetSpec = _JobSetSpec()

    @property
    def facts(self) -> JobFacts:
        """What it says of its job."""
        parts = []
        for each in self.spec.replicated_jobs:
            job = each.template.spec
            parallel = 1 if job.parallelism is None else job.parallelism
            at_once, indexes = min(parallel, job.completions or parallel), job.completions or parallel
            chips = job.template.requests_chips
            ranks = each.replicas * indexes
            parts.append(JobPart(each.name.lower(), each.replicas * at_once, indexes, ranks, chips))
        return self._facts(tuple(parts), None, None)


class _GroupTemplate(msgspec.Struct, rename="camel", frozen=True):
    size: int | None = None
    leader_template: _Template | None = None
    worker_template: _Template = _Template()


class _LeaderWorkerSetSpec(msgspec.Struct, rename="camel", frozen=True):
    leader_worker_template: _GroupTemplate = _GroupTemplate()
    startup_policy: str = ""


class LeaderWorkerSet(JobObject, frozen=True, kw_only=True):
    """A LeaderWorkerSet; each of its groups is a job. With ``LeaderReady`` the workers come after their leader runs."""

    spec: _LeaderWorkerSetSpec = _LeaderWorkerSetSpec()

    @property
    def facts(self) -> JobFacts:
        """What it says of each of its groups."""
        group = self.spec.leader_worker_template
        size = 1 if group.size is None else group.size
        leader = JobPart("leader", 1, 0, 1, (group.leader_template or group.worker_template).requests_chips)
        workers = JobPart("worker", size - 1, 0, size - 1, group.worker_template.requests_chips)
        return self._facts((leader, workers), None, 1 if self.spec.startup_policy == "LeaderReady" else size)


class _RayClusterSpec(msgspec.Struct, rename="camel", frozen=True):
    head_group_spec: _Replicas = _Replicas()
    worker_group_specs: list[_Replicas] | None = None
    enable_in_tree_autoscaling: bool | None = None


class RayCluster(JobObject, frozen=True, kw_only=True):
    """A RayCluster. It works with the workers it has, so it is a gang only with KubeRay's label for gangs."""

    spec: _RayClusterSpec = _RayClusterSpec()

    @property
    def facts(self) -> JobFacts:
        """What it says of its job."""
        groups = self.spec.worker_group_specs or []
        head = JobPart("headgroup", 1, 0, 1, self.spec.head_group_spec.template.requests_chips)
        workers = [_part(each.group_name, each, _ray_workers(each, each.replicas)) for each in groups]
        whole = None
        if self.metadata.labels.get(RAY_GANG) == "true":
            scales = self.spec.enable_in_tree_autoscaling
            whole = 1 + sum(_ray_workers(each, 0 if scales else each.replicas) for each in groups)
        return self._facts((head, *workers), None, whole)


def _ray_workers(group: _Replicas, replicas: int | None) -> int:
    limits = group.min_replicas, group.max_replicas
    return ray_replicas(replicas, *limits, suspended=bool(group.suspend)) * (group.num_of_hosts or 1)


def ray_replicas(replicas: int | None, least: int | None, most: int | None, *, suspended: bool) -> int:
    """The replicas of a group of a RayCluster: KubeRay keeps to the limits, the upper one if they contradict."""
    wanted = max(replicas or 0, least or 0)
    return 0 if suspended else wanted if most is None else min(wanted, most)


def _part(name: str, replicas: _Replicas, pods: int | None = None) -> JobPart:
    pods = replicas.number if pods is None else pods
    return JobPart(short(name).lower(), pods, 0, pods, replicas.template.requests_chips)


PYTORCH_JOBS = Resource(KubeflowJob, "PyTorchJob", "apis/kubeflow.org/v1", "pytorchjobs")
TF_JOBS = Resource(KubeflowJob, "TFJob", "apis/kubeflow.org/v1", "tfjobs")
MPI_JOBS = Resource(KubeflowJob, "MPIJob", "apis/kubeflow.org/v1", "mpijobs")
MPI_JOBS_V2 = Resource(KubeflowJob, "MPIJob", "apis/kubeflow.org/v2beta1", "mpijobs")
ASCEND_JOBS = Resource(KubeflowJob, "AscendJob", "apis/mindxdl.gitee.com/v1", "ascendjobs")
VOLCANO_JOBS = Resource(VolcanoJob, "Job", "apis/batch.volcano.sh/v1alpha1", "jobs")
JOB_SETS = Resource(JobSet, "JobSet", "apis/jobset.x-k8s.io/v1alpha2", "jobsets")
LEADER_WORKER_SETS = Resource(
    LeaderWorkerSet, "LeaderWorkerSet", "apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets"
)
RAY_CLUSTERS = Resource(RayCluster, "RayCluster", "apis/ray.io/v1", "rayclusters")
