"""ModelServings of Kthena: each serving group is a job. With Volcano the controller creates a PodGroup for each."""

from collections.abc import Iterator
from typing import Final, Generic

import msgspec

from ascend.jobs.creation import Controller
from ascend.jobs.kind import ONE, JobKind, JobObject, JobSpec, PodSet, Text, Workload
from ascend.jobs.marks import Position, by_label
from ascend.jobs.templates import Count, PodTemplate, T, Template
from ascend.kube.objects import KubeObject, Pod, Resource

MODEL_SERVING: Final = "ModelServing"
_PREFIX = "modelserving.volcano.sh/"
_NAME = f"{_PREFIX}name"
_GROUP = f"{_PREFIX}group-name"
_ROLE = f"{_PREFIX}role"
_ENTRY = f"{_PREFIX}entry"
_VERSION = "workload.serving.volcano.sh/v1alpha1"


class _Role(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    name: str = ""
    replicas: Count | None = None
    entry_template: T | None = None
    worker_replicas: Count | None = None
    worker_template: T | None = None


class _Group(msgspec.Struct, Generic[T], frozen=True):
    roles: list[_Role[T]] = msgspec.field(default_factory=list)


class ModelServingSpec(JobSpec[T], Generic[T], frozen=True):
    """What a ModelServing says of each of the serving groups."""

    template: _Group[T] = _Group()
    replicas: Count | None = None

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """The entry pods of each role, and the workers."""
        found = []
        for role in self.template.roles:
            number = 1 if role.replicas is None else role.replicas
            found += [
                PodSet(role.name, role.entry_template, number),
                PodSet(f"{role.name}-worker", role.worker_template, number * (role.worker_replicas or 0)),
            ]
        return tuple(found)

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods of each group."""
        for at in range(1 if self.replicas is None else self.replicas):
            group = f"{controller.name}-{at}"
            for pod_set in self.pod_sets:
                is_entry = not pod_set.name.endswith("-worker")
                labels = {_NAME: controller.name, _GROUP: group, _ROLE: pod_set.name.removesuffix("-worker")}
                labels |= {_ENTRY: "true"} if is_entry else {}
                role = f"{at}-{pod_set.part}"
                yield from controller.pods(pod_set.template, range(pod_set.pods), role=role, labels=labels)


class ModelServing(JobObject, frozen=True, kw_only=True):
    """A ModelServing."""

    spec: ModelServingSpec[Template] = ModelServingSpec()


def _position(pod: Pod) -> Position:
    labels = pod.metadata.labels
    role = labels.get(_ROLE, "").lower()
    return Position(role if labels.get(_ENTRY) == "true" else f"{role}-worker")


KIND: Final = JobKind(
    MODEL_SERVING,
    Text("ModelServing of Kthena: each group", f"label `{_GROUP}`", "`replicas` of the roles, each with its workers",
         ONE, "by role, entry pods first", "Kthena's controller"),
    by_label(_GROUP), _position, marks=(_GROUP,), owners=("workload.serving.volcano.sh ModelServing",),
    is_scaled=True,
    objects=(Resource(ModelServing, MODEL_SERVING, f"apis/{_VERSION}", "modelservings"),),
    object_name=lambda pod: pod.metadata.labels.get(_NAME),
    workloads=(Workload(MODEL_SERVING, _VERSION, ModelServingSpec[PodTemplate],
                        "in each of `replicas` groups, `replicas` of each role, each with `workerReplicas`"),),
)  # fmt: skip
