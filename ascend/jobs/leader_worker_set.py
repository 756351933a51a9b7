"""LeaderWorkerSets: each group, a leader and its workers, is a job."""

from collections.abc import Iterator, Mapping
from typing import Final, Generic

import msgspec

from ascend.jobs.creation import Controller
from ascend.jobs.kind import ALL, JobKind, JobObject, JobSpec, PodSet, Text, Workload
from ascend.jobs.marks import ORDINAL, Position, number
from ascend.jobs.templates import Count, PodTemplate, T, Template
from ascend.kube.objects import KubeObject, Pod, Resource
from ascend.kube.workloads import StatefulSet, StatefulSetSpec

LEADER_WORKER_SET: Final = "LeaderWorkerSet"
_PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME: Final = f"{_PREFIX}name"
_GROUP = f"{_PREFIX}group-index"
_SIZE = f"{_PREFIX}size"
_WORKER = f"{_PREFIX}worker-index"


class LeaderWorkerGroup(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    """The templates of a group."""

    size: Count | None = None
    leader_template: T | None = None
    worker_template: T | None = None


class LeaderWorkerSpec(JobSpec[T], Generic[T], frozen=True):
    """What a LeaderWorkerSet says of each of its groups."""

    leader_worker_template: LeaderWorkerGroup[T] = LeaderWorkerGroup()
    replicas: Count = 1
    startup_policy: str = ""

    @property
    def _size(self) -> int:
        size = self.leader_worker_template.size
        return 1 if size is None else size

    @property
    def pod_sets(self) -> tuple[PodSet[T], ...]:
        """The leader and the workers of a group."""
        group = self.leader_worker_template
        leader = group.leader_template if group.leader_template is not None else group.worker_template
        return PodSet("leader", leader, 1), PodSet("worker", group.worker_template, self._size - 1)

    def whole(self, _labels: Mapping[str, str]) -> int | None:
        """The size of a group; with ``LeaderReady`` the workers come after their leader runs."""
        return 1 if self.startup_policy == "LeaderReady" else self._size

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield a StatefulSet of the leaders, and one for the workers of each group, with their pods."""
        leaders, workers = self.pod_sets
        name, size = controller.name, {_SIZE: str(self._size)}
        yield StatefulSet(
            metadata=controller.metadata("StatefulSet", name), spec=StatefulSetSpec(self.replicas, "Parallel")
        )
        for group in range(self.replicas):
            leader = f"{name}-{group}"
            labels = {NAME: name, _GROUP: str(group), f"{_PREFIX}group-key": leader}
            yield from controller.child("apps/v1", "StatefulSet", name).pods(
                leaders.template, [group], index=ORDINAL, labels={**labels, _WORKER: "0"}, annotations=size
            )
            if workers.pods:
                number = StatefulSetSpec(workers.pods, "Parallel")
                yield StatefulSet(metadata=controller.metadata("StatefulSet", leader), spec=number)
            for worker in range(1, self._size):
                yield from controller.child("apps/v1", "StatefulSet", leader).pods(
                    workers.template,
                    [worker],
                    index=ORDINAL,
                    labels={**labels, _WORKER: str(worker)},
                    annotations={**size, f"{_PREFIX}leader-name": leader},
                )


class LeaderWorkerSet(JobObject, frozen=True, kw_only=True):
    """A LeaderWorkerSet."""

    spec: LeaderWorkerSpec[Template] = LeaderWorkerSpec()


def _group_of(pod: Pod) -> str | None:
    labels = pod.metadata.labels
    name, group = labels.get(NAME), labels.get(_GROUP)
    return f"{name}-{group}" if name and group else None


def _position(pod: Pod) -> Position:
    worker = number(pod.metadata.labels.get(_WORKER, ""))
    if not worker:
        return Position("leader", worker, own=worker, is_unique=True)
    return Position("worker", worker - 1, own=worker, is_unique=True)


_VERSION = "leaderworkerset.x-k8s.io/v1"

KIND: Final = JobKind(
    LEADER_WORKER_SET,
    Text("LeaderWorkerSet: each group", f"labels `{NAME}` and `{_GROUP}`", f"annotation `{_SIZE}`",
         f"{ALL}; 1 with `startupPolicy: LeaderReady`", "the leader, then the workers by index",
         "the LeaderWorkerSet's StatefulSets"),
    _group_of, _position, marks=(NAME,), stated=(_SIZE,),
    objects=(Resource(LeaderWorkerSet, LEADER_WORKER_SET, f"apis/{_VERSION}", "leaderworkersets"),),
    object_name=lambda pod: pod.metadata.labels.get(NAME),
    workloads=(Workload(LEADER_WORKER_SET, _VERSION, LeaderWorkerSpec[PodTemplate],
                        "a leader and `size` - 1 workers in each of `replicas` groups", ("lws",)),),
)  # fmt: skip
