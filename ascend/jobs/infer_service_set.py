"""InferServiceSets of MindCluster's infer-operator: each instance of a role is a StatefulSet or a Deployment."""

from collections.abc import Iterator
from typing import Annotated, Final, TypeAlias

import msgspec

from ascend.jobs.core import replicas_of
from ascend.jobs.creation import Controller
from ascend.jobs.kind import Workload
from ascend.jobs.pod_groups import VOLCANO_ANNOTATIONS
from ascend.jobs.templates import Count, PodTemplate
from ascend.kube.objects import KubeObject, Metadata
from ascend.kube.workloads import PodGroup, PodGroupSpec

_PREFIX = "infer.huawei.com/"
_GANG = f"{_PREFIX}gang-schedule"
_Instances: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=256)]
"""The operator accepts no more."""


class _Workload(msgspec.Struct, frozen=True):
    kind: str = "StatefulSet"


class _Instance(msgspec.Struct, rename="camel", frozen=True):
    template: PodTemplate = PodTemplate()
    replicas: Count = 1
    pod_management_policy: str = "OrderedReady"


class _Role(msgspec.Struct, frozen=True):
    name: str
    spec: _Instance
    replicas: _Instances = 1
    workload: _Workload = _Workload()
    metadata: Metadata = Metadata()


class _Roles(msgspec.Struct, frozen=True):
    roles: tuple[_Role, ...] = ()


class _InferServiceSetSpec(msgspec.Struct, frozen=True):
    template: _Roles
    replicas: _Instances = 1

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the pods of each instance of each role, and a PodGroup for each instance if the role asks for it."""
        for at in range(self.replicas):
            service = f"{controller.name}-{at}"
            for role in self.template.roles:
                for instance in range(role.replicas):
                    marks = {"inferservice-name": service, "instanceset-name": role.name, "instanceset-index": instance}
                    labels = {f"{_PREFIX}{key}": str(value) for key, value in marks.items()}
                    yield from _instance(controller, f"{service}-{role.name}-{instance}", role, labels)


def _instance(controller: Controller, name: str, role: _Role, labels: dict[str, str]) -> Iterator[KubeObject]:
    given, annotations = role.spec, {}
    if role.metadata.labels.get(_GANG) == "true":
        annotations = {VOLCANO_ANNOTATIONS[0]: name}
        yield PodGroup(metadata=controller.metadata("PodGroup", name), spec=PodGroupSpec(given.replicas))
    template = given.template.with_marks(labels, annotations)
    kind, policy = role.workload.kind, given.pod_management_policy
    yield from replicas_of(controller, kind, name, template, given.replicas, policy=policy)


WORKLOADS: Final = (
    Workload(
        "InferServiceSet",
        "mindcluster.huawei.com/v1",
        _InferServiceSetSpec,
        "in each of `replicas` services, those of the StatefulSet or Deployment of each instance of a role",
    ),
)
