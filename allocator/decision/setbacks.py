"""For which jobs nothing is kept for some time, because what was kept for them was of no use. No I/O.

A job may have chips kept that it never uses: it lacks something else than chips, or nobody wants to start it. Its next
turn comes after twice the time; so does that of its namespace, from its second such job on: one more job costs its
author nothing. And since another namespace may cost as little, those of which no job has ever used what was kept
for it wait together as well, the longer the more of them did in vain.
"""

from collections.abc import Callable
from typing import Final

from allocator.rules.job import JobKey
from ascend.rate_limiters import ItemBackoff

ASIDE_S: Final = 600.0
"""How long a job is left out after its first attempt in vain, and a namespace after its second."""
UNPROVEN_S: Final = 120.0
"""How long the namespaces that have used nothing yet are left out after the first attempt in vain of one of them."""
LONGEST_S: Final = 3600.0
"""The longest of these times."""
_PROVEN_S: Final = 24 * 3600.0
"""How long a namespace counts as one whose jobs use what is kept for them."""


class Setbacks:
    """Remembers attempts in vain.

    Args:
        monotonic: the clock.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._jobs = ItemBackoff[JobKey](monotonic, ASIDE_S, LONGEST_S)
        self._namespaces = ItemBackoff[str](monotonic, ASIDE_S, LONGEST_S, free=1)
        self._unproven = ItemBackoff[None](monotonic, UNPROVEN_S, LONGEST_S)
        self._proven: dict[str, float] = {}

    def is_aside(self, job: JobKey) -> bool:
        """Whether nothing is kept for a job now."""
        is_unproven = job.namespace not in self._proven and self._unproven.is_waiting(None)
        return is_unproven or self._jobs.is_waiting(job) or self._namespaces.is_waiting(job.namespace)

    def in_vain(self, job: JobKey) -> None:
        """Chips that were kept for a job were of no use to it."""
        since_s = self._monotonic() - _PROVEN_S
        self._proven = {name: last_s for name, last_s in self._proven.items() if last_s > since_s}
        self._jobs.fail(job)
        self._namespaces.fail(job.namespace)
        if job.namespace not in self._proven:
            self._unproven.fail(None)

    def on_use(self, job: JobKey) -> None:
        """A job has started on chips that were kept for it."""
        self._proven[job.namespace] = self._monotonic()
        self._jobs.forget(job)
        self._namespaces.forget(job.namespace)
