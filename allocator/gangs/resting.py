"""Gangs that rest: a gang with equal pods has just tried to start in vain, and so would these. No I/O.

Only a try tells that the pods of a gang exclude each other: by host ports, by anti-affinity, by the CPU of one node.
Such a try keeps chips for some seconds. So all gangs of a namespace whose pods ask for the same rest after it: until a
pod ends or a node changes, or else for a time that doubles with each try in vain, since not all is seen on which it
depends. The more different gangs rest, the longer each of them does from its second try in vain on: together they try
once in ``SHARE_S``.

Gangs are alike by the specs of their pods, and by the settings of the job, wherever these are written. The labels of
the pods do not count, although the anti-affinity of their peers may select them: one of them names the job, so no two
gangs of one template would be alike. Bindings that were held and are given up end no rest: gangs that can't start would
wake each other with each try.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from allocator.rules.job import JobKey
from allocator.rules.job_settings import deciding
from allocator.state.cluster import Cluster
from allocator.state.item_backoff import ItemBackoff
from allocator.state.job import Job

FIRST_REST_S: Final = 15.0
"""How long gangs rest after a try in vain, also if pods end all the time."""
LONGEST_REST_S: Final = 600.0
"""How long they rest at most while no pod ends and no node changes, if no others do."""
SHARE_S: Final = 30.0

_Kind: TypeAlias = tuple[str, int, int, frozenset[tuple[str, str]]]


class Resting:
    """The gangs that rest.

    Args:
        cluster: nodes, pods and jobs.
        monotonic: the clock.
    """

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._backoff = ItemBackoff[_Kind](monotonic, FIRST_REST_S, LONGEST_REST_S)
        self._openings: dict[_Kind, int] = {}
        self._tried: dict[JobKey, _Kind] = {}
        self._kinds = 0

    def begin(self, job: Job) -> None:
        """A gang has tried in vain, although it has chips."""
        kind = _kind_of(job)
        # Pods that are bound have no requirements any more, so the kind of a gang that starts is no longer known then.
        self._tried = {key: known for key, known in self._tried.items() if key in self._cluster.jobs.by_key}
        self._tried[job.key] = kind
        self._backoff.failed(kind)
        self._openings[kind] = self._cluster.openings
        self._openings = {known: count for known, count in self._openings.items() if known in self._backoff}
        self._kinds = sum(self._backoff.since_s(known) < LONGEST_REST_S for known in self._openings)

    def ended(self, job: JobKey) -> None:
        """A gang that has waited starts: the tries in vain of gangs like it don't count any more."""
        if (kind := self._tried.pop(job, None)) is not None:
            self._backoff.succeeded(kind)

    def __contains__(self, job: Job) -> bool:
        kind = _kind_of(job)
        if (since_s := self._backoff.since_s(kind)) < FIRST_REST_S:
            return True
        if self._openings.get(kind) != self._cluster.openings:
            return False
        is_others_turn = self._backoff.times(kind) > 1 and since_s < SHARE_S * self._kinds
        return is_others_turn or self._backoff.is_waiting(kind)


def _kind_of(job: Job) -> _Kind:
    settings = frozenset[tuple[str, str]]().union(
        *(deciding(place.labels) | deciding(place.annotations) for place in job.settings)
    )
    return job.key.namespace, job.min_available, job.requirements, settings
