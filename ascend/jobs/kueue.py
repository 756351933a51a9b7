"""Plain pods of a group of Kueue."""

from typing import Final

from ascend.jobs.kind import ALL, JobKind, Text
from ascend.jobs.marks import Position, number
from ascend.kube.objects import Pod

KUEUE: Final = "Kueue pod group"
_PREFIX = "kueue.x-k8s.io/pod-group-"
_NAME = f"{_PREFIX}name"
_SERVING = f"{_PREFIX}serving"
_TOTAL = f"{_PREFIX}total-count"
_INDEX = f"{_PREFIX}pod-index"


def _find(pod: Pod) -> str | None:
    # Kueue also groups the pods of a StatefulSet, for their quota only: they are created one after the other.
    is_serving = pod.metadata.annotations.get(_SERVING) == "true"
    return None if is_serving else pod.metadata.labels.get(_NAME) or None


def _position(pod: Pod) -> Position:
    metadata = pod.metadata
    index = number(metadata.labels.get(metadata.annotations.get(f"{_INDEX}-label", _INDEX), ""))
    return Position("", index, own=index)


KIND: Final = JobKind(
    KUEUE,
    Text("plain pods of a group of Kueue", f"label `{_NAME}`, unless annotation `{_SERVING}`", f"annotation `{_TOTAL}`",
         ALL, f"label `{_INDEX}`, else by name", "whoever created them"),
    _find, _position, marks=(_NAME,), stated=(_TOTAL,),
)  # fmt: skip
