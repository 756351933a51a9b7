"""Earmarks: nodes that drain for a gang that waits, so that smaller pods don't starve it. No I/O.

A gang needs many chips at one time, and every chip that becomes free would be taken by the next small pod. So the gang
of the highest priority that waits for chips (of several, the oldest) has earmarked nodes: as many as it needs, always
those on which the fewest chips are still held. What becomes free there is promised to it (``state/promises.py``): pods
of lower or equal priority don't get it. A node that becomes free elsewhere replaces one that is still in use, so the
gang waits for any nodes, not for certain ones.

A pod that has to end in time (``activeDeadlineSeconds``, its own or its Job's) may use an earmarked node: if it ends
before the last pod of these nodes has to. That is known only if all of them have such a limit.
"""

import asyncio
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import chain
from typing import Final

from msgspec.structs import replace as with_fields

from allocator.decision.setbacks import Setbacks
from allocator.decision.waiting_gangs import Need, WaitingGangs
from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import MANY
from allocator.gangs.progress import WAITING
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
from ascend.kube.objects import Pod
from ascend.turn import Steps, Turn, at_once

PATIENCE_S: Final = 120.0
"""How long nodes stay earmarked on which the gang fits, without being placed: it may lack something else. For how long
other gangs come first then is in ``decision/setbacks.py``."""

