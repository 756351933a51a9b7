"""How the controllers of jobs mark pods: which job a pod belongs to, and its position in it."""

from collections.abc import Callable
from typing import Final

import msgspec

from ascend.kube.objects import INDEX_VARIABLES, Pod

OPERATOR: Final = "training.kubeflow.org/operator-name"
"""A pod label: an operator builds the rank table of the pod's job (docs/spec/scheduling.md#ranks)."""
MOST_DIGITS: Final = 7

VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
COSCHEDULING_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
LWS_PREFIX = "leaderworkerset.sigs.k8s.io/"
KUBEFLOW_PREFIX = "training.kubeflow.org/"
JOB_SET_PREFIX = "jobset.sigs.k8s.io/"
KUEUE_PREFIX = "kueue.x-k8s.io/pod-group-"
RAY_PREFIX = "ray.io/"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ORDINAL = "apps.kubernetes.io/pod-index"
_STATEFUL_SET_POD = "statefulset.kubernetes.io/pod-name"
_VOLCANO_TASK = "volcano.sh/task-spec"
_VOLCANO_INDEX = "volcano.sh/task-index"
VOLCANO_VERSION = "batch.volcano.sh/"
_NO_JOBS = frozenset({"DaemonSet", "Node"})


class Position(msgspec.Struct, frozen=True, gc=False):
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
    index = _index(pod, (COMPLETION_INDEX, _VOLCANO_INDEX), INDEX_VARIABLES)
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


def first_of(values: dict[str, str], keys: tuple[str, ...]) -> str | None:
    """The value of the first key that is there and not empty."""
    return next((name for key in keys if (name := values.get(key))), None)


def by_owner(kind: str, version: str = "") -> Callable[[Pod], str | None]:
    """Finds the controller of a pod, if it is of this kind."""

    def find(pod: Pod) -> str | None:
        owner = pod.metadata.controller
        if owner is None or owner.kind != kind or not owner.api_version.startswith(version):
            return None
        return owner.name

    return find


def group_of_leader(pod: Pod) -> str | None:
    """The group of a LeaderWorkerSet."""
    labels = pod.metadata.labels
    name, group = labels.get(f"{LWS_PREFIX}name"), labels.get(f"{LWS_PREFIX}group-index")
    return f"{name}-{group}" if name and group else None


def by_operator(kind: str) -> Callable[[Pod], str | None]:
    """Finds the job of Kubeflow, or the AscendJob, if it is of this kind."""
    operators = {f"{kind.lower()}-controller", *(("mpi-operator",) if kind == "MPIJob" else ())}

    def find(pod: Pod) -> str | None:
        labels, owner = pod.metadata.labels, pod.metadata.controller
        is_owned = owner is not None and owner.kind == kind
        if is_owned or labels.get(OPERATOR) in operators:
            return labels.get(f"{KUBEFLOW_PREFIX}job-name") or (owner.name if is_owned and owner is not None else None)
        return None

    return find


def replica(pod: Pod) -> Position:
    """The replica type of a job of Kubeflow, and the index within it."""
    labels = pod.metadata.labels
    part = labels.get(f"{KUBEFLOW_PREFIX}replica-type") or labels.get(f"{KUBEFLOW_PREFIX}job-role", "")
    return Position(part.lower(), number(labels.get(f"{KUBEFLOW_PREFIX}replica-index", "")))


def leader_or_worker(pod: Pod) -> Position:
    """The leader of a group is first."""
    worker = number(pod.metadata.labels.get(f"{LWS_PREFIX}worker-index", ""))
    if not worker:
        return Position("leader", worker, own=worker, is_unique=True)
    return Position("worker", worker - 1, own=worker, is_unique=True)


def replicated(pod: Pod) -> Position:
    """The template of a JobSet, and the index of the Job and of the pod."""
    labels = pod.metadata.labels
    outer = number(labels.get(f"{JOB_SET_PREFIX}job-index", "")) or 0
    index = _index(pod, (COMPLETION_INDEX,), INDEX_VARIABLES[1:])
    # The index within the only Job is that within the JobSet.
    own = index if labels.get(f"{JOB_SET_PREFIX}global-replicas", "1") == "1" else None
    return Position(labels.get(f"{JOB_SET_PREFIX}replicatedjob-name", "").lower(), index, outer, own)


def ray_group(pod: Pod) -> Position:
    """The group of a RayCluster."""
    labels = pod.metadata.labels
    return Position(labels.get(f"{RAY_PREFIX}group") or labels.get(f"{RAY_PREFIX}node-type", ""))


def queued_group(pod: Pod) -> str | None:
    """The group of plain pods of Kueue."""
    # Kueue also groups the pods of a StatefulSet, for their quota only: they are created one after the other.
    is_serving = pod.metadata.annotations.get(f"{KUEUE_PREFIX}serving") == "true"
    return None if is_serving else pod.metadata.labels.get(f"{KUEUE_PREFIX}name") or None


def queued_index(pod: Pod) -> Position:
    """The index that Kueue was given."""
    metadata = pod.metadata
    label = metadata.annotations.get(f"{KUEUE_PREFIX}pod-index-label", f"{KUEUE_PREFIX}pod-index")
    index = number(metadata.labels.get(label, ""))
    return Position("", index, own=index)


def indexed_job(pod: Pod) -> str | None:
    """The Job of a pod with a completion index."""
    metadata = pod.metadata
    has_index = COMPLETION_INDEX in metadata.labels or COMPLETION_INDEX in metadata.annotations
    return by_owner("Job")(pod) if has_index else None


def other_owner(pod: Pod) -> str | None:
    """The controller of a pod, whatever its kind."""
    owner = pod.metadata.controller
    return None if owner is None or owner.kind in _NO_JOBS else owner.name
