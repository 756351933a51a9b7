"""The order in which gangs start whose Bindings another scheduler posts.

Such a scheduler chooses a node for each pod alone, and several gangs at once. Each Binding that waits for the others of
its gang has chips, which the next gang lacks, and that one has what the first lacks: none of them ever has all. So once
gangs stand in each other's way only one of them is served at a time, of the highest priority the oldest. The others
hold nothing meanwhile.

A gang that starts in part is served alone as well, until it has all that its minimum needs: nothing is reserved for its
other pods, so two of them would take each other's chips, and neither would ever run.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from allocator.gangs.gangs import Gangs
from allocator.gangs.turns import created
from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.errors import Refusal
from ascend.kube.objects import Pod

TURN_S: Final = 20.0
"""How long a gang may take until its first Binding is made, and until each further one; then the next gang is served.
kube-scheduler tries a refused pod again after at most 10 s."""

ROOM_S: Final = 3.0
"""How often it is examined whether the gang that is served fits; if not, its turn ends. Longer than the Bindings of
others are held, which may be in its way."""


@dataclass(slots=True)
class _Wait:
    """A gang that waits.

    Attributes:
        job: the ``first_version`` of the job.
        tries: how many of its turns have ended without a start.
        order: its place among those with as many tries.
    """

    job: int
    tries: int
    order: tuple[int, str, str]


class Precedence:
    """The gangs that wait for each other.

    Args:
        cluster: nodes, pods and jobs.
        gangs: says how far gangs are.
        monotonic: the clock.
    """

    def __init__(self, cluster: Cluster, gangs: Gangs, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._gangs = gangs
        self._monotonic = monotonic
        self._waiting: dict[JobKey, _Wait] = {}
        self._first: JobKey | None = None
        self._since_s = 0.0
        self._due_s = 0.0

    def ahead_of(self, job: Job, pod: Pod) -> JobKey | None:
        """The gang that is served now, if that is another one: then this one waits for it. None if it may be served.

        Args:
            job: the gang.
            pod: the pod whose Binding was posted.
        """
        has_started = self._gangs.find_started(job) is not None
        if has_started:
            if self._gangs.may_start(job):
                return None
            self.join(job)  # another allocator may have started it
        elif not self._waiting or self._gangs.incomplete(job, pod) is not None:
            return None
        self._forget()
        if self._first is not None:
            self.join(job)
            self._pass_on()
        if self._first in (None, job.key) or (has_started and not self._has_started(self._first)):
            return None
        return self._first

    def join(self, job: Job) -> None:
        """Let a gang wait, behind those of its priority that are older and those that have started in part."""
        if job.key not in self._waiting:
            tries = min((each.tries for each in self._waiting.values()), default=0)
            priority = max((pod.priority for pod in job.pods.values()), default=0)
            self._waiting[job.key] = _Wait(job.first_version, tries, (-priority, created(job), job.key.plan))
            self._choose()

    def advance(self, job: Job) -> None:
        """Give a gang time for its next Binding, because one is being made."""
        if job.key == self._first:
            self._since_s = self._monotonic()

    def _forget(self) -> None:
        """Forget gangs that have started as a whole or are gone."""
        for key, wait in tuple(self._waiting.items()):
            job = self._cluster.jobs.by_key.get(key)
            is_same = job is not None and job.first_version == wait.job
            if job is None or not is_same or (self._gangs.find_started(job) is not None and self._gangs.may_start(job)):
                del self._waiting[key]
        self._choose()

    def _pass_on(self) -> None:
        """End the turn of a gang that has not made use of it in time, and the turns of those that do not fit."""
        now_s = self._monotonic()
        if self._first is None or now_s < self._due_s:
            return
        self._due_s = now_s + ROOM_S
        if now_s - self._since_s < TURN_S and self._fits(self._first):
            return
        for _ in range(len(self._waiting)):
            self._waiting[self._first].tries += 1
            self._choose()
            if self._fits(self._first):
                break
        self._since_s, self._due_s = now_s, now_s + ROOM_S

    def _fits(self, key: JobKey) -> bool:
        try:
            self._gangs.require_rest(self._cluster.jobs.by_key[key])
        except Refusal:
            return False
        return True

    def _choose(self) -> None:
        first = min(self._waiting, key=self._order, default=None)
        if first != self._first:
            self._first, self._since_s = first, self._monotonic()
            self._due_s = self._since_s + ROOM_S

    def _order(self, key: JobKey) -> tuple[int, bool, tuple[int, str, str]]:
        wait = self._waiting[key]
        return wait.tries, not self._has_started(key), wait.order

    def _has_started(self, key: JobKey) -> bool:
        job = self._cluster.jobs.by_key.get(key)
        return job is not None and self._gangs.find_started(job) is not None
