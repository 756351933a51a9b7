"""The job of a pod, and the pod's own statements about the job: minimum, replicas, rank.

How the pods of each kind of job are marked is in ``ascend.jobs``.
"""

import re
from collections.abc import Mapping

import msgspec

from ascend.annotations import INDEPENDENT, MIN_AVAILABLE, RANK
from ascend.errors import Refusal
from ascend.jobs.core import INDEXED_JOB, JOB, STATEFUL_SET
from ascend.jobs.job_set import JOBS_ALIKE
from ascend.jobs.kind import LEADERS, JobKind
from ascend.jobs.marks import Position, number
from ascend.jobs.pod_groups import VOLCANO_ANNOTATIONS
from ascend.jobs.table import JOB_KINDS, TABLE, Recognition
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import Pod
from ascend.printable import printable
from ascend.reasons import Reason

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*").fullmatch
_LONGEST_NAME = 253
_SHOWN = 60
_OLD_MINIMUM = "pod-group.scheduling.sigs.k8s.io/min-available"
_STATED = frozenset(key for kind in JOB_KINDS for key in kind.stated)
_STATING = _STATED | {MIN_AVAILABLE}
_BY_OWNER = tuple(TABLE.by_name[name] for name in (VOLCANO_JOB, INDEXED_JOB, JOB, STATEFUL_SET, ""))


