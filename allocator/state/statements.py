"""What the pods of one job state about the number of them to place together."""

from collections.abc import Callable
from contextlib import suppress

import msgspec

from allocator.rules.job import minimum_from, stated_minimum, stated_whole
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.kind import JobFacts
from ascend.kube.objects import Pod


class _Statement(msgspec.Struct, frozen=True, order=True, gc=False):
    created: str
    name: str
    minimum: int


class Statements(msgspec.Struct, eq=False, gc=False):
    """The statements of pods, by uid; invalid ones don't count: they are refused when the pod is scheduled."""

    _minimums: dict[str, _Statement] = {}
    _last: _Statement | None = None
    _wholes: dict[str, int] = {}
    _counts: dict[int, int] = {}

    @property
    def minimum(self) -> int | None:
        """The minimum stated by the pods; None if none states one.

        If they contradict each other, as during the rollout of a changed template, the newest pod that states one
        decides: the result is the same after a restart, whatever the order in which the pods are seen.
        """
        if self._last is None and self._minimums:
            self._last = max(self._minimums.values())
        return self._last.minimum if self._last is not None else None

    @property
    def whole(self) -> int | None:
        """How many pods start together, as the controller of their kind of job has written on them."""
        return max(self._counts, default=None)

    def note(self, pod: Pod) -> None:
        """Record what a pod states."""
        last = self._last
        self.forget(pod.uid)
        if (whole := _valid(stated_whole, pod)) is not None:
            self._wholes[pod.uid] = whole
            self._counts[whole] = self._counts.get(whole, 0) + 1
        minimum = _valid(stated_minimum, pod)
        if minimum is None:
            return
        statement = _Statement(pod.metadata.creation_timestamp or "", pod.name, minimum)
        self._minimums[pod.uid] = statement
        if len(self._minimums) == 1 or (last is not None and statement >= last):
            self._last = statement

    def forget(self, uid: str) -> None:
        """Remove what a pod has stated."""
        whole = self._wholes.pop(uid, None)
        if whole is not None:
            self._counts[whole] -= 1
            if not self._counts[whole]:
                del self._counts[whole]
        if self._minimums.pop(uid, None) == self._last:
            self._last = None


def _valid(read: Callable[[Pod], int | None], pod: Pod) -> int | None:
    """What a pod states; None if that is invalid."""
    try:
        return read(pod)
    except Refusal:
        return None


def annotated_minimum(facts: JobFacts) -> int | None:
    """The minimum that is annotated on a pod group or on the object of an operator; None without one."""
    text = facts.annotations.get(MIN_AVAILABLE)
    with suppress(Refusal):
        return minimum_from(text, MIN_AVAILABLE) if text is not None else None
    return None
