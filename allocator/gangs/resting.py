"""Gangs that rest: a gang with equal pods has just tried to start in vain, and so would these. No I/O.

Only a try tells that the pods of a gang exclude each other: by host ports, by anti-affinity, by the CPU of one node.
Such a try keeps chips for some seconds. So all gangs of a namespace whose pods ask for the same rest after it: until
something changes that their scheduler reads (``Cluster.openings``), or else for a time that doubles with each try in
vain, since not all is seen on which it depends.

Further tries keep few chips from others, however many different gangs can't start: ``SHARE`` of the chip-seconds of the
cluster. What a try in vain has kept from others is owed until that share has made up for it. As long as anything is
owed, all further tries *yield* (``attempts.py``).

Gangs are alike by the specs of their pods, and by the settings of the job, wherever these are written. Labels count if
the affinity or the spreading of the pods names their keys, no others: one of them names the job, so no two gangs of one
template would be alike. Bindings that were held and are given up end no rest: gangs that can't start would wake each
other with each try.
"""

from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

from allocator.rules.job import JobKey
from allocator.rules.job_settings import deciding
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.rate_limiters import ItemBackoff

FIRST_REST_S: Final = 15.0
"""How long gangs rest after a try in vain, also if pods end all the time."""
LONGEST_REST_S: Final = 300.0
"""How long they rest at most while nothing changes."""
SHARE: Final = 0.01
"""The share of the chips of the cluster that tries in vain may keep from others, but for the first one of each gang."""

_Kind: TypeAlias = tuple[str, int, int, frozenset[tuple[str, str]]]


class Resting:
    """The gangs that rest.

    Args:
        cluster: nodes, pods and jobs.
        monotonic: the clock.

    Attributes:
        tries: how often gangs have had chips in vain.
    """

    def __init__(self, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._backoff = ItemBackoff[_Kind](monotonic, FIRST_REST_S, LONGEST_REST_S)
        self._openings: dict[_Kind, int] = {}
        self._tried: dict[JobKey, _Kind] = {}
        self.tries = Counter[JobKey]()
        self._monotonic = monotonic
        self._paid_s = 0.0  # when nothing is owed any more

    def begin(self, job: Job) -> None:
        """A gang has tried in vain, although it has chips."""
        kind = kind_of(job)
        # Pods that are bound have no requirements any more, so the kind of a gang that starts is no longer known then.
        self._tried = {key: known for key, known in self._tried.items() if key in self._cluster.jobs.by_key}
        self._tried[job.key] = kind
        self._backoff.fail(kind)
        self._openings[kind] = self._cluster.openings
        self._openings = {known: count for known, count in self._openings.items() if known in self._backoff}

    def note_try(self, job: Job) -> None:
        """A gang has had chips in vain."""
        self.tries = Counter({key: tries for key, tries in self.tries.items() if key in self._cluster.jobs.by_key})
        self.tries[job.key] += 1

    def count_kept(self, chip_s: float) -> None:
        """A gang has kept chips from others in vain for so many chip-seconds."""
        if not self.is_owed:
            chips = sum(bucket.vacancy.healthy * len(bucket) for bucket in self._cluster.index.buckets)
            self._paid_s = self._monotonic() + chip_s / (SHARE * max(chips, 1))

    def on_end(self, job: JobKey) -> None:
        """A gang that has waited starts: the tries in vain of gangs like it don't count any more."""
        if (kind := self._tried.pop(job, None)) is not None:
            self._backoff.forget(kind)

    @property
    def is_owed(self) -> bool:
        """Whether tries in vain have kept more than their share."""
        return self._paid_s > self._monotonic()

    def owes(self, job: Job) -> bool:
        """Whether gangs like this one have tried in vain, and tries have kept more than their share."""
        return self.is_owed and self.has_tried(job)

    def has_tried(self, job: Job) -> bool:
        """Whether a gang like this one has tried in vain."""
        return kind_of(job) in self._backoff

    def __contains__(self, job: Job) -> bool:
        kind = kind_of(job)
        is_unchanged = self._openings.get(kind) == self._cluster.openings
        return self._backoff.since_s(kind) < FIRST_REST_S or (is_unchanged and self._backoff.is_waiting(kind))


def kind_of(job: Job) -> _Kind:
    """The kind of a gang: gangs of one kind are alike."""
    settings = frozenset[tuple[str, str]]().union(
        *(deciding(place.labels) | deciding(place.annotations) for place in job.settings)
    )
    return job.key.namespace, job.min_available, job.requirements, settings
