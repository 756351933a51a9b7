"""Earmarks: nodes that drain for a gang that waits, so that smaller pods don't starve it. No I/O.

A gang needs many chips at one time, and every chip that becomes free would be taken by the next small pod. So the gang
of the highest priority that waits for chips (of several, the oldest) has earmarked nodes: as many as it needs, always
those on which the fewest chips are still held. What becomes free there is promised to it (``state/promises.py``): pods
of lower or equal priority don't get it. A node that becomes free elsewhere replaces one that is still in use, so the
gang waits for any nodes, not for certain ones.

A pod that has to end in time (``activeDeadlineSeconds``) may use an earmarked node: if it ends before the last pod of
these nodes has to. That is known only if all of them have such a limit.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from msgspec.structs import replace as with_fields

from allocator.gangs.gangs import Gangs
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy, capacity
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import Server
from allocator.state.promises import Promise
from allocator.state.ranking import Bucket
from allocator.state.report import NodeReport
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.kube.objects import Pod

PATIENCE_S: Final = 120.0
"""How long nodes stay earmarked on which the gang fits, without being placed: it may lack something else."""
ASIDE_S: Final = 600.0
"""How long another gang comes first then."""

_PERIOD_S: Final = 10.0


class _Need(NamedTuple):
    """What a waiting gang needs.

    Attributes:
        version: of the job and of the nodes' labels; it is valid for this one.
        order: the sort key, the gang that comes first has the smallest.
        priority: the lowest of its pods.
        request: what the largest pod requests.
        seats: how many pods must be placed.
        candidates: names of the only nodes to use; None for every node.
    """

    version: tuple[int, int]
    order: tuple[int, str, JobKey]
    priority: int
    request: ChipRequest
    seats: int
    candidates: Collection[str] | None


class Earmarks:
    """Chooses the gang and the nodes.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        gangs: what is placed together.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        share: the largest share of the cluster's chips that are kept for a gang; 0 for none.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        request_of: Callable[[Pod], ChipRequest],
        *,
        share: float,
        now_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._request_of = request_of
        self._share = share
        self._wall_s = now_s
        self._waiting: dict[JobKey, _Need | None] = {}
        self._owner = ""
        self._seen: tuple[int, int, float] = (-1, 0, 0.0)
        self._drained_s: float | None = None
        self._aside: dict[JobKey, float] = {}
        if share > 0:
            cluster.waiting.subscribe(self._appeared)

    def note(self, job: Job) -> None:
        """A gang was refused because it does not fit."""
        if self._share > 0:
            self._waiting.setdefault(job.key, None)

    def update(self) -> None:
        """Choose again, if something has changed; call it before every decision."""
        if not self._waiting:
            return
        state = self._cluster.changes.revision, len(self._waiting), self._now_s // _PERIOD_S
        if state != self._seen:
            self._update()
            self._seen = self._cluster.changes.revision, len(self._waiting), self._now_s // _PERIOD_S

    def open_to(self, pod: Pod) -> Collection[str]:
        """The owner of the earmarked nodes, if a pod may use them because it ends in time."""
        limit_s, promise = pod.spec.active_deadline_seconds, self._promise
        if limit_s is None or promise is None:
            return ()
        latest_s = max((self._ends_s(uid) for uid in self._occupants(promise.chips)), default=0.0)
        return (promise.owner,) if self._wall_s() + limit_s <= latest_s < math.inf else ()

    @property
    def _now_s(self) -> float:
        return self._ledger.promises.monotonic()

    @property
    def _promise(self) -> Promise | None:
        promise = self._ledger.promises.get(self._owner) if self._owner else None
        return promise if promise is not None and promise.drains else None

    def _appeared(self, pod: Pod) -> None:
        job = self._cluster.jobs.job_of(pod)
        if job.is_gang:
            self._waiting.setdefault(job.key, None)

    def _update(self) -> None:
        promises = self._ledger.promises
        for need in self._needs():
            owner = need.order[2].plan
            kept = promises.get(owner)
            if kept is not None and not kept.drains:
                continue  # it preempts: its seats are kept already
            chips = self._choose(need, kept.chips if kept is not None else {})
            if not chips or self._is_stuck(need, chips):
                continue
            if self._owner != owner:
                self._drop()
                self._owner, self._drained_s = owner, None
            if kept is None:
                what = f"job {need.order[2]}"
                promises.keep(Promise(owner, what, need.priority, chips, math.inf, drains=True))
            else:
                promises.adjust(owner, chips)
            return
        self._drop()

    def _drop(self) -> None:
        if self._promise is not None:
            self._ledger.promises.drop(self._owner)
        self._owner = ""

    def _needs(self) -> list[_Need]:
        """What the waiting gangs need, in the order in which they come first."""
        found: list[_Need] = []
        for key, known in tuple(self._waiting.items()):
            job = self._cluster.jobs.by_key.get(key)
            if job is None or not job.is_gang:
                del self._waiting[key]
                self._aside.pop(key, None)
                continue
            version = job.version, self._cluster.labels.version
            need = known if known is not None and known.version == version else self._read(job, version)
            self._waiting[key] = need
            if need is not None and self._aside.get(key, 0.0) <= self._now_s:
                found.append(need)
        return sorted(found, key=lambda each: each.order)

    def _read(self, job: Job, version: tuple[int, int]) -> _Need | None:
        waiting = [each for each in job.pods.values() if each.waits_for_chips and self._ledger.get(each.uid) is None]
        if not waiting or job.placed_beside("") >= job.min_available or self._gangs.incomplete(job, waiting[0]):
            return None
        if self._gangs.turns.get(job) is not None:
            return None  # its scheduler has refused it: it lacks something else
        try:
            gang, needed = self._gangs.gang_request(waiting[0], self._request_of(waiting[0]), job, None)
        except Refusal:
            return None
        request = max((each.request for each in gang.members[:needed]), key=lambda each: each.chips)
        priority = min(each.priority for each in waiting)
        since = max(each.metadata.creation_timestamp or "" for each in waiting)
        return _Need(version, (-priority, since, job.key), priority, request, needed, gang.candidates)

    def _choose(self, need: _Need, current: Mapping[str, ChipSet]) -> dict[str, ChipSet]:
        """The chips of as many nodes as the gang needs; none if these are too many, or there are too few nodes."""
        index, total = self._cluster.index, 0
        by_held: defaultdict[int, list[Bucket]] = defaultdict(list)
        for bucket in index.buckets:
            total += bucket.vacancy.healthy * len(bucket)
            if bucket.vacancy.healthy >= need.request.chips:
                by_held[_held(bucket.vacancy)].append(bucket)
        if need.seats * need.request.chips > self._share * total:
            return {}
        earlier: defaultdict[int, list[str]] = defaultdict(list)
        for name in sorted(current):
            entry = index.entries.get(name)
            if isinstance(entry, Bucket):
                earlier[_held(entry.vacancy)].append(name)
        chosen: dict[str, ChipSet] = {}
        missing = need.seats
        for held in sorted(by_held):
            for name in self._names(by_held[held], earlier[held], need, current):
                seats, chips = self._empty(name, need)
                if seats:
                    chosen[name] = chips
                    missing -= seats
                if missing <= 0:
                    return chosen
        return {}

    def _names(
        self, buckets: list[Bucket], earlier: list[str], need: _Need, current: Mapping[str, ChipSet]
    ) -> Iterator[str]:
        """The nodes of some buckets: first those that are earmarked, then by name."""
        yield from earlier
        allowed = need.candidates
        names = [
            name
            for bucket in buckets
            for name in bucket
            if name not in current and (allowed is None or name in allowed)
        ]
        heapq.heapify(names)
        while names:  # few are used of possibly many
            yield heapq.heappop(names)

    def _empty(self, name: str, need: _Need) -> tuple[int, ChipSet]:
        """How many pods of a gang fit on a node without other pods, and the chips for them; 0 if it is promised."""
        record, entry = self._cluster.nodes[name], self._cluster.index.entries[name]
        if any(not each.drains for each in self._ledger.promises.owners_on(name)):
            return 0, 0
        if not (
            isinstance(record.server, Server) and isinstance(record.report, NodeReport) and isinstance(entry, Bucket)
        ):
            return 0, 0
        chips = record.server.reported & ~record.report.unhealthy
        empty = with_fields(entry.vacancy, free=chips, room=record.server.product.chips, kept=0)
        return capacity(empty, need.request)[0], chips

    def _is_stuck(self, need: _Need, chips: Mapping[str, ChipSet]) -> bool:
        """Whether a gang has not used free nodes for long; then another one comes first for some time."""
        if need.order[2].plan != self._owner:
            return False
        entries = (self._cluster.index.entries.get(name) for name in chips)
        if any(isinstance(entry, Bucket) and _held(entry.vacancy) for entry in entries):
            self._drained_s = None
            return False
        if self._drained_s is None:
            self._drained_s = self._now_s
        if self._now_s - self._drained_s <= PATIENCE_S:
            return False
        self._aside[need.order[2]] = self._now_s + ASIDE_S
        return True

    def _occupants(self, chips: Mapping[str, ChipSet]) -> Iterator[str]:
        for name in chips:
            record = self._cluster.nodes.get(name)
            if record is not None:
                yield from record.holdings
            yield from self._ledger.on(name)

    def _ends_s(self, uid: str) -> float:
        """When a pod has to have ended, Unix seconds; infinite if that is unknown."""
        pod = self._cluster.pods.get(uid)
        limit_s = pod.spec.active_deadline_seconds if pod is not None else None
        if pod is None or limit_s is None:
            return math.inf
        try:
            started_s = datetime.fromisoformat(pod.status.start_time).timestamp() if pod.status.start_time else None
        except ValueError:
            started_s = None
        return (self._wall_s() if started_s is None else started_s) + limit_s


def _held(vacancy: Vacancy) -> int:
    """How many chips of a node are held."""
    return vacancy.healthy - vacancy.free.bit_count() - vacancy.kept.bit_count()
