"""The kinds of jobs: the one table of how each is recognized, and of what is known of it.

The rows are tried from the most specific mark of a pod, a pod group, to the most general, an owner; a pod without any
mark is a job of its own. ``allocator.rules.job`` finds the row of a pod, ``allocator.state.kinds`` watches the objects
of the rows, ``npuctl plan`` expands them, and the table in ``docs/jobs.md`` is generated from this one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ascend.kube.job_objects import (
    ASCEND_JOBS,
    JOB_SETS,
    LEADER_WORKER_SETS,
    MPI_JOBS,
    MPI_JOBS_V2,
    PYTORCH_JOBS,
    RAY_CLUSTERS,
    TF_JOBS,
    VOLCANO_JOBS,
)
from ascend.kube.objects import INDEX_VARIABLES, Pod, Resource

VOLCANO: Final = "PodGroup.scheduling.volcano.sh"
COSCHEDULING: Final = "PodGroup.scheduling.x-k8s.io"
LEADER_WORKER_SET: Final = "LeaderWorkerSet"
ASCEND_JOB: Final = "AscendJob"
KUBEFLOW: Final = "kubeflow job"
JOB_SET: Final = "JobSet"
RAY_CLUSTER: Final = "RayCluster"
KUEUE: Final = "Kueue pod group"
VOLCANO_JOB: Final = "Job.batch.volcano.sh"
INDEXED_JOB: Final = "Indexed Job"
JOB: Final = "Job"
STATEFUL_SET: Final = "StatefulSet"
SINGLE: Final = "Pod"

OPERATOR: Final = "training.kubeflow.org/operator-name"
"""A pod label: an operator builds the rank table of the pod's job (docs/spec/scheduling.md#ranks)."""
MOST_DIGITS: Final = 7

_VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COSCHEDULING_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
_LWS = "leaderworkerset.sigs.k8s.io/"
_KUBEFLOW = "training.kubeflow.org/"
_JOB_SET = "jobset.sigs.k8s.io/"
_KUEUE = "kueue.x-k8s.io/pod-group-"
_RAY = "ray.io/"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ORDINAL = "apps.kubernetes.io/pod-index"
_STATEFUL_SET_POD = "statefulset.kubernetes.io/pod-name"
_VOLCANO_TASK = "volcano.sh/task-spec"
_VOLCANO_INDEX = "volcano.sh/task-index"
_VOLCANO_VERSION = "batch.volcano.sh/"
_NO_JOBS = frozenset({"DaemonSet", "Node"})


class Position(NamedTuple):
    """The position of a pod in its job, as it is written on the pod.

    Attributes:
        part: the name of its task, replica type, group or template (``JobPart``); empty if the job has one template.
        at: its index in the part; None if it has none.
        outer: the index of its Job within the part, for a JobSet.
        own: its index in the job if that has no other part; None if it usually has.
        is_unique: ``own`` is unique even if it has.
    """

    part: str = ""
    at: int | None = None
    outer: int = 0
    own: int | None = None
    is_unique: bool = False


class Text(NamedTuple):
    """A row for readers: sentences for the documentation and for ``npuctl``.

    Attributes:
        title: what users call the kind.
        recognized: how its pods are recognized.
        size: where the number of its pods comes from.
        minimum: how many of its pods are placed together unless something else is stated.
        ranks: the order of its ranks.
        owner: what creates the successor of a pod that has ended.
    """

    title: str
    recognized: str
    size: str
    minimum: str
    ranks: str
    owner: str


