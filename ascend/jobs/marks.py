"""Readers of the marks of controllers on pods: the job of a pod, and the position of the pod in the job."""

from collections.abc import Callable
from typing import Final

import msgspec

from ascend.kube.containers import INDEX_VARIABLES
from ascend.kube.objects import Pod

MOST_DIGITS: Final = 7

COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
ORDINAL: Final = "apps.kubernetes.io/pod-index"
VOLCANO_TASK: Final = "volcano.sh/task-spec"
VOLCANO_INDEX: Final = "volcano.sh/task-index"
_STATEFUL_SET_POD = "statefulset.kubernetes.io/pod-name"


class Position(msgspec.Struct, frozen=True, gc=False):
    """The position of a pod in its job, as it is written on the pod.

    Attributes:
        part: the name of its task, replica type, group or template (``PodSet``); empty if the job has one template.
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
    part = (metadata.annotations.get(VOLCANO_TASK) or labels.get(VOLCANO_TASK, "")).lower()
    if (ordinal := number(labels.get(ORDINAL, ""))) is not None:
        return Position(part, ordinal, own=ordinal)
    if _STATEFUL_SET_POD in labels:
        ordinal = number(labels[_STATEFUL_SET_POD].rpartition("-")[2])
        return Position(part, ordinal, own=ordinal)
    index = index_of(pod, (COMPLETION_INDEX, VOLCANO_INDEX), INDEX_VARIABLES)
    return Position(part, index, own=index)


def index_of(pod: Pod, keys: tuple[str, ...], variables: tuple[str, ...]) -> int | None:
    """The index of a pod by the first of these labels, annotations or variables that is a number."""
    metadata = pod.metadata
    for values in (metadata.labels, metadata.annotations):
        for key in keys:
            if (index := number(values.get(key, ""))) is not None:
                return index
    for container in pod.spec.containers:
        for variable in container.env:
            if variable.name in variables and (index := number(variable.value)) is not None:
                return index
    return None


def first_of(values: dict[str, str], keys: tuple[str, ...]) -> str | None:
    """The value of the first key that is there and not empty."""
    return next((name for key in keys if (name := values.get(key))), None)


def by_label(*keys: str) -> Callable[[Pod], str | None]:
    """Finds the job that a pod names, by the first of these labels on the pod."""
    return lambda pod: first_of(pod.metadata.labels, keys)


def by_owner(kind: str, version: str = "") -> Callable[[Pod], str | None]:
    """Finds the controller of a pod, if it is of this kind."""

    def find(pod: Pod) -> str | None:
        owner = pod.metadata.controller
        if owner is None or owner.kind != kind or not owner.api_version.startswith(version):
            return None
        return owner.name

    return find
