"""What the controller of each kind of workload creates: the table of the kinds that ``npuctl plan`` expands.

The pods have the labels, annotations and owners by which the allocator recognizes jobs and ranks. Their names are
numbered where a controller would choose a random suffix.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from ascend.kube.job_objects import RayCluster, ray_replicas
from ascend.kube.objects import KubeObject, Metadata, OwnerReference, Pod, PodSpec
from ascend.kube.workloads import (
    BatchJob,
    BatchJobSpec,
    NetworkTopology,
    PodGroup,
    PodGroupSpec,
    StatefulSet,
    StatefulSetSpec,
)

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_KUBEFLOW: Final = "training.kubeflow.org/"
_JOB_SET: Final = "jobset.sigs.k8s.io/"
_LEADER_WORKER: Final = "leaderworkerset.sigs.k8s.io/"
_ORDINAL: Final = "apps.kubernetes.io/pod-index"


class _Template(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class _Replicas(msgspec.Struct, rename="camel"):
    template: _Template = _Template()
    replicas: _Count = 1
    min_available: _Count | None = None
    ordinals: dict[str, _Count] = {}
    name: str = ""


class _Job(msgspec.Struct, rename="camel"):
    template: _Template = _Template()
    parallelism: _Count = 1
    completions: _Count | None = None
    completion_mode: str = ""


class _JobTemplate(msgspec.Struct):
    spec: _Job
    metadata: Metadata = Metadata()


class _CronJob(msgspec.Struct, rename="camel"):
    job_template: _JobTemplate


class _ReplicatedJob(msgspec.Struct):
    name: str
    template: _JobTemplate
    replicas: _Count = 1


class _JobSet(msgspec.Struct, rename="camel"):
    replicated_jobs: list[_ReplicatedJob] = []


class _VolcanoJob(msgspec.Struct, rename="camel"):
    tasks: list[_Replicas] = []
    min_available: _Count | None = None
    network_topology: NetworkTopology | None = None


class _LeaderWorkerTemplate(msgspec.Struct, rename="camel"):
    worker_template: _Template
    leader_template: _Template | None = None
    size: _Count = 1


class _LeaderWorkerSet(msgspec.Struct, rename="camel"):
    leader_worker_template: _LeaderWorkerTemplate
    replicas: _Count = 1


class _RayHead(msgspec.Struct):
    template: _Template


class _RayWorkers(msgspec.Struct, rename="camel"):
    group_name: str
    template: _Template
    replicas: _Count | None = None
    min_replicas: _Count = 0
    max_replicas: int | None = None
    num_of_hosts: _Count = 1
    suspend: bool = False


class _RayCluster(msgspec.Struct, rename="camel"):
    head_group_spec: _RayHead
    worker_group_specs: list[_RayWorkers] = []
    enable_in_tree_autoscaling: bool = False


class _RayJob(msgspec.Struct, rename="camel"):
    ray_cluster_spec: _RayCluster | None = None
    submitter_pod_template: _Template | None = None


class _RayService(msgspec.Struct, rename="camel"):
    ray_cluster_config: _RayCluster


class Controller(NamedTuple):
    """What creates pods: the workload itself, or an object that its controller creates.

    Attributes:
        version: its ``apiVersion``.
        kind: its kind.
        namespace: its namespace.
        name: its name.
        labels: its labels; what a controller creates has none here.
        annotations: its annotations, likewise.
    """

    version: str
    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str] = _NOTHING
    annotations: Mapping[str, str] = _NOTHING

    def metadata(self, kind: str, name: str) -> Metadata:
        """Return the metadata of an object that the controller creates."""
        uid = f"{self.kind} {self.namespace}/{self.name}"
        owner = OwnerReference(self.version, self.kind, self.name, uid, controller=True)
        return Metadata(name, self.namespace, f"{kind} {self.namespace}/{name}", owner_references=(owner,))

    def child(self, version: str, kind: str, name: str) -> "Controller":
        """Return an object that the controller creates, and that creates pods."""
        return Controller(version, kind, self.namespace, name)

    def pods(
        self,
        template: _Template,
        numbers: Iterable[int],
        *,
        role: str = "",
        index: str = "",
        labels: Mapping[str, str] = _NOTHING,
        annotations: Mapping[str, str] = _NOTHING,
    ) -> Iterator[Pod]:
        """Yield a pod for each number; ``role`` is part of its name, and ``index`` the key of its number."""
        given = template.metadata
        for number in numbers:
            own = {index: str(number)} if index else {}
            metadata = structs.replace(
                self.metadata("Pod", "-".join(filter(None, (self.name, role, str(number))))),
                labels={**given.labels, **labels, **own},
                annotations={**given.annotations, **annotations, **own},
            )
            yield Pod(metadata=metadata, spec=template.spec)


def _deployment(controller: Controller, spec: _Replicas) -> Iterator[KubeObject]:
    return controller._replace(kind="ReplicaSet").pods(spec.template, range(spec.replicas))


def _stateful_set(controller: Controller, spec: _Replicas) -> Iterator[KubeObject]:
    start = spec.ordinals.get("start", 0)
    return controller.pods(spec.template, range(start, start + spec.replicas), index=_ORDINAL)


def _job(controller: Controller, spec: _Job, labels: Mapping[str, str] = _NOTHING) -> Iterator[KubeObject]:
    at_once = spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
    index = "batch.kubernetes.io/job-completion-index" if spec.completion_mode == "Indexed" else ""
    return controller.pods(spec.template, range(at_once), index=index, labels=labels)


def _owned_job(
    controller: Controller, name: str, template: _JobTemplate, labels: Mapping[str, str] = _NOTHING
) -> Iterator[KubeObject]:
    spec, given = template.spec, template.metadata
    metadata = structs.replace(
        controller.metadata("Job", name), labels=given.labels | dict(labels), annotations=given.annotations
    )
    yield BatchJob(metadata=metadata, spec=BatchJobSpec(spec.parallelism, spec.completions))
    yield from _job(controller.child("batch/v1", "Job", name), spec, labels)


def _cron_job(controller: Controller, spec: _CronJob) -> Iterator[KubeObject]:
    """One of its Jobs."""
    return _owned_job(controller, f"{controller.name}-0", spec.job_template)


def _job_set(controller: Controller, spec: _JobSet) -> Iterator[KubeObject]:
    total = sum(each.replicas for each in spec.replicated_jobs)
    for each in spec.replicated_jobs:
        job = structs.replace(each.template.spec, completion_mode=each.template.spec.completion_mode or "Indexed")
        template = structs.replace(each.template, spec=job)
        labels = {
            f"{_JOB_SET}jobset-name": controller.name,
            f"{_JOB_SET}replicatedjob-name": each.name,
            f"{_JOB_SET}replicatedjob-replicas": str(each.replicas),
            f"{_JOB_SET}global-replicas": str(total),
        }
        for number in range(each.replicas):
            name, own = f"{controller.name}-{each.name}-{number}", {f"{_JOB_SET}job-index": str(number)}
            yield from _owned_job(controller, name, template, {**labels, **own})


def _leader_worker_set(controller: Controller, spec: _LeaderWorkerSet) -> Iterator[KubeObject]:
    """A StatefulSet of the leaders, and one for the workers of each group."""
    workers = spec.leader_worker_template
    name, size = controller.name, {f"{_LEADER_WORKER}size": str(workers.size)}
    yield StatefulSet(
        metadata=controller.metadata("StatefulSet", name), spec=StatefulSetSpec(spec.replicas, "Parallel")
    )
    for group in range(spec.replicas):
        leader = f"{name}-{group}"
        labels = {
            f"{_LEADER_WORKER}name": name,
            f"{_LEADER_WORKER}group-index": str(group),
            f"{_LEADER_WORKER}group-key": leader,
        }
        yield from controller.child("apps/v1", "StatefulSet", name).pods(
            workers.leader_template or workers.worker_template,
            [group],
            index=_ORDINAL,
            labels={**labels, f"{_LEADER_WORKER}worker-index": "0"},
            annotations=size,
        )
        if workers.size > 1:
            number = StatefulSetSpec(workers.size - 1, "Parallel")
            yield StatefulSet(metadata=controller.metadata("StatefulSet", leader), spec=number)
        for worker in range(1, workers.size):
            yield from controller.child("apps/v1", "StatefulSet", leader).pods(
                workers.worker_template,
                [worker],
                index=_ORDINAL,
                labels={**labels, f"{_LEADER_WORKER}worker-index": str(worker)},
                annotations={**size, f"{_LEADER_WORKER}leader-name": leader},
            )


def _ray_cluster(controller: Controller, spec: _RayCluster) -> Iterator[KubeObject]:
    common = {"ray.io/cluster": controller.name, "ray.io/is-ray-node": "yes"}
    head = {**common, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
    yield from controller.pods(spec.head_group_spec.template, [0], role="head", labels=head)
    for group in spec.worker_group_specs:
        replicas = ray_replicas(group.replicas, group.min_replicas, group.max_replicas, suspended=group.suspend)
        numbers, role = range(replicas * group.num_of_hosts), f"{group.group_name}-worker"
        labels = {**common, "ray.io/node-type": "worker", "ray.io/group": group.group_name}
        yield from controller.pods(group.template, numbers, role=role, labels=labels)


def _ray_job(controller: Controller, spec: _RayJob) -> Iterator[KubeObject]:
    """Its cluster, unless it uses an existing one, and the pod of the Job that submits it, if that has a template."""
    if spec.ray_cluster_spec is not None:
        yield from _owned_ray_cluster(controller, spec.ray_cluster_spec)
    if spec.submitter_pod_template is not None:
        yield from _owned_job(controller, controller.name, _JobTemplate(_Job(spec.submitter_pod_template)))


def _ray_service(controller: Controller, spec: _RayService) -> Iterator[KubeObject]:
    return _owned_ray_cluster(controller, spec.ray_cluster_config)


def _owned_ray_cluster(controller: Controller, spec: _RayCluster) -> Iterator[KubeObject]:
    name = f"{controller.name}-raycluster-0"
    # KubeRay copies labels and annotations to it.
    metadata = structs.replace(
        controller.metadata("RayCluster", name),
        labels=dict(controller.labels),
        annotations=dict(controller.annotations),
    )
    made = {"metadata": msgspec.to_builtins(metadata), "spec": msgspec.to_builtins(spec)}
    yield msgspec.convert(made, RayCluster)
    yield from _ray_cluster(controller.child(controller.version, "RayCluster", name), spec)


def _kubeflow_job(controller: Controller, spec: Any) -> Iterator[KubeObject]:
    for kind, replicas in spec.replicas.items():
        role = kind.lower()
        labels = {
            f"{_KUBEFLOW}job-name": controller.name,
            f"{_KUBEFLOW}operator-name": f"{controller.kind.lower()}-controller",
            f"{_KUBEFLOW}replica-type": role,
        }
        numbers = range(replicas.replicas)
        yield from controller.pods(
            replicas.template, numbers, role=role, index=f"{_KUBEFLOW}replica-index", labels=labels
        )


def _kubeflow(field: str) -> tuple[type[Any], "Create"]:
    """The row of a job whose field has a template and a number of replicas for each type of pod."""
    spec = msgspec.defstruct("KubeflowJob", [("replicas", dict[str, _Replicas], msgspec.field(name=field))])
    return spec, _kubeflow_job


def _volcano_job(controller: Controller, spec: _VolcanoJob) -> Iterator[KubeObject]:
    minimum = spec.min_available or sum(t.replicas if t.min_available is None else t.min_available for t in spec.tasks)
    # Volcano copies labels and annotations of the job to its group.
    metadata = structs.replace(
        controller.metadata("PodGroup", controller.name),
        labels=dict(controller.labels),
        annotations=dict(controller.annotations),
    )
    yield PodGroup(metadata=metadata, spec=PodGroupSpec(minimum, spec.network_topology))
    for position, task in enumerate(spec.tasks):
        role = task.name or f"default{position}"
        own = {"volcano.sh/job-name": controller.name, "volcano.sh/task-spec": role}
        yield from controller.pods(
            task.template,
            range(task.replicas),
            role=role,
            index="volcano.sh/task-index",
            labels=own,
            annotations={**own, "scheduling.k8s.io/group-name": controller.name},
        )


Create: TypeAlias = Callable[[Controller, Any], Iterator[KubeObject]]

_RAY: Final[dict[str, tuple[type[Any], Create]]] = {
    "RayCluster": (_RayCluster, _ray_cluster),
    "RayJob": (_RayJob, _ray_job),
    "RayService": (_RayService, _ray_service),
}

KINDS: Final[dict[tuple[str, str], tuple[type[Any], Create]]] = {
    ("Deployment", "apps/v1"): (_Replicas, _deployment),
    ("ReplicaSet", "apps/v1"): (_Replicas, _deployment),
    ("StatefulSet", "apps/v1"): (_Replicas, _stateful_set),
    ("Job", "batch/v1"): (_Job, _job),
    ("CronJob", "batch/v1"): (_CronJob, _cron_job),
    ("Job", "batch.volcano.sh/v1alpha1"): (_VolcanoJob, _volcano_job),
    ("JobSet", "jobset.x-k8s.io/v1alpha2"): (_JobSet, _job_set),
    ("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1"): (_LeaderWorkerSet, _leader_worker_set),
    **{(kind, f"ray.io/{version}"): row for version in ("v1", "v1alpha1") for kind, row in _RAY.items()},
    ("PyTorchJob", "kubeflow.org/v1"): _kubeflow("pytorchReplicaSpecs"),
    ("TFJob", "kubeflow.org/v1"): _kubeflow("tfReplicaSpecs"),
    ("MPIJob", "kubeflow.org/v1"): _kubeflow("mpiReplicaSpecs"),
    ("MPIJob", "kubeflow.org/v2beta1"): _kubeflow("mpiReplicaSpecs"),
    ("PaddleJob", "kubeflow.org/v1"): _kubeflow("paddleReplicaSpecs"),
    ("AscendJob", "mindxdl.gitee.com/v1"): _kubeflow("replicaSpecs"),
}
"""The type of the ``spec`` of each kind, and the function that yields what its controller creates."""