def number(text: str) -> int | None:
    """A number of pods or an index; None if it is not one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def position_by_index(pod: Pod) -> Position:
    """The ordinal of a StatefulSet, else the index of an Indexed Job or of a task of Volcano.

    From a label, an annotation or the environment.
    """
    metadata = pod.metadata
    labels = metadata.labels
    part = (metadata.annotations.get(_VOLCANO_TASK) or labels.get(_VOLCANO_TASK, "")).lower()
    if (ordinal := number(labels.get(_ORDINAL, ""))) is not None:
        return Position(part, ordinal, own=ordinal)
    if _STATEFUL_SET_POD in labels:
        ordinal = number(labels[_STATEFUL_SET_POD].rpartition("-")[2])
        return Position(part, ordinal, own=ordinal)
    index = _index(pod, (_COMPLETION_INDEX, _VOLCANO_INDEX), INDEX_VARIABLES)
    return Position(part, index, own=index)


def _index(pod: Pod, keys: tuple[str, ...], variables: tuple[str, ...]) -> int | None:
    metadata = pod.metadata
    for values in (metadata.labels, metadata.annotations):
        for key in keys:
            if (index := number(values.get(key, ""))) is not None:
                return index
    for container in pod.spec.containers:
        for each in container.env:
            if each.name in variables and (index := number(each.value)) is not None:
                return index
    return None


@dataclass(frozen=True, slots=True)
class JobKind:
    """A kind of job.

    Attributes:
        name: the kind in keys of jobs.
        text: the row for readers.
        find: the name of the job of a pod with the kind's mark; None for other pods.
        position: the position of a pod in the job.
        objects: where the API server serves the objects from which the pods are created, if they are watched; the
            first one that is served.
        object_name: the name of such an object; by default that of the job.
        stated: the number of pods that start together, as written on a pod by the kind's own controller; None if it is
            not written there.
        is_group: a pod group; what else marks its pods is read as well.
        is_alone: its pods work alone, unless a minimum requires several of them.
    """

    name: str
    text: Text
    find: Callable[[Pod], str | None]
    position: Callable[[Pod], Position] = position_by_index
    objects: tuple[Resource[Any], ...] = ()
    object_name: Callable[[Pod], str | None] | None = None
    stated: tuple[str, ...] = ()
    is_group: bool = False
    is_alone: bool = False


def _first(values: dict[str, str], keys: tuple[str, ...]) -> str | None:
    return next((name for key in keys if (name := values.get(key))), None)


def _owner(kind: str, version: str = "") -> Callable[[Pod], str | None]:
    def find(pod: Pod) -> str | None:
        owner = pod.metadata.controller
        if owner is None or owner.kind != kind or not owner.api_version.startswith(version):
            return None
        return owner.name

    return find


def _group_of_leader(pod: Pod) -> str | None:
    labels = pod.metadata.labels
    name, group = labels.get(f"{_LWS}name"), labels.get(f"{_LWS}group-index")
    return f"{name}-{group}" if name and group else None


def _kubeflow(kind: str) -> Callable[[Pod], str | None]:
    operators = {f"{kind.lower()}-controller", *(("mpi-operator",) if kind == "MPIJob" else ())}

    def find(pod: Pod) -> str | None:
        labels, owner = pod.metadata.labels, pod.metadata.controller
        is_owned = owner is not None and owner.kind == kind
        if is_owned or labels.get(OPERATOR) in operators:
            return labels.get(f"{_KUBEFLOW}job-name") or (owner.name if is_owned and owner is not None else None)
        return None

    return find


def _replica(pod: Pod) -> Position:
    labels = pod.metadata.labels
    part = labels.get(f"{_KUBEFLOW}replica-type") or labels.get(f"{_KUBEFLOW}job-role", "")
    return Position(part.lower(), number(labels.get(f"{_KUBEFLOW}replica-index", "")))


def _leader_or_worker(pod: Pod) -> Position:
    worker = number(pod.metadata.labels.get(f"{_LWS}worker-index", ""))
    if not worker:
        return Position("leader", worker, own=worker, is_unique=True)
    return Position("worker", worker - 1, own=worker, is_unique=True)


def _replicated(pod: Pod) -> Position:
    labels = pod.metadata.labels
    outer = number(labels.get(f"{_JOB_SET}job-index", "")) or 0
    index = _index(pod, (_COMPLETION_INDEX,), INDEX_VARIABLES[1:])
    # The index within the only Job is that within the JobSet.
    own = index if labels.get(f"{_JOB_SET}global-replicas", "1") == "1" else None
    return Position(labels.get(f"{_JOB_SET}replicatedjob-name", "").lower(), index, outer, own)


def _ray_group(pod: Pod) -> Position:
    labels = pod.metadata.labels
    return Position(labels.get(f"{_RAY}group") or labels.get(f"{_RAY}node-type", ""))


def _queued_group(pod: Pod) -> str | None:
    # Kueue also groups the pods of a StatefulSet, for their quota only: they are created one after the other.
    is_serving = pod.metadata.annotations.get(f"{_KUEUE}serving") == "true"
    return None if is_serving else pod.metadata.labels.get(f"{_KUEUE}name") or None


def _queued_index(pod: Pod) -> Position:
    metadata = pod.metadata
    label = metadata.annotations.get(f"{_KUEUE}pod-index-label", f"{_KUEUE}pod-index")
    index = number(metadata.labels.get(label, ""))
    return Position("", index, own=index)


def _indexed_job(pod: Pod) -> str | None:
    metadata = pod.metadata
    has_index = _COMPLETION_INDEX in metadata.labels or _COMPLETION_INDEX in metadata.annotations
    return _owner("Job")(pod) if has_index else None


def _other_owner(pod: Pod) -> str | None:
    owner = pod.metadata.controller
    return None if owner is None or owner.kind in _NO_JOBS else owner.name


_ALL: Final = "all of them"
_ONE: Final = "1"
_OF_OBJECT: Final = "the object's replicas"

# fmt: off
JOB_KINDS: Final = (
    JobKind(VOLCANO,
        Text("PodGroup of Volcano", f"annotation `{_VOLCANO_ANNOTATIONS[0]}` (or `{_VOLCANO_ANNOTATIONS[1]}`)",
            "the object from which the pods were created, else `minMember`", "`minMember`",
            "as those of the kind of the pods", "that of the kind of the pods"),
        lambda pod: _first(pod.metadata.annotations, _VOLCANO_ANNOTATIONS), is_group=True),
    JobKind(COSCHEDULING,
        Text("PodGroup of scheduler-plugins", f"label `{_COSCHEDULING_LABELS[0]}` (or the older "
            f"`{_COSCHEDULING_LABELS[1]}`, with or without `/name`)",
            "the object from which the pods were created, else `minMember`", "`minMember`",
            "as those of the kind of the pods", "that of the kind of the pods"),
        lambda pod: _first(pod.metadata.labels, _COSCHEDULING_LABELS), is_group=True),
    JobKind(LEADER_WORKER_SET,
        Text("LeaderWorkerSet: each group", f"labels `{_LWS}name` and `{_LWS}group-index`",
            f"annotation `{_LWS}size`", f"{_ALL}; 1 with `startupPolicy: LeaderReady`",
            "the leader, then the workers by index", "the LeaderWorkerSet's StatefulSets"),
        _group_of_leader, _leader_or_worker, (LEADER_WORKER_SETS,),
        lambda pod: pod.metadata.labels.get(f"{_LWS}name"), stated=(f"{_LWS}size",)),
    JobKind(ASCEND_JOB,
        Text("AscendJob", f"label `{_KUBEFLOW}job-name`, and `{OPERATOR}: ascendjob-controller` or its owner",
            _OF_OBJECT, f"`runPolicy.schedulingPolicy.minAvailable`, else {_ALL}",
            "master first, then workers by index", "the ascend-operator"),
        _kubeflow(ASCEND_JOB), _replica, (ASCEND_JOBS,)),
    *(
        JobKind(kind,
            Text(kind, f"label `{_KUBEFLOW}job-name`, and `{OPERATOR}: {kind.lower()}-controller` or its owner",
                _OF_OBJECT, f"`runPolicy.schedulingPolicy.minAvailable`, else {minimum}",
                ranks, "the training operator, by `restartPolicy`"),
            _kubeflow(kind), _replica, objects)
        for kind, minimum, ranks, objects in (
            ("PyTorchJob", f"{_ALL}, or `elasticPolicy.minReplicas` of its workers",
             "master first, then workers by index", (PYTORCH_JOBS,)),
            ("TFJob", _ALL, "chief or master first, then evaluators, ps and workers by index", (TF_JOBS,)),
            ("MPIJob", f"{_ALL}; without a launcher that waits for its workers",
             "the launcher if it requests chips, then workers by index", (MPI_JOBS, MPI_JOBS_V2)),
        )
    ),
    JobKind(KUBEFLOW,
        Text("another job of Kubeflow", f"label `{_KUBEFLOW}job-name`", "unknown", _ONE,
            "master first, then by replica type and index", "the training operator, by `restartPolicy`"),
        lambda pod: pod.metadata.labels.get(f"{_KUBEFLOW}job-name") or None, _replica),
    JobKind(JOB_SET,
        Text("JobSet", f"label `{_JOB_SET}jobset-name`", "`parallelism` times `replicas` of its templates", _ONE,
            "by template, then by Job, then by completion index", "its Jobs; the JobSet itself by `failurePolicy`"),
        lambda pod: pod.metadata.labels.get(f"{_JOB_SET}jobset-name") or None, _replicated, (JOB_SETS,)),
    JobKind(RAY_CLUSTER,
        Text("RayCluster, also of a RayJob or RayService", f"label `{_RAY}cluster`",
            "`replicas` times `numOfHosts` of its groups, and its head",
            "1; with label `ray.io/gang-scheduling-enabled` all of them, or its `minReplicas` if it scales",
            "the head if it requests chips, then its groups", "the KubeRay operator"),
        lambda pod: pod.metadata.labels.get(f"{_RAY}cluster") or None, _ray_group, (RAY_CLUSTERS,)),
    JobKind(KUEUE,
        Text("plain pods of a group of Kueue", f"label `{_KUEUE}name`, unless annotation `{_KUEUE}serving`",
            f"annotation `{_KUEUE}total-count`", _ALL,
            f"label `{_KUEUE}pod-index`, else by name", "whoever created them"),
        _queued_group, _queued_index, stated=(f"{_KUEUE}total-count",)),
    JobKind(VOLCANO_JOB,
        Text("vcjob", f"its owner, a Job of `{_VOLCANO_VERSION}v1alpha1`; normally its PodGroup",
            "the replicas of its tasks", f"`minAvailable`, else {_ALL}",
            "master or leader task first, then the tasks in their order, each by index",
            "Volcano's controller, by the `policies` of the job"),
        _owner("Job", _VOLCANO_VERSION), objects=(VOLCANO_JOBS,)),
    JobKind(INDEXED_JOB,
        Text("Indexed Job", f"its owner, a Job, and label `{_COMPLETION_INDEX}`",
            "`parallelism`, at most `completions`", _ONE, "the completion index", "the Job, by `backoffLimit`"),
        _indexed_job),
    JobKind(JOB,
        Text("Job without an index", "its owner, a Job", "1: each pod is a job of its own", _ONE,
            "in the order of their Bindings", "the Job, by `backoffLimit`"),
        _owner("Job"), is_alone=True),
    JobKind(STATEFUL_SET,
        Text("StatefulSet", "its owner, a StatefulSet", "`replicas`",
            "1; a minimum needs `podManagementPolicy: Parallel`", "the ordinal", "the StatefulSet"),
        _owner(STATEFUL_SET)),
    *(
        JobKind(kind,
            Text(title, f"its owner, a {kind}", "1: each pod is a job of its own", _ONE,
                "in the order of their Bindings", f"the {kind}"),
            _owner(kind), is_alone=True)
        for kind, title in (("ReplicaSet", "Deployment, ReplicaSet"),
                            ("ReplicationController", "ReplicationController"))
    ),
    JobKind("",
        Text("any other owner", "its owner, unless that is a DaemonSet or a Node", "unknown", _ONE,
            "in the order of their Bindings", "its owner"),
        _other_owner),
    JobKind(SINGLE,
        Text("a pod without an owner", "none of the above", "1", _ONE, "0", "whoever created it"),
        lambda pod: pod.metadata.name, is_alone=True),
)
"""From the most specific mark to the most general; the kind of the second to last is that of the owner."""
# fmt: on

BY_NAME: Final = {kind.name: kind for kind in JOB_KINDS}
