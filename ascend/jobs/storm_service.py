"""StormServices of AIBrix: each role set is a job. A role set with a scheduling strategy has a PodGroup."""

from collections.abc import Iterator
from typing import Final, Generic

import msgspec

from ascend.jobs.creation import Controller
from ascend.jobs.kind import ONE, JobKind, JobObject, JobSpec, PodSet, Text, Workload
from ascend.jobs.marks import Position, number
from ascend.jobs.templates import Count, PodTemplate, Replicas, T, Template
from ascend.kube.objects import KubeObject, Pod, Resource

STORM_SERVICE: Final = "StormService"
_SERVICE = "storm-service-name"
_SET = "roleset-name"
_ROLE = "role-name"
_INDEX = "stormservice.orchestration.aibrix.ai/role-replica-index"
_GROUP = "orchestration.aibrix.ai"
_VERSION = f"{_GROUP}/v1alpha1"


class _Role(Replicas[T], Generic[T], frozen=True):
    name: str = ""
    pod_group_size: Count | None = None

    @property
    def pods(self) -> int:
        return self.number * (self.pod_group_size or 1)


class _Roles(msgspec.Struct, Generic[T], frozen=True):
    roles: list[_Role[T]] = msgspec.field(default_factory=list)


class _Set(msgspec.Struct, Generic[T], frozen=True):
    spec: _Roles[T] = _Roles()


class StormServiceSpec(JobSpec[T], Generic[T], frozen=True):
    """What a StormService says of each of the role sets."""

    template: _Set[T] = _Set()
    replicas: Count | None = None

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """The roles; a replica of a role may have several pods."""
        return tuple(PodSet(role.name, role.template, role.pods) for role in self.template.spec.roles)

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods of each role set."""
        for at in range(1 if self.replicas is None else self.replicas):
            role_set = controller.child(_VERSION, "RoleSet", f"{controller.name}-roleset-{at}")
            for pod_set in self.pod_sets:
                labels = {_SERVICE: controller.name, _SET: role_set.name, _ROLE: pod_set.name}
                numbers = range(pod_set.pods)
                yield from role_set.pods(pod_set.template, numbers, role=pod_set.part, index=_INDEX, labels=labels)


class StormService(JobObject, frozen=True, kw_only=True):
    """A StormService."""

    spec: StormServiceSpec[Template] = StormServiceSpec()


def _find(pod: Pod) -> str | None:
    # The labels have no prefix, so that others may use them as well.
    owner = pod.metadata.controller
    is_owned = owner is not None and owner.api_version.startswith(f"{_GROUP}/")
    return (pod.metadata.labels.get(_SET) or None) if is_owned else None


def _position(pod: Pod) -> Position:
    labels = pod.metadata.labels
    return Position(labels.get(_ROLE, "").lower(), number(labels.get(_INDEX, "")))


KIND: Final = JobKind(
    STORM_SERVICE,
    Text("StormService of AIBrix: each role set", f"label `{_SET}`, and an owner of `{_GROUP}`",
         "`replicas` times `podGroupSize` of the roles", ONE, "by role, then by index", "AIBrix's controller"),
    _find, _position, owners=(f"{_GROUP} RoleSet", f"{_GROUP} PodSet"), is_scaled=True,
    objects=(Resource(StormService, STORM_SERVICE, f"apis/{_VERSION}", "stormservices"),),
    object_name=lambda pod: pod.metadata.labels.get(_SERVICE),
    workloads=(Workload(STORM_SERVICE, _VERSION, StormServiceSpec[PodTemplate],
                        "in each of `replicas` role sets, `replicas` times `podGroupSize` of each role",
                        (), "RoleSet", "-roleset-"),),
)  # fmt: skip
