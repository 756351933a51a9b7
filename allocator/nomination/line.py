"""The pods that the scheduler has not filtered yet, in the order of its queue; no I/O."""

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Final, TypeAlias

from ascend.kube.objects import Pod

_SWEEP: Final = 64
"""Entries of removed pods are dropped when there are more of them than pods, and more than this."""

_Key: TypeAlias = tuple[int, bool, str, int, str]
"""What orders pods, and the uid."""


class Line:
    """Pods in the order of kube-scheduler's queue: the highest priority first, then the oldest.

    Args:
        numbers: tells pods apart that were created within one second; other lines may use the same.
    """

    def __init__(self, numbers: Iterator[int] | None = None) -> None:
        self._heap: list[_Key] = []
        self._uids: dict[str, int] = {}
        self._numbers = count() if numbers is None else numbers

    def __len__(self) -> int:
        return len(self._uids)

    def __contains__(self, uid: str) -> bool:
        return uid in self._uids

    def add(self, pod: Pod, *, is_tried: bool = False) -> None:
        """Add a pod unless present; a tried pod comes behind the untried pods of the same priority."""
        if pod.uid not in self._uids:
            number = self._uids[pod.uid] = next(self._numbers)
            # Creation times have a resolution of one second; the order of events decides within it.
            created = pod.metadata.creation_timestamp or ""
            heapq.heappush(self._heap, (-pod.priority, is_tried, created, number, pod.uid))

    def remove(self, uid: str) -> bool:
        """Remove a pod; returns whether it was there."""
        there = self._uids.pop(uid, None) is not None
        if len(self._heap) > 2 * len(self._uids) + _SWEEP:
            self._heap = [entry for entry in self._heap if self._uids.get(entry[-1]) == entry[-2]]
            heapq.heapify(self._heap)
        return there

    @property
    def first(self) -> str | None:
        """The uid of the first pod; None if there is none."""
        head = self.head
        return head[-1] if head is not None else None

    @property
    def head(self) -> _Key | None:
        """The first pod with its sort key; None if the line is empty."""
        while self._heap:
            *_, number, uid = self._heap[0]
            if self._uids.get(uid) == number:
                return self._heap[0]
            heapq.heappop(self._heap)
        return None


SEATED: Final = ""
"""In place of a namespace: the pods whose chips are reserved in the plan of a gang."""


class Lines:
    """A line for each namespace, and one for pods with seats.

    Of the lines that are admitted the pod comes first that would come first in one line of all.
    """

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._namespaces: dict[str, str] = {}
        self._numbers = count()

    def __len__(self) -> int:
        return len(self._namespaces)

    def add(self, pod: Pod, *, has_seat: bool = False, is_tried: bool = False) -> None:
        """Add a pod unless present; a tried pod comes behind the untried pods of the same priority."""
        namespace = SEATED if has_seat else pod.metadata.namespace
        if self._namespaces.setdefault(pod.uid, namespace) == namespace:
            self._lines.setdefault(namespace, Line(self._numbers)).add(pod, is_tried=is_tried)

    def remove(self, uid: str) -> None:
        """Remove a pod; no effect if it is not there."""
        namespace = self._namespaces.pop(uid, None)
        if namespace is not None:
            line = self._lines[namespace]
            line.remove(uid)
            if not line:
                del self._lines[namespace]

    def pop(self, admits: Callable[[str], bool]) -> str | None:
        """Remove the first pod of the admitted namespaces and return its uid; None without such a pod."""
        heads = (line.head for namespace, line in self._lines.items() if admits(namespace))
        first = min((head for head in heads if head is not None), default=None)
        if first is None:
            return None
        self.remove(first[-1])
        return first[-1]
