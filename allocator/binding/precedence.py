"""The order in which gangs start whose Bindings another scheduler posts.

Such a scheduler chooses a node for each pod alone, and several gangs at once. Each Binding that waits for the others of
its gang has chips, which the next gang lacks, and that one has what the first lacks: none of them ever has all. So once
gangs stand in each other's way only one of them is served at a time, of the highest priority the oldest. The others
hold nothing meanwhile.
"""

from collections.abc import Callable
from typing import Final

from allocator.gangs.gangs import Gangs
from allocator.gangs.turns import created
from allocator.rules.job import JobKey
from allocator.state.cluster import Cluster
from allocator.state.job import Job

TURN_S: Final = 20.0
"""How long a gang may take until its first Binding is made, and until each further one; then the next gang is served.
kube-scheduler tries a refused pod again after at most 10 s."""


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
        self._waiting: dict[JobKey, tuple[int, int, str, str]] = {}
        self._first: JobKey | None = None
        self._since_s = 0.0

    def ahead_of(self, job: Job) -> JobKey | None:
        """The gang that is served now, if that is another one: then this one waits for it. None if it may be served."""
        if self._gangs.find_started(job) is not None or not self._waiting:
            return None
        self._pass_on()
        if self._first is not None and self._first != job.key:
            self.join(job)
        return None if self._first in (None, job.key) else self._first

    def join(self, job: Job) -> None:
        """Let a gang wait that has not started, behind those of its priority that are older."""
        if job.key not in self._waiting and self._gangs.find_started(job) is None:
            tries = min((each[0] for each in self._waiting.values()), default=0)
            priority = max((pod.priority for pod in job.pods.values()), default=0)
            self._waiting[job.key] = (tries, -priority, created(job), job.key.plan)
            self._choose()

    def advance(self, job: Job) -> None:
        """Give a gang time for its next Binding, because one is being made."""
        if job.key == self._first:
            self._since_s = self._monotonic()

    def _pass_on(self) -> None:
        """Forget gangs that have started or are gone, and end the turn of one that has not started in time."""
        for key in tuple(self._waiting):
            job = self._cluster.jobs.by_key.get(key)
            if job is None or (self._gangs.find_started(job) is not None and self._gangs.may_start(job)):
                del self._waiting[key]
        self._choose()
        if self._first is not None and self._monotonic() - self._since_s >= TURN_S:
            tries, priority, since, plan = self._waiting[self._first]
            self._waiting[self._first] = (tries + 1, priority, since, plan)
            self._choose()
            self._since_s = self._monotonic()

    def _choose(self) -> None:
        first = min(self._waiting, key=self._waiting.__getitem__, default=None)
        if first != self._first:
            self._first, self._since_s = first, self._monotonic()
