"""Which job a pod belongs to, and what the pod itself states about its job: minimum, replicas, rank.

Every job controller marks its pods differently. The marks are tried from the most specific (a pod group) to the most
general (an owner). A pod without any mark is a job of its own.
"""

from typing import Final

import msgspec

from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.errors import Refusal
from ascend.kube.objects import INDEX_VARIABLES, Pod
from ascend.reasons import Reason

VOLCANO: Final = "PodGroup.scheduling.volcano.sh"
COSCHEDULING: Final = "PodGroup.scheduling.x-k8s.io"
KUBEFLOW: Final = "kubeflow job"
JOB_SET: Final = "JobSet"
INDEXED_JOB: Final = "Indexed Job"
STATEFUL_SET: Final = "StatefulSet"
SINGLE: Final = "Pod"

OPERATOR: Final = "training.kubeflow.org/operator-name"
"""A pod label: an operator builds the rank table of the pod's job (docs/spec/scheduling.md#ranks)."""

_VOLCANO_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
_COSCHEDULING_LABELS = (
    "scheduling.x-k8s.io/pod-group",
    "pod-group.scheduling.sigs.k8s.io",
    "pod-group.scheduling.sigs.k8s.io/name",
)
_OLD_MINIMUM = "pod-group.scheduling.sigs.k8s.io/min-available"
_KUBEFLOW_NAME = "training.kubeflow.org/job-name"
_KUBEFLOW_TYPE = "training.kubeflow.org/replica-type"
_KUBEFLOW_INDEX = "training.kubeflow.org/replica-index"
_JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOB_SET_JOBS = "jobset.sigs.k8s.io/global-replicas"
_JOB_SET_REPLICAS = "jobset.sigs.k8s.io/replicatedjob-replicas"
_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
_ORDINAL = "apps.kubernetes.io/pod-index"
_STATEFUL_SET_POD = "statefulset.kubernetes.io/pod-name"
_VOLCANO_INDEX = "volcano.sh/task-index"
_VOLCANO_JOBS = "batch.volcano.sh/"
_GROUPS = frozenset({VOLCANO, COSCHEDULING})
_INDEPENDENT = frozenset({SINGLE, "ReplicaSet", "ReplicationController", "Job"})
_NO_JOBS = frozenset({"DaemonSet", "Node"})
_LEADERS = frozenset({"master", "chief", "launcher"})
_MAX_DIGITS = 7


class JobKey(msgspec.Struct, frozen=True, order=True):
    """What identifies a job.

    Attributes:
        namespace: the namespace of its pods.
        name: the name of its group or owner.
        kind: the kind of its group or owner, or one of the constants above.
    """

    namespace: str
    name: str
    kind: str

    @property
    def plan(self) -> str:
        """The name of its plan in the ledger."""
        return f"{self.kind} {self.namespace}/{self.name}"

    @classmethod
    def of_plan(cls, plan: str) -> "JobKey":
        """The key of the job whose plan has this name."""
        # A kind may contain spaces, and a name spaces and slashes: the name of a group on a pod is not validated.
        prefix, _, name = plan.partition("/")
        kind, _, namespace = prefix.rpartition(" ")
        return cls(namespace, name, kind)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def find_job(pod: Pod) -> JobKey:
    """The job a pod belongs to (docs/spec/scheduling.md#session, docs/spec/scheduling.md#jobs-and-requests)."""
    metadata = pod.metadata
    for annotation in _VOLCANO_ANNOTATIONS:
        if name := metadata.annotations.get(annotation):
            return JobKey(metadata.namespace, name, VOLCANO)
    for label in _COSCHEDULING_LABELS:
        if name := metadata.labels.get(label):
            return JobKey(metadata.namespace, name, COSCHEDULING)
    return _job_without_group(pod)


def _job_without_group(pod: Pod) -> JobKey:
    metadata = pod.metadata
    for label, kind in ((_KUBEFLOW_NAME, KUBEFLOW), (_JOB_SET_NAME, JOB_SET)):
        if name := metadata.labels.get(label):
            return JobKey(metadata.namespace, name, kind)
    return job_of_owner(pod) or JobKey(metadata.namespace, metadata.name, SINGLE)


