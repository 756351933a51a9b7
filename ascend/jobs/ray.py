"""RayClusters, also those of RayJobs and RayServices. Ray works with the workers it has."""

from collections.abc import Iterator, Mapping
from typing import Final, Generic

import msgspec

from ascend.jobs.core import BatchJobTemplate, JobTemplate
from ascend.jobs.creation import Controller
from ascend.jobs.kind import JobKind, JobObject, JobSpec, PodSet, Text, Workload, as_watched
from ascend.jobs.marks import Position, by_label
from ascend.jobs.templates import Count, PodTemplate, T, Template
from ascend.kube.objects import KubeObject, Pod, Resource

RAY_CLUSTER: Final = "RayCluster"
RAY_GANG: Final = "ray.io/gang-scheduling-enabled"
"""KubeRay's label for clusters that start as a whole."""
_NAME = "ray.io/cluster"
_GROUP = "ray.io/group"
_TYPE = "ray.io/node-type"
_HEAD = "headgroup"
_MOST = (1 << 31) - 1
"""``maxReplicas`` of a group without one: KubeRay's default."""


class _Head(msgspec.Struct, Generic[T], frozen=True):
    template: T | None = None


class _Workers(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    group_name: str = ""
    template: T | None = None
    replicas: Count | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    num_of_hosts: Count | None = None
    suspend: bool | None = None

    def pods(self, replicas: int | None) -> int:
        """The number of pods: KubeRay keeps to the limits, the upper one if they contradict."""
        wanted = max(replicas or 0, self.min_replicas or 0)
        limited = wanted if self.max_replicas is None else min(wanted, self.max_replicas)
        return 0 if self.suspend else limited * (self.num_of_hosts or 1)

    @property
    def most(self) -> int:
        """The number of pods up to which Ray's autoscaler scales the group."""
        return self.pods(_MOST if self.max_replicas is None else self.max_replicas)


class RayClusterSpec(JobSpec[T], Generic[T], frozen=True):
    """The ``spec`` of a RayCluster."""

    head_group_spec: _Head[T] = _Head()
    worker_group_specs: list[_Workers[T]] | None = None
    enable_in_tree_autoscaling: bool | None = None

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """The head and its groups of workers."""
        scales = self.enable_in_tree_autoscaling
        workers = (
            PodSet(group.group_name, group.template, group.pods(group.replicas), most=group.most if scales else 0)
            for group in self._groups
        )
        return PodSet(_HEAD, self.head_group_spec.template, 1), *workers

    def whole(self, labels: Mapping[str, str]) -> int | None:
        """With KubeRay's label for gangs all pods, or its ``minReplicas`` if it scales."""
        if labels.get(RAY_GANG) != "true":
            return None
        scales = self.enable_in_tree_autoscaling
        return 1 + sum(group.pods(0 if scales else group.replicas) for group in self._groups)

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the head and the workers of each group."""
        head, *groups = self.pod_sets
        common = {_NAME: controller.name, "ray.io/is-ray-node": "yes"}
        labels = {**common, _TYPE: "head", _GROUP: _HEAD}
        yield from controller.pods(head.template, [0], role="head", labels=labels)
        for group in groups:
            labels, numbers = {**common, _TYPE: "worker", _GROUP: group.name}, range(group.pods)
            yield from controller.pods(group.template, numbers, role=f"{group.name}-worker", labels=labels)

    @property
    def _groups(self) -> list[_Workers[T]]:
        return self.worker_group_specs or []


class RayCluster(JobObject, frozen=True, kw_only=True):
    """A RayCluster."""

    spec: RayClusterSpec[Template] = RayClusterSpec()


class _RayJobSpec(msgspec.Struct, rename="camel"):
    ray_cluster_spec: RayClusterSpec[PodTemplate] | None = None
    submitter_pod_template: PodTemplate | None = None

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the cluster, unless an existing one is selected, and the Job that submits the RayJob, if templated."""
        if self.ray_cluster_spec is not None:
            yield from _owned_cluster(controller, self.ray_cluster_spec)
        if self.submitter_pod_template is not None:
            job = JobTemplate(BatchJobTemplate(self.submitter_pod_template))
            yield from job.create(controller, controller.name)


class _RayServiceSpec(msgspec.Struct, rename="camel"):
    ray_cluster_config: RayClusterSpec[PodTemplate]

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield its cluster."""
        return _owned_cluster(controller, self.ray_cluster_config)


def _owned_cluster(controller: Controller, spec: RayClusterSpec[PodTemplate]) -> Iterator[KubeObject]:
    name = f"{controller.name}-raycluster-0"
    # KubeRay copies labels and annotations to it.
    yield as_watched(RayCluster, controller.metadata_with_labels(RAY_CLUSTER, name), spec)
    yield from spec.create(controller.child(controller.version, RAY_CLUSTER, name))


def _position(pod: Pod) -> Position:
    labels = pod.metadata.labels
    return Position(labels.get(_GROUP) or labels.get(_TYPE, ""))


_PODS = (
    "the head, and `replicas` times `numOfHosts` of each group of workers that is not suspended, within its "
    "`minReplicas` and `maxReplicas`"
)
_CLUSTER = RAY_CLUSTER, "-raycluster-"

KIND: Final = JobKind(
    RAY_CLUSTER,
    Text("RayCluster, also of a RayJob or RayService", f"label `{_NAME}`",
         "`replicas` (within their limits) times `numOfHosts` of its groups, and its head",
         f"1; with label `{RAY_GANG}` all of them, or its `minReplicas` if it scales",
         "the head if it requests chips, then its groups", "the KubeRay operator"),
    by_label(_NAME), _position, marks=(_NAME,), owners=("ray.io RayCluster",), is_scaled=True,
    objects=(Resource(RayCluster, RAY_CLUSTER, "apis/ray.io/v1", "rayclusters"),),
    workloads=tuple(
        workload
        for version in ("ray.io/v1", "ray.io/v1alpha1")
        for workload in (
            Workload(RAY_CLUSTER, version, RayClusterSpec[PodTemplate], _PODS),
            Workload("RayJob", version, _RayJobSpec, "its cluster's, and `submitterPodTemplate`", (), *_CLUSTER),
            Workload("RayService", version, _RayServiceSpec, _PODS, (), *_CLUSTER),
        )
    ),
)  # fmt: skip