_PERIOD_S: Final = 10.0
_STEP: Final = 32
"""After so many nodes there may be a pause."""
_REST: Final = 9
"""The pause after each choice in the background, as a multiple of the time it took."""


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
        self._share = share
        self._wall_s = now_s
        self._gangs = WaitingGangs(cluster, ledger, gangs, request_of)
        self._owner = ""
        self._seen: tuple[int, int, int, float] = (-1, 0, 0, 0.0)
        self._drained_s: float | None = None
        self._last: JobKey | None = None
        self._measured_s = ledger.promises.monotonic()
        self.kept_chip_s: defaultdict[str, float] = defaultdict(float)
        """The time for which free chips were kept for the gangs of a namespace, in chip-seconds."""
        self._wake = asyncio.Event()
        self._prune = gangs.prune
        if share > 0:
            self._gangs.follow()

    @property
    def setbacks(self) -> Setbacks:
        """For which gangs nothing is kept for some time."""
        return self._gangs.setbacks

    def note(self, job: Job) -> None:
        """A gang was refused because it does not fit."""
        if self._share > 0:
            self._gangs.note(job)

    def update(self) -> None:
        """Choose again, if something has changed; call it before every decision."""
        if not len(self._gangs):
            return
        if self._state == self._seen:
            return
        promise = self._promise
        if self._gangs.has_large or (promise is not None and len(promise.chips) > MANY):
            self._wake.set()
        else:
            self.choose()

    def choose(self) -> None:
        """Choose now, however long it takes."""
        at_once(self._update())
        self._seen = self._state

    async def run(self) -> None:
        """Choose piece by piece for large gangs, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            started_s = self._now_s
            await Turn().share_between(self._update())
            self._seen = self._state
            await asyncio.sleep(_REST * (self._now_s - started_s))

    def open_to(self, pod: Pod) -> Collection[str]:
        """The owner of the earmarked nodes, if a pod may use them because it ends in time."""
        promise, now_s = self._promise, self._wall_s()
        if promise is None or (end_s := self._cluster.jobs.end_of(pod, now_s)) == math.inf:
            return ()
        latest_s = max((self._ends_s(uid, now_s) for uid in self._occupants(promise.chips)), default=0.0)
        return (promise.owner,) if end_s <= latest_s < math.inf else ()

    @property
    def _state(self) -> tuple[int, int, int, float]:
        return self._cluster.changes.revision, len(self._gangs), self._gangs.revision, self._now_s // _PERIOD_S

    @property
    def _now_s(self) -> float:
        return self._ledger.promises.monotonic()

    @property
    def _promise(self) -> Promise | None:
        promise = self._ledger.promises.get(self._owner) if self._owner else None
        return promise if promise is not None and promise.drains else None

    def measure(self) -> None:
        """Count the time since the last call for the chips that are kept and free. Call it periodically."""
        now_s, promise = self._now_s, self._promise
        if promise is not None:
            entries = self._cluster.index.entries
            free = sum(
                (chips & entry.vacancy.kept).bit_count()
                for name, chips in promise.chips.items()
                if isinstance(entry := entries.get(name), Bucket)
            )
            self.kept_chip_s[JobKey.of_plan(promise.owner).namespace] += free * (now_s - self._measured_s)
        self._measured_s = now_s

    def _note_use(self) -> None:
        """Remember if the gang of the last earmark has started."""
        job = self._cluster.jobs.by_key.get(self._last) if self._last is not None else None
        if job is None:
            self._last = None
        elif sum(bool(pod.spec.node_name) for pod in job.pods.values()) >= job.min_available:
            self.setbacks.used(job.key)
            self._last = None

    def _update(self) -> Steps[None]:
        self.measure()
        self._note_use()
        promises = self._ledger.promises
        needs = yield from self._gangs.needs()
        for need in needs:
            owner = need.order[2].plan
            kept = promises.get(owner)
            if kept is not None and not kept.drains:
                continue  # it preempts: its seats are kept already
            chips = yield from self._choose(need, kept.chips if kept is not None else {})
            if not chips or self._is_stuck(need, chips):
                continue
            if self._owner != owner:
                yield from self._drop()
                self._owner, self._drained_s, self._last = owner, None, need.order[2]
            yield from self._keep(need, chips)
            return
        yield from self._drop()

    def _keep(self, need: Need, chips: Mapping[str, ChipSet]) -> Steps[None]:
        """Promise a gang these chips instead of others."""
        job, promises = need.order[2], self._ledger.promises
        kept = promises.get(job.plan)
        now = dict(kept.chips) if kept is not None else {}
        changed = [name for name in {**chips, **now} if now.get(name) != chips.get(name)]
        for first in range(0, len(changed), _STEP):
            if first:
                yield
            if self._gangs.version(job) != need.version or (first and promises.get(job.plan) is None):
                return  # it has got its seats, or is another one now
            for name in changed[first : first + _STEP]:
                now.pop(name, None)
                if name in chips and self._is_available(name):
                    now[name] = chips[name]
            if promises.get(job.plan) is not None:
                promises.adjust(job.plan, dict(now))
            else:
                what, since = f"job {job}", need.order[1]
                promises.keep(Promise(job.plan, what, need.priority, dict(now), math.inf, drains=True, since=since))

    def _drop(self) -> Steps[None]:
        owner, self._owner = self._owner, ""
        while (promise := self._ledger.promises.get(owner)) is not None and promise.drains:
            left = dict(tuple(promise.chips.items())[_STEP:])
            if not left:
                self._ledger.promises.drop(owner)
                return
            self._ledger.promises.adjust(owner, left)
            self._prune()  # it examines the seats on nodes that have changed
            yield

    def _choose(self, need: Need, current: Mapping[str, ChipSet]) -> Steps[dict[str, ChipSet]]:
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
        ordered = (self._names(by_held[held], earlier[held], need, current) for held in sorted(by_held))
        for number, name in enumerate(chain.from_iterable(ordered), start=1):
            if not number % _STEP:
                yield
            seats, chips = self._empty(name, need) if name not in chosen else (0, 0)
            if seats:
                chosen[name] = chips
                missing -= seats
            if missing <= 0:
                return chosen
        return {}

    def _names(
        self, buckets: list[Bucket], earlier: list[str], need: Need, current: Mapping[str, ChipSet]
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

    def _empty(self, name: str, need: Need) -> tuple[int, ChipSet]:
        """How many pods of a gang fit on a node without other pods, and the chips for them; 0 if it is promised."""
        record, entry = self._cluster.nodes.get(name), self._cluster.index.entries.get(name)
        if record is None or not isinstance(entry, Bucket) or not self._is_available(name):
            return 0, 0
        if not (isinstance(record.server, Server) and isinstance(record.report, NodeReport)):
            return 0, 0
        chips = record.server.reported & ~record.report.unhealthy
        empty = with_fields(entry.vacancy, free=chips, room=record.server.product.chips, kept=0)
        return capacity(empty, need.request)[0], chips

    def _is_available(self, name: str) -> bool:
        """Whether no chips of a node are promised, other than to a waiting gang."""
        return all(each.drains for each in self._ledger.promises.owners_on(name))

    def _is_stuck(self, need: Need, chips: Mapping[str, ChipSet]) -> bool:
        """Whether a gang has not used free nodes for long; then another one comes first for some time."""
        if need.order[2].plan != self._owner:
            return False
        if any(self._is_in_use(name) for name in chips):
            self._drained_s = None
            return False
        if self._drained_s is None:
            self._drained_s = self._now_s
        if self._now_s - self._drained_s <= PATIENCE_S:
            return False
        self.setbacks.in_vain(need.order[2])
        return True

    def _is_in_use(self, name: str) -> bool:
        """Whether pods hold chips of a node; the seats of gangs that have not started don't count."""
        entry = self._cluster.index.entries.get(name)
        seats = (self._ledger.get(uid) for uid in self._ledger.on(name))
        waiting = sum(len(seat.take.chips) for seat in seats if seat is not None and seat.stage in WAITING)
        return isinstance(entry, Bucket) and _held(entry.vacancy) > waiting

    def _occupants(self, chips: Mapping[str, ChipSet]) -> Iterator[str]:
        for name in chips:
            record = self._cluster.nodes.get(name)
            if record is not None:
                yield from (uid for uid, each in record.holdings.items() if each.chips or each.counted)
            yield from (uid for uid, take in self._ledger.on(name).items() if take.chips)

    def _ends_s(self, uid: str, now_s: float) -> float:
        pod = self._cluster.pods.get(uid)
        return self._cluster.jobs.end_of(pod, now_s) if pod is not None else math.inf


def _held(vacancy: Vacancy) -> int:
    """How many chips of a node are held."""
    return vacancy.healthy - vacancy.free.bit_count() - vacancy.kept.bit_count()