def works_alone(pod: Pod, job: JobKey) -> bool:
    """Whether a pod works independently of its peers, provided that no minimum requires several pods.

    Replicas of a Deployment, pods of a Job without an index and pods without an owner do. A pod group with a minimum of
    1 does not decide it, since Volcano creates one for every Deployment; then the other marks of the pod decide.

    Args:
        pod: the pod.
        job: its job.
    """
    marked = _job_without_group(pod) if job.kind in _GROUPS else job
    if marked.kind not in _INDEPENDENT:
        return False
    owner = pod.metadata.controller
    # Volcano's Jobs have the same kind as those of batch/v1, but their pods work together.
    return owner is None or not owner.api_version.startswith(_VOLCANO_JOBS)


def job_of_owner(pod: Pod) -> JobKey | None:
    """The job of the pod's owner, regardless of other marks; None without an owner."""
    metadata = pod.metadata
    owner = metadata.controller
    if owner is None or owner.kind in _NO_JOBS:
        return None
    indexed = owner.kind == "Job" and (_COMPLETION_INDEX in metadata.labels | metadata.annotations)
    return JobKey(metadata.namespace, owner.name, INDEXED_JOB if indexed else owner.kind)


def stated_minimum(pod: Pod) -> int | None:
    """How many pods of the job must be placed together, as the pod itself states; None if it states nothing.

    Raises:
        Refusal: ``InvalidMinAvailable`` if it is not a positive number.
    """
    for key, values in ((MIN_AVAILABLE, pod.metadata.annotations), (_OLD_MINIMUM, pod.metadata.labels)):
        text = values.get(key)
        if text is not None:
            number = _number(text)
            if not number:
                raise Refusal(
                    Reason.INVALID_MIN_AVAILABLE, f"pod {pod.key}: {key}={text!r} is not a positive number of pods"
                )
            return number
    return None


def stated_replicas(pod: Pod) -> int | None:
    """The least number of pods like this one, as the pod's own labels state; None if that is not more than one.

    It is the number of Jobs of one template of a JobSet. How many pods each Job has is not written on its pods.
    """
    jobs = _number(pod.metadata.labels.get(_JOB_SET_REPLICAS, ""))
    return jobs if jobs is not None and jobs > 1 else None


def own_rank(pod: Pod) -> int | None:
    """The rank that the pod itself has; None if its job has to assign one (docs/spec/scheduling.md#ranks).

    In this order: the annotation, unless the pod has failed; the ordinal of a StatefulSet; the index of an Indexed Job
    or of a Volcano task, from a label, an annotation or the environment. Not a rank: the index within one of several
    Jobs of a JobSet, and the index within one replica type of a kubeflow job.
    """
    metadata = pod.metadata
    if pod.status.phase != "Failed" and (written := _number(metadata.annotations.get(RANK, ""))) is not None:
        return written
    labels = metadata.labels
    if (ordinal := _number(labels.get(_ORDINAL, ""))) is not None:
        return ordinal
    if _STATEFUL_SET_POD in labels:
        return _number(labels[_STATEFUL_SET_POD].rpartition("-")[2])
    if (index := _index(pod)) is not None:
        return index if labels.get(_JOB_SET_JOBS, "1") == "1" else None
    for container in pod.spec.containers:
        for variable in container.env:
            if variable.name in INDEX_VARIABLES and (rank := _number(variable.value)) is not None:
                return rank
    return None


def is_later(pod: Pod) -> bool:
    """Whether the pod's own index shows that other pods come before it."""
    return bool(own_rank(pod) or _number(pod.metadata.labels.get(_KUBEFLOW_INDEX, "")))


def filling_order(pod: Pod) -> tuple[bool, int, str, int, str]:
    """The order in which pods without a rank of their own get one: masters first, then by index, then by name."""
    labels = pod.metadata.labels
    stem, _, last = pod.name.rpartition("-")
    number = _number(last)
    return (
        labels.get(_KUBEFLOW_TYPE, "").lower() not in _LEADERS,
        _number(labels.get(_KUBEFLOW_INDEX, "")) or 0,
        stem if number is not None else pod.name,
        number or 0,
        pod.name,
    )


def writes_rank(pod: Pod) -> bool:
    """Whether the allocator has to write the rank on the pod, because nothing else does.

    See docs/spec/scheduling.md#ranks.
    """
    metadata = pod.metadata
    if metadata.annotations.get(RANK):
        return False
    owner = metadata.controller
    return MIN_AVAILABLE in metadata.annotations or (owner is not None and owner.kind == "ReplicaSet")


def _index(pod: Pod) -> int | None:
    for values in (pod.metadata.labels, pod.metadata.annotations):
        for key in (_COMPLETION_INDEX, _VOLCANO_INDEX):
            if (index := _number(values.get(key, ""))) is not None:
                return index
    return None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
