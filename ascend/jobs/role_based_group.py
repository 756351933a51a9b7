"""RoleBasedGroups: each role is a StatefulSet, a Deployment or a LeaderWorkerSet, and its pods are a job of that."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from ascend.errors import InvalidValue
from ascend.jobs.core import replicas_of
from ascend.jobs.creation import Controller
from ascend.jobs.kind import Workload, as_watched
from ascend.jobs.leader_worker_set import LEADER_WORKER_SET, LeaderWorkerGroup, LeaderWorkerSet, LeaderWorkerSpec
from ascend.jobs.pod_groups import VOLCANO_ANNOTATIONS
from ascend.jobs.templates import Count, PodTemplate, Replicas
from ascend.kube.objects import KubeObject, Pod
from ascend.kube.workloads import PodGroup, PodGroupSpec

_PREFIX = "rolebasedgroup.workloads.x-k8s.io/"


class _Workload(msgspec.Struct, frozen=True):
    kind: str = "StatefulSet"


class _Size(msgspec.Struct, frozen=True):
    size: Count = 1


class _Template(msgspec.Struct, frozen=True):
    name: str
    template: PodTemplate


class _Reference(msgspec.Struct, frozen=True):
    name: str


class _Role(Replicas[PodTemplate], rename="camel", frozen=True, kw_only=True):
    name: str
    workload: _Workload = _Workload()
    leader_worker_set: _Size = _Size()
    template_ref: _Reference | None = None


class _RoleBasedGroupSpec(msgspec.Struct, rename="camel", frozen=True):
    roles: list[_Role]
    role_templates: list[_Template] = []
    pod_group_policy: dict[str, object] | None = None

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield what the workload of each role creates, and a PodGroup of all pods if the policy asks for it."""
        marks = {} if self.pod_group_policy is None else {VOLCANO_ANNOTATIONS[0]: controller.name}
        made = [child for role in self.roles for child in self._of_role(controller, role, marks)]
        if marks:
            number = sum(isinstance(child, Pod) for child in made)
            yield PodGroup(metadata=controller.metadata("PodGroup", controller.name), spec=PodGroupSpec(number))
        yield from made

    def _of_role(self, controller: Controller, role: _Role, marks: Mapping[str, str]) -> Iterator[KubeObject]:
        name, kind = f"{controller.name}-{role.name}", role.workload.kind
        labels = {f"{_PREFIX}name": controller.name, f"{_PREFIX}role": role.name}
        template = self._template_of(role).with_marks(labels, marks)
        if kind != LEADER_WORKER_SET:
            yield from replicas_of(controller, kind, name, template, role.number)
            return
        group = LeaderWorkerGroup(role.leader_worker_set.size, None, template)
        spec = LeaderWorkerSpec(leader_worker_template=group, replicas=role.number)
        yield as_watched(LeaderWorkerSet, controller.metadata(kind, name), spec)
        yield from spec.create(controller.child("leaderworkerset.x-k8s.io/v1", kind, name))

    def _template_of(self, role: _Role) -> PodTemplate:
        if role.template_ref is None:
            return role.template or PodTemplate()
        for named in self.role_templates:
            if named.name == role.template_ref.name:
                return named.template
        raise InvalidValue(f"role {role.name}: there is no roleTemplate {role.template_ref.name}")


WORKLOADS: Final = (
    Workload(
        "RoleBasedGroup",
        "workloads.x-k8s.io/v1alpha1",
        _RoleBasedGroupSpec,
        "those of the StatefulSet, Deployment or LeaderWorkerSet of each role, without patches of the template; with "
        "`podGroupPolicy` as one gang",
        ("rbg",),
    ),
)
