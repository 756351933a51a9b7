"""Pods that request nothing the allocator assigns: most pods of a cluster, so as little as possible is kept of each.

They count only where a scheduler preempts them for another resource, as CPU: then their priority and age decide which
node is chosen. With 100,000 of them a whole object each would take 600 MB.
"""

from collections.abc import Callable, Collection, Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from allocator.rules.job import find_job, stated_minimum
from ascend.errors import Refusal
from ascend.jobs.core import INDEXED_JOB, JOB, SINGLE, STATEFUL_SET
from ascend.kube.objects import Pod, unix_seconds

_VENDOR: Final = "huawei.com/"
_ALIKE: Final = frozenset({SINGLE, STATEFUL_SET, INDEXED_JOB, JOB, "ReplicaSet", "ReplicationController"})
"""Kinds whose pods are made from one template: all of them request chips, or none."""

_UID_LENGTH: Final = 36
_TIME_BITS: Final = 35
_SERVED: Final = 1 << _TIME_BITS
_POSITION: Final = _TIME_BITS + 1


class PlainPod(NamedTuple):
    """What is kept of a plain pod.

    Attributes:
        priority: its priority.
        since: when it was created, RFC 3339; empty if that is unknown.
        terminating: whether it is terminating.
        served: whether it names one of ``PlainPods.schedulers``.
    """

    priority: int
    since: str
    terminating: bool
    served: bool = False


def is_plain(pod: Pod) -> bool:
    """Whether a pod requests no chips and no vNPUs, and can't belong to a gang whose other pods do.

    Other pods without chips count in their jobs: the launcher of an MPIJob is one of the pods that its group requires.
    """
    for containers in (pod.spec.containers, pod.spec.init_containers):
        for container in containers:
            for quantities in (container.resources.limits, container.resources.requests):
                for name in quantities:
                    if name.startswith(_VENDOR):
                        return False
    try:
        return find_job(pod).kind in _ALIKE and stated_minimum(pod) is None
    except Refusal:
        return False


class PlainPods:
    """The plain pods, by uid; about 130 bytes each, and some for gaps in the memory.

    They are passed to it by a reflector that keeps no copy of them (``ascend.kube.handler.Unkept``).

    Args:
        lost: called after a list that lacked pods: they have ended while nobody watched.

    Attributes:
        schedulers: the names of the schedulers that are served.
    """

    def __init__(self, lost: Callable[[], None] = lambda: None) -> None:
        self.schedulers: Collection[str] = ()
        self._lost = lost
        # A uid as a number takes half the memory of its text, and numbers don't concern the garbage collector.
        self._pods: dict[int | str, int] = {}
        self._listed: dict[int | str, int] | None = None
        # A cluster has few different priorities; with their positions in this list a pod is a number below 2^60.
        self._priorities: list[int] = []
        self._position: dict[int, int] = {}

    def __contains__(self, uid: object) -> bool:
        return isinstance(uid, str) and _key(uid) in self._pods

    def __len__(self) -> int:
        return len(self._pods)

    def __iter__(self) -> Iterator[str]:
        return map(_uid, self._pods)

    def get(self, uid: str) -> PlainPod | None:
        """What is kept of a pod; None if it is not a plain pod, or unknown."""
        packed = self._pods.get(_key(uid))
        return self._unpack(packed) if packed is not None else None

    def unkept(self, pod: Pod) -> bool:
        """Whether a reflector need not keep a pod."""
        return is_plain(pod)

    def put(self, pod: Pod) -> None:
        """Add or update a plain pod."""
        key, packed = _key(pod.uid), self._pack(pod)
        self._pods[key] = packed
        if self._listed is not None:
            self._listed[key] = packed

    def discard(self, uid: str) -> bool:
        """Remove a pod; returns whether it was there."""
        return self._pods.pop(_key(uid), None) is not None

    def list_started(self) -> None:
        """All plain pods are about to be put again."""
        # The first list fills the dictionary itself: two that grow at the same time leave gaps in the memory.
        self._listed = {} if self._pods else self._pods

    def list_ended(self) -> None:
        """Those that were not put since the list started no longer exist."""
        if self._listed is not None:
            is_complete = len(self._listed) >= len(self._pods)  # what is listed is put into both
            self._pods, self._listed = self._listed, None
            if not is_complete:
                self._lost()

    def _pack(self, pod: Pod) -> int:
        position = self._position.setdefault(pod.priority, len(self._priorities))
        if position == len(self._priorities):
            self._priorities.append(pod.priority)
        served = _SERVED if pod.spec.scheduler_name in self.schedulers else 0
        return position << _POSITION | served | _created_s(pod) << 1 | pod.is_terminating

    def _unpack(self, packed: int) -> PlainPod:
        created_s = (packed & (1 << _TIME_BITS) - 1) >> 1
        since = datetime.fromtimestamp(created_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if created_s else ""
        priority = self._priorities[packed >> _POSITION]
        return PlainPod(priority, since, bool(packed & 1), bool(packed & _SERVED))


def _key(uid: str) -> int | str:
    if len(uid) == _UID_LENGTH:
        try:
            key = int(uid.replace("-", ""), 16)
        except ValueError:
            return uid
        if _uid(key) == uid:
            return key
    return uid


def _uid(key: int | str) -> str:
    if isinstance(key, str):
        return key
    digits = f"{key:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _created_s(pod: Pod) -> int:
    """When a pod was created, Unix seconds; 0 if that is unknown."""
    created_s = int(unix_seconds(pod.metadata.creation_timestamp) or 0)
    return min(max(created_s, 0), (1 << _TIME_BITS - 1) - 1)