class JobKey(msgspec.Struct, frozen=True, order=True, gc=False):
    """What identifies a job.

    Attributes:
        namespace: the namespace of its pods.
        name: the name of its group or owner.
        kind: the kind of its group or owner, as in ``ascend.jobs.table``.
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
        text = f"{self.namespace}/{self.name}"
        return text if text.isprintable() else printable(text)


class Marks(msgspec.Struct, frozen=True):
    """The job of a pod by its own marks, without its pod group.

    Attributes:
        kind: its row in the table.
        job: the job.
        position: the position of the pod in it.
    """

    kind: JobKind
    job: JobKey
    position: Position

    @property
    def part(self) -> str:
        """The name that tells this pod's indexes from other pods' in the group."""
        return str(self.job) if self.position.is_unique else f"{self.job} {self.position.part}"


def find_job(pod: Pod) -> JobKey:
    """The job a pod belongs to (docs/spec/scheduling.md#session, docs/spec/scheduling.md#jobs-and-requests)."""
    return _first(pod, TABLE.everything)[1]


def marks_of(pod: Pod) -> Marks:
    """The job of a pod by its own marks, regardless of its pod group."""
    kind, job = _first(pod, TABLE.without_groups)
    return Marks(kind, job, kind.position(pod))


def first_kind(pod: Pod, kinds: tuple[JobKind, ...] | None = None) -> tuple[JobKind, JobKey]:
    """The first row of the table whose mark a pod has, and its job; ``find_job`` is several times faster."""
    kinds = TABLE.kinds if kinds is None else kinds
    for kind in kinds:
        if name := kind.find(pod):
            return kind, _key(pod, name, kind)
    kind = kinds[-1]  # a pod without a name, which no API server has
    return kind, _key(pod, pod.metadata.name, kind)


def _first(pod: Pod, recognition: Recognition) -> tuple[JobKind, JobKey]:
    return first_kind(pod, recognition.among(pod))


def _key(pod: Pod, name: str, kind: JobKind) -> JobKey:
    owner = pod.metadata.controller
    return JobKey(pod.metadata.namespace, name, kind.name or (owner.kind if owner is not None else ""))


def find_object(pod: Pod) -> JobKey | None:
    """The object from which the pod was created, if objects of its kind are watched."""
    kind, job = _first(pod, TABLE.without_groups)
    if not kind.objects:
        return None
    name = kind.object_name(pod) if kind.object_name is not None else job.name
    return JobKey(job.namespace, name or job.name, kind.name)


def is_group(job: JobKey) -> bool:
    """Whether the job is a pod group."""
    kind = TABLE.by_name.get(job.kind)
    return kind is not None and kind.is_group


def works_alone(pod: Pod, job: JobKey) -> bool:
    """Whether a pod works independently of its peers, provided that no minimum requires several pods.

    Replicas of a Deployment, pods of a Job without an index, of an owner of an unknown kind, and pods without an owner
    do, and those that say so. A pod group with a minimum of 1 does not decide it, since Volcano creates one for every
    Deployment; then the other marks of the pod decide.

    Args:
        pod: the pod.
        job: its job.
    """
    if is_independent(pod.metadata.annotations):
        return True
    kind = TABLE.by_name.get(job.kind, TABLE.by_name[""])  # an owner of an unknown kind has that as the kind of its job
    if kind.is_group:
        kind = _first(pod, TABLE.without_groups)[0]
    return kind.is_alone


def is_independent(annotations: Mapping[str, str]) -> bool:
    """Whether annotations of a pod or its job say that the pods don't communicate collectively."""
    return annotations.get(INDEPENDENT) == "true"


def job_of_owner(pod: Pod) -> JobKey | None:
    """The job of the pod's owner, regardless of other marks; None without an owner."""
    for kind in _BY_OWNER:
        if name := kind.find(pod):
            return _key(pod, name, kind)
    return None


def require_group_name(pod: Pod) -> None:
    """Refuse a pod whose annotation can't name a pod group: it is free text, unlike the labels of other kinds.

    Raises:
        Refusal: ``InvalidRequest`` if it is not a DNS subdomain, as the names of all objects are.
    """
    for key in VOLCANO_ANNOTATIONS:
        name = pod.metadata.annotations.get(key)
        if name and (len(name) > _LONGEST_NAME or not _DNS_SUBDOMAIN(name)):
            said = f"{name[:_SHOWN]!r}{'…' if len(name) > _SHOWN else ''}"
            what = "is not the name of a pod group: at most 253 lowercase letters, digits, - and ."
            raise Refusal(Reason.INVALID_REQUEST, f"pod {pod.key}: annotation {key}={said} {what}")


def stated_minimum(pod: Pod) -> int | None:
    """How many pods of the job must be placed together, as the pod itself states; None if it states nothing.

    Raises:
        Refusal: ``InvalidMinAvailable`` if it is not a positive number.
    """
    for key, values in ((MIN_AVAILABLE, pod.metadata.annotations), (_OLD_MINIMUM, pod.metadata.labels)):
        if (text := values.get(key)) is not None:
            return minimum_from(text, f"pod {pod.key}: {key}")
    return None


def states_number(pod: Pod) -> bool:
    """Whether a pod states anything about the number of pods of its job that start together."""
    metadata = pod.metadata
    return not _STATING.isdisjoint(metadata.annotations) or _OLD_MINIMUM in metadata.labels


def stated_whole(pod: Pod) -> int | None:
    """How many pods start together, as the controller of the pod's kind of job has written on the pod.

    Raises:
        Refusal: ``InvalidMinAvailable`` if it is not a positive number.
    """
    annotations = pod.metadata.annotations
    if not annotations or _STATED.isdisjoint(annotations):  # called by every decision
        return None
    for key in _first(pod, TABLE.without_groups)[0].stated:
        if (text := annotations.get(key)) is not None:
            return minimum_from(text, f"pod {pod.key}: {key}")
    return None


def minimum_from(text: str, what: str) -> int:
    """A minimum that is written somewhere.

    Args:
        text: what is written.
        what: the place and the key, for the sentence.

    Raises:
        Refusal: ``InvalidMinAvailable`` if it is not a positive number.
    """
    minimum = number(text)
    if not minimum:
        raise Refusal(Reason.INVALID_MIN_AVAILABLE, f"{what}={text!r} is not a positive number of pods")
    return minimum


def stated_replicas(pod: Pod) -> int | None:
    """The least number of pods like this one, by the pod's own labels; None unless more than one.

    It is the number of Jobs of one template of a JobSet. How many pods each Job has is not written on its pods.
    """
    jobs = number(pod.metadata.labels.get(JOBS_ALIKE, ""))
    return jobs if jobs is not None and jobs > 1 else None


def written_rank(pod: Pod) -> int | None:
    """The rank that is written on a pod, unless it has failed; None if none is."""
    return number(pod.metadata.annotations.get(RANK, "")) if pod.status.phase != "Failed" else None


def own_rank(pod: Pod) -> int | None:
    """The pod's own rank, if the job has no other parts (docs/spec/scheduling.md#ranks).

    In this order: the annotation, unless the pod has failed; its index in the job. None if its job has to assign one:
    the index within one of several Jobs of a JobSet, or within one replica type of a kubeflow job, is not a rank.
    """
    written = written_rank(pod)
    return written if written is not None else marks_of(pod).position.own


def is_later(pod: Pod) -> bool:
    """Whether the pod's own index shows that pods come before it."""
    position = marks_of(pod).position
    return bool(own_rank(pod) or position.at or position.outer)


def filling_order(pod: Pod, parts: tuple[str, ...] = ()) -> tuple[bool, int, str, int, int, str, int, str]:
    """The order in which pods without a rank of their own get one.

    Masters first, then by part, by index, and by name.

    Args:
        pod: the pod.
        parts: the parts of its job in their order, if that is known.
    """
    position = marks_of(pod).position
    stem, _, last = pod.name.rpartition("-")
    at = number(last)
    return (
        position.part not in LEADERS,
        parts.index(position.part) if position.part in parts else len(parts),
        position.part,
        position.outer,
        position.at or 0,
        stem if at is not None else pod.name,
        at or 0,
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
