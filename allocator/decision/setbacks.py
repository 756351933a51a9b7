"""For which jobs nothing is kept for some time, because what was kept for them was of no use. No I/O.

A job may have chips kept that it never uses: it lacks something else than chips, or nobody wants to start it. Its next
turn comes after twice the time; so does that of its namespace, from its second such job on: one more job costs its
author nothing. And since another namespace may cost as little, those of which no job has ever used what was kept
for it wait together as well, the longer the more of them did in vain.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from allocator.rules.job import JobKey

ASIDE_S: Final = 600.0
"""How long a job is left out after its first attempt in vain, and a namespace after its second."""
UNPROVEN_S: Final = 120.0
"""How long the namespaces that have used nothing yet are left out after the first attempt in vain of one of them."""
LONGEST_S: Final = 3600.0
"""The longest of these times."""
_REMEMBERED_S: Final = 24 * 3600.0
"""How long after its last attempt the attempts of a job or namespace are remembered."""


@dataclass(slots=True)
class _Setback:
    times: int = 0
    until_s: float = 0.0
    last_s: float = 0.0

    def again(self, now_s: float, first_s: float, *, free: int = 0) -> None:
        self.times += 1
        self.last_s = now_s
        doubled = self.times - 1 - free
        self.until_s = now_s + (min(first_s * 2.0 ** min(doubled, 30), LONGEST_S) if doubled >= 0 else 0.0)


class Setbacks:
    """Remembers attempts in vain.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._jobs: dict[JobKey, _Setback] = {}
        self._namespaces: dict[str, _Setback] = {}
        self._unproven = _Setback()
        self._proven: dict[str, float] = {}

    def is_aside(self, job: JobKey) -> bool:
        """Whether nothing is kept for a job now."""
        now_s = self._monotonic()
        own, namespace = self._jobs.get(job), self._namespaces.get(job.namespace)
        return (
            (own is not None and now_s < own.until_s)
            or (namespace is not None and now_s < namespace.until_s)
            or (job.namespace not in self._proven and now_s < self._unproven.until_s)
        )

    def in_vain(self, job: JobKey) -> None:
        """Chips that were kept for a job were of no use to it."""
        now_s = self._monotonic()
        self._forget(now_s)
        self._jobs.setdefault(job, _Setback()).again(now_s, ASIDE_S)
        self._namespaces.setdefault(job.namespace, _Setback()).again(now_s, ASIDE_S, free=1)
        if job.namespace not in self._proven:
            self._unproven.again(now_s, UNPROVEN_S)

    def used(self, job: JobKey) -> None:
        """A job has started on chips that were kept for it."""
        self._proven[job.namespace] = self._monotonic()
        self._jobs.pop(job, None)
        self._namespaces.pop(job.namespace, None)

    def _forget(self, now_s: float) -> None:
        since_s = now_s - _REMEMBERED_S
        self._jobs = {job: each for job, each in self._jobs.items() if each.last_s > since_s}
        self._namespaces = {name: each for name, each in self._namespaces.items() if each.last_s > since_s}
        self._proven = {name: last_s for name, last_s in self._proven.items() if last_s > since_s}
        if self._unproven.last_s <= since_s:
            self._unproven = _Setback()
