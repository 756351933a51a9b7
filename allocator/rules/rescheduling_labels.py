"""What a job says about its rescheduling: docs/spec/rescheduling.md#job-switches."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from ascend.errors import InvalidValue
from ascend.jobs.kind import JobFacts
from ascend.kube.objects import Pod

_E = TypeVar("_E", bound=StrEnum)

FAULT_SCHEDULING: Final = "fault-scheduling"
RETRY_TIMES: Final = "fault-retry-times"
_POD_RESCHEDULING: Final = "pod-rescheduling"
_PROCESS_RECOVERY: Final = "process-recover-enable"
_STRATEGY: Final = "subHealthyStrategy"
_ELASTIC: Final = "elastic-scheduling"
_LIMIT: Final = "huawei.com/recover_policy_path"
_DELETED_ELSEWHERE: Final = "ProcessRecoverStrategy"
_INFERENCE: Final = "ome.io/inferenceservice"
_MINDIE: Final = frozenset({"mindie-ms-controller", "mindie-ms-coordinator"})

_LABELS: Final = (
    FAULT_SCHEDULING,
    RETRY_TIMES,
    _POD_RESCHEDULING,
    _PROCESS_RECOVERY,
    _STRATEGY,
    _ELASTIC,
    _INFERENCE,
    "app",
)
_ANNOTATIONS: Final = (_LIMIT, _DELETED_ELSEWHERE)


class Mode(StrEnum):
    """How the pods of a job are deleted after a fault."""

    OFF = "off"
    GRACE = "grace"
    FORCE = "force"
    EXTERNAL_GRACE = "external-grace"
    EXTERNAL_FORCE = "external-force"

    @property
    def is_external(self) -> bool:
        """Whether another program deletes the pods: the faulty ones are only marked."""
        return self in {Mode.EXTERNAL_GRACE, Mode.EXTERNAL_FORCE}


class Strategy(StrEnum):
    """What becomes of a pod on a sub-healthy node."""

    IGNORE = "ignore"
    GRACE_EXIT = "graceExit"
    FORCE_EXIT = "forceExit"
    HOT_SWITCH = "hotSwitch"


class Reach(StrEnum):
    """Which pods of a job go with a faulty one."""

    JOB = "job"
    """All of them."""
    WIDER = "wider"
    """First none; those of its block, and then all of them, if its successor waits."""
    PROCESSES = "processes"
    """None, unless the master is faulty: the processes of the others recover."""
    POD = "pod"
    """None at all."""


class FaultLabels(msgspec.Struct, frozen=True, gc=False):
    """What a job says about its rescheduling.

    Attributes:
        mode: how its pods are deleted.
        reach: which pods go with a faulty one.
        retries: how often failed pods are replaced; faults of the hardware are not limited.
        strategy: what becomes of its pods on a sub-healthy node.
        restarts: whether the processes of pods that stay start again once the others are replaced.
    """

    mode: Mode = Mode.OFF
    reach: Reach = Reach.JOB
    retries: int = 0
    strategy: Strategy = Strategy.IGNORE
    restarts: bool = False


OFF: Final = FaultLabels()

_ON: Final = ("on", "off")
KNOWN_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    FAULT_SCHEDULING: tuple(Mode),
    _STRATEGY: tuple(Strategy),
    _POD_RESCHEDULING: _ON,
    _PROCESS_RECOVERY: (*_ON, "pause"),
    _ELASTIC: _ON,
}
"""The known values of the labels that have some."""
STRICT: Final = (FAULT_SCHEDULING, _STRATEGY)
"""The labels whose unknown values keep all pods of their job from being deleted."""


def unknown_value(key: str, labels: Mapping[str, str]) -> str | None:
    """Return a label as in ``fault-scheduling=forced (known values: …)`` if its value is unknown; else None.

    Args:
        key: a key of ``KNOWN_VALUES``, or ``RETRY_TIMES``.
        labels: what a pod and its job say.
    """
    if not (text := labels.get(key)):
        return None
    if key == RETRY_TIMES:
        return None if is_number_of_retries(text) else f"{key}={text} (known values: whole numbers)"
    known = KNOWN_VALUES[key]
    return None if text in known else f"{key}={text} (known values: {', '.join(known)})"


def read_switches(job: Iterable[JobFacts | None], pods: Iterable[Pod]) -> FaultLabels:
    """Read what a job says.

    What its pod group and the object of its operator say counts before what its pods say, key by key.

    Args:
        job: what the pod group and the object say, the one that counts first before the other.
        pods: its pods.

    Raises:
        InvalidValue: a switch has an unknown value, or the pods contradict each other: then nothing may be deleted.
    """
    said: dict[str, str] = {}
    for facts in filter(None, job):
        _take(said, facts.labels, facts.annotations)
    by_pods: dict[str, str] = {}
    for pod in pods:
        found: dict[str, str] = {}
        _take(found, pod.metadata.labels, pod.metadata.annotations)
        for key, value in found.items():
            if by_pods.setdefault(key, value) != value and key not in said and key not in {"app", _INFERENCE}:
                raise InvalidValue(f"{key} is {by_pods[key]!r} on some of its pods, but {value!r} on pod {pod.key}")
    said = {**by_pods, **said}
    mode = _read(Mode, FAULT_SCHEDULING, said, Mode.OFF)
    if said.get(_ELASTIC) == "on" or _DELETED_ELSEWHERE in said:
        mode = Mode.OFF  # another program decides about its pods
    return FaultLabels(
        mode,
        _reach(said),
        read_retries(said.get(RETRY_TIMES, "")),
        _read(Strategy, _STRATEGY, said, Strategy.IGNORE),
        said.get(_POD_RESCHEDULING) == "on" and said.get(_PROCESS_RECOVERY) != "on",
    )


def _take(said: dict[str, str], labels: Mapping[str, str], annotations: Mapping[str, str]) -> None:
    for keys, values in ((_LABELS, labels), (_ANNOTATIONS, annotations)):
        for key in keys:
            if key in values:
                said.setdefault(key, values[key])


def _reach(said: Mapping[str, str]) -> Reach:
    if said.get(_LIMIT) == "pod" or _INFERENCE in said or said.get("app") in _MINDIE:
        return Reach.POD
    if said.get(_POD_RESCHEDULING) == "on":
        return Reach.PROCESSES if said.get(_PROCESS_RECOVERY) == "on" else Reach.WIDER
    return Reach.PROCESSES if said.get(_PROCESS_RECOVERY) == "on" else Reach.JOB


def read_retries(text: str) -> int:
    """Read how often failed pods are replaced; what is not a number means never."""
    return int(text) if is_number_of_retries(text) else 0


def is_number_of_retries(text: str) -> bool:
    """Return whether a text says how often failed pods are replaced."""
    return text.isascii() and text.isdigit() and len(text) < 10  # noqa: PLR2004 - no job has more


def _read(kind: type[_E], key: str, said: Mapping[str, str], otherwise: _E) -> _E:
    text = said.get(key, "")
    try:
        return kind(text) if text else otherwise
    except ValueError:
        known = ", ".join(kind)
        raise InvalidValue(f"{key} is {text!r}; known values: {known}") from None
