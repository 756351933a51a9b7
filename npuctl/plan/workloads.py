"""Expands workloads that were not submitted yet into the pods that their controllers would create.

The pods have the labels, annotations and owners by which the allocator recognizes jobs and ranks. Their names are
numbered where a controller would choose a random suffix.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec import structs

from allocator.rules.job import VOLCANO
from ascend.chips import RESOURCE
from ascend.kube.objects import KubeObject, Metadata, OwnerReference, Pod, PodSpec
from ascend.kube.workloads import BatchJob, BatchJobSpec, PodGroup, PodGroupSpec
from npuctl.plan.placement import UnplannedWorkload
from npuctl.reading.manifests import Named, Unsubmitted
from npuctl.reading.objects import ClusterObjects

_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=10_000)]
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_KUBEFLOW: Final = "training.kubeflow.org/"
_JOB_SET: Final = "jobset.sigs.k8s.io/"


class _Template(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class _Replicas(msgspec.Struct):
    template: _Template = _Template()
    replicas: _Count = 1
    ordinals: dict[str, _Count] = {}
    name: str = ""


class _Job(msgspec.Struct, rename="camel"):
    template: _Template = _Template()
    parallelism: _Count = 1
    completions: _Count | None = None
    completion_mode: str = ""


class _JobTemplate(msgspec.Struct):
    spec: _Job


class _ReplicatedJob(msgspec.Struct):
    name: str
    template: _JobTemplate
    replicas: _Count = 1


class _JobSet(msgspec.Struct, rename="camel"):
    replicated_jobs: list[_ReplicatedJob] = []


class _VolcanoJob(msgspec.Struct, rename="camel"):
    tasks: list[_Replicas] = []
    min_available: _Count | None = None


class _Controller(NamedTuple):
    """What creates pods: the workload itself, or an object that its controller creates."""

    version: str
    kind: str
    namespace: str
    name: str

    def metadata(self, kind: str, name: str) -> Metadata:
        """Return the metadata of an object that the controller creates."""
        owner = OwnerReference(
            self.version, self.kind, self.name, f"{self.kind} {self.namespace}/{self.name}", controller=True
        )
        return Metadata(name, self.namespace, f"{kind} {self.namespace}/{name}", owner_references=[owner])

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


def _deployment(controller: _Controller, spec: _Replicas) -> Iterator[KubeObject]:
    return controller._replace(kind="ReplicaSet").pods(spec.template, range(spec.replicas))


def _stateful_set(controller: _Controller, spec: _Replicas) -> Iterator[KubeObject]:
    start = spec.ordinals.get("start", 0)
    return controller.pods(spec.template, range(start, start + spec.replicas), index="apps.kubernetes.io/pod-index")


def _job(controller: _Controller, spec: _Job, labels: Mapping[str, str] = _NOTHING) -> Iterator[KubeObject]:
    at_once = spec.parallelism if spec.completions is None else min(spec.parallelism, spec.completions)
    index = "batch.kubernetes.io/job-completion-index" if spec.completion_mode == "Indexed" else ""
    return controller.pods(spec.template, range(at_once), index=index, labels=labels)


def _job_set(controller: _Controller, spec: _JobSet) -> Iterator[KubeObject]:
    total = sum(each.replicas for each in spec.replicated_jobs)
    for each in spec.replicated_jobs:
        job = structs.replace(each.template.spec, completion_mode=each.template.spec.completion_mode or "Indexed")
        labels = {
            f"{_JOB_SET}jobset-name": controller.name,
            f"{_JOB_SET}replicatedjob-name": each.name,
            f"{_JOB_SET}replicatedjob-replicas": str(each.replicas),
            f"{_JOB_SET}global-replicas": str(total),
        }
        for number in range(each.replicas):
            child = _Controller("batch/v1", "Job", controller.namespace, f"{controller.name}-{each.name}-{number}")
            size = BatchJobSpec(job.parallelism, job.completions)
            yield BatchJob(metadata=controller.metadata("Job", child.name), spec=size)
            yield from _job(child, job, labels)


def _kubeflow_job(controller: _Controller, spec: Any) -> Iterator[KubeObject]:
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


def _kubeflow(field: str) -> type[msgspec.Struct]:
    return msgspec.defstruct("KubeflowJob", [("replicas", dict[str, _Replicas], msgspec.field(name=field))])


def _volcano_job(controller: _Controller, spec: _VolcanoJob) -> Iterator[KubeObject]:
    minimum = sum(task.replicas for task in spec.tasks) if spec.min_available is None else spec.min_available
    yield PodGroup(metadata=controller.metadata("PodGroup", controller.name), spec=PodGroupSpec(minimum))
    group = {"scheduling.k8s.io/group-name": controller.name}
    for position, task in enumerate(spec.tasks):
        role, numbers = task.name or f"default{position}", range(task.replicas)
        yield from controller.pods(task.template, numbers, role=role, index="volcano.sh/task-index", annotations=group)


_KINDS: Final[dict[tuple[str, str], tuple[type[Any], Any]]] = {
    ("Deployment", "apps/v1"): (_Replicas, _deployment),
    ("ReplicaSet", "apps/v1"): (_Replicas, _deployment),
    ("StatefulSet", "apps/v1"): (_Replicas, _stateful_set),
    ("Job", "batch/v1"): (_Job, _job),
    ("Job", "batch.volcano.sh/v1alpha1"): (_VolcanoJob, _volcano_job),
    ("JobSet", "jobset.x-k8s.io/v1alpha2"): (_JobSet, _job_set),
    ("PyTorchJob", "kubeflow.org/v1"): (_kubeflow("pytorchReplicaSpecs"), _kubeflow_job),
    ("TFJob", "kubeflow.org/v1"): (_kubeflow("tfReplicaSpecs"), _kubeflow_job),
    ("MPIJob", "kubeflow.org/v1"): (_kubeflow("mpiReplicaSpecs"), _kubeflow_job),
    ("MPIJob", "kubeflow.org/v2beta1"): (_kubeflow("mpiReplicaSpecs"), _kubeflow_job),
}
"""The type of the ``spec`` of each kind, and the function that yields what its controller creates."""


class Expansion(NamedTuple):
    """The objects with the pods of workloads.

    Attributes:
        objects: all objects.
        unplanned: the workloads that request chips and could not be expanded.
        without_chips: the workloads whose pods request no chips.
        kinds: the number of expanded workloads by kind.
    """

    objects: ClusterObjects
    unplanned: tuple[UnplannedWorkload, ...]
    without_chips: tuple[str, ...]
    kinds: Counter[str]


def expand(workloads: Iterable[Unsubmitted], objects: ClusterObjects) -> Expansion:
    """Add the pods of workloads to the objects, unless one of the objects is already owned by the workload.

    Raises:
        InvalidValue: a workload is invalid; the message has file, document number and field.
    """
    owners = _owners(objects.pods)
    # The name of a Deployment's ReplicaSet is the Deployment's with a hash.
    owners |= {(space, "Deployment", name.rpartition("-")[0]) for space, kind, name in owners if kind == "ReplicaSet"}
    made: list[KubeObject] = []
    taken = {pod.key for pod in objects.pods}
    unplanned, without_chips, kinds = [], [], Counter[str]()
    for each in workloads:
        kind, requests_chips = each.origin.kind, _requests_chips(each.manifest, set())
        if (kind, each.version) not in _KINDS:
            if requests_chips:
                named = each.origin.convert(each.manifest, Named).metadata
                message = "npuctl plan does not expand this kind"
                unplanned.append(UnplannedWorkload(kind, named.namespace, named.name, message))
            continue
        kinds[kind] += 1
        spec, create = _KINDS[kind, each.version]
        manifest = each.origin.convert(each.manifest, msgspec.defstruct("Manifest", [("spec", spec)], bases=(Named,)))
        namespace, name = manifest.metadata.namespace, manifest.metadata.name
        if (namespace, kind, name) in owners:
            continue
        if not requests_chips:
            without_chips.append(f"{kind} {namespace}/{name}")
        elif _is_suspended(each.manifest["spec"]):
            message = "it is suspended, so its controller creates no pods"
            unplanned.append(UnplannedWorkload(kind, namespace, name, message))
        else:
            pods = list(create(_Controller(each.version, kind, namespace, name), manifest.spec))
            if not owners.isdisjoint(_owners(pods)):
                continue  # the objects have pods that its controller created through another workload, such as a Job
            for created in pods:
                made.append(_renamed(created, kind) if created.key in taken and isinstance(created, Pod) else created)
                taken.add(made[-1].key)
    groups = [each for each in made if isinstance(each, PodGroup)]
    return Expansion(objects.plus(made, {VOLCANO: groups}), tuple(unplanned), tuple(without_chips), kinds)


def _owners(objects: Iterable[KubeObject]) -> set[tuple[str, str, str]]:
    """Return namespace, kind and name of the controllers of these objects."""
    controllers = ((each.metadata.namespace, each.metadata.controller) for each in objects)
    return {(namespace, owner.kind, owner.name) for namespace, owner in controllers if owner is not None}


def _renamed(pod: Pod, kind: str) -> Pod:
    """Return a pod whose name another pod has already, with the kind of its workload before its name."""
    name = f"{kind.lower()}-{pod.name}"
    return structs.replace(pod, metadata=structs.replace(pod.metadata, name=name, uid=f"{kind} {pod.uid}"))


def _is_suspended(spec: dict[str, Any]) -> bool:
    return any(isinstance(each, dict) and each.get("suspend") is True for each in (spec, spec.get("runPolicy")))


def _requests_chips(value: Any, seen: set[int]) -> bool:
    """Whether a container somewhere in an object requests chips or vNPUs."""
    if not isinstance(value, dict | list) or id(value) in seen:
        return False
    seen.add(id(value))
    if isinstance(value, list):
        return any(_requests_chips(each, seen) for each in value)
    return any(
        _requests_chips(each, seen) or (str(key).startswith(RESOURCE) and isinstance(each, str) and each != "0")
        for key, each in value.items()
    )
