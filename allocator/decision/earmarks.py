"""Reservation for the first waiting job, so that later jobs don't starve it; backfill uses its chips meanwhile. No I/O.

A gang, or a pod that takes a whole server or a ring, needs many chips at one time, and every chip that becomes free
would be taken by the next pod that fits. So of the jobs that wait for chips the one of the highest priority, of several
the oldest, has earmarked nodes, whatever its size: as many as it needs, always those that drain soonest
(``decision/drain_order.py``). What becomes free there is promised to it (``state/promises.py``): pods of lower or equal
priority don't get it. A node that becomes free elsewhere replaces one that is still in use, so the job waits for any
nodes, not for certain ones; and since some may be in use for very long, it has twice as many after each day. A pod that
is placed alone has only the chips that it takes, as soon as it fits somewhere, until its scheduler asks for it again.

A pod that has to end in time (``activeDeadlineSeconds``, its own or its Job's) may use an earmarked node: if it ends
before the last pod of these nodes has to. That is known only if all of them have such a limit.

How long the others run is unknown: some end before the nodes have drained, others don't. So while the job can't start,
free chips of its nodes are lent to pods alone of its priority that fit nowhere else, but not for ever: a limited number
of times. Then the job starts after a limited number of ends, whatever comes.
"""

import asyncio
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from msgspec.structs import replace as with_fields

from allocator.decision.drain_order import DrainOrder, Part
from allocator.decision.setbacks import Setbacks
from allocator.decision.waiting_jobs import Need, WaitingJobs
from allocator.gangs.gangs import Gangs
from allocator.gangs.gradual import MANY
from allocator.gangs.progress import WAITING
from allocator.rules.node_constraints import untolerated
from allocator.rules.request import ChipRequest
from allocator.rules.verdicts import Fit, capacity, judge
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.state.node import Server
from allocator.state.promises import Promise
from allocator.state.ranking import Bucket
from allocator.state.report import NodeReport
from allocator.state.view import Without
from ascend.chips import ChipSet
from ascend.kube.objects import Pod
from ascend.turn import Steps, Turn, at_once

PATIENCE_S: Final = 120.0
"""How long nodes stay earmarked on which the job fits, without being placed: it may lack something else. So it does
if nodes have no pods and its scheduler does not ask for it there. For how long others come first then is in
``decision/setbacks.py``."""

MORE_S: Final = 24 * 3600.0
"""After this time as the first a job has twice as many nodes, after twice this time four times as many, and so on: the
pods on some of its nodes may run for long, or for ever."""

_MOST_DOUBLINGS: Final = 6

LOANS: Final = 3
"""How many times a job lends chips to another pod before it starts, for each of its own pods that must be placed.

With fewer loans chips are idle, with more the oldest jobs wait longer (``python -m tests.bench.fairness FOLDER``)."""

_PERIOD_S: Final = 10.0
"""After this time what could not be placed, or lacked something else, is looked at again."""
_MEASURE_S: Final = 1.0
_STEP: Final = 32
"""After so many nodes there may be a pause."""
_REST: Final = 9
"""The pause after each choice in the background, as a multiple of the time it took."""


class Earmarks:
    """Chooses the job and the chips.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        gangs: what is placed together.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        share: the largest share of the cluster's chips that are kept for a job; 0 for none.
        loans: how many times a job lends chips to another pod, for each of its own pods that must be placed.
        now_s: the wall clock, Unix seconds.

    Attributes:
        setbacks: for which jobs nothing is kept for some time.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        request_of: Callable[[Pod], ChipRequest],
        *,
        share: float,
        loans: int,
        now_s: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._share = share
        self._wall_s = now_s
        self.setbacks = Setbacks(ledger.promises.monotonic)
        self._waiting = WaitingJobs(cluster, ledger, gangs, request_of, self.setbacks)
        self._order = DrainOrder(cluster, ledger)
        self._owner = ""
        self._seen: tuple[int, tuple[int, int, int], float] = (-1, (0, 0, 0), 0.0)
        self._first_s = 0.0
        self._drained_s: float | None = None
        self._lacks_more = False  # whether the last job chosen is refused on nodes without pods
        self._labels = 0
        self._last: Need | None = None
        # For what chips were chosen last, and from which nodes, if nothing has changed there since.
        self._basis: tuple[Need, Part] | None = None
        self._most_loans = loans
        # How many times each waiting job has lent chips: another may be first in the meantime.
        self._loans = dict[str, tuple[Need, int]]()
        self._hopeless = set[object]()
        self._measured_s = ledger.promises.monotonic()
        self.kept_chip_s: defaultdict[str, float] = defaultdict(float)
        """The time for which free chips were kept for the jobs of a namespace, in chip-seconds."""
        self._wake = asyncio.Event()
        self._prune = gangs.prune
        self._obstacles = gangs.obstacles
        if share > 0:
            self._waiting.follow()

    def note(self, pod: Pod) -> None:
        """A pod was refused because it, or its gang, does not fit."""
        if self._share > 0:
            self._waiting.note(pod)

    def update(self) -> None:
        """Choose again, if something has changed; call it before every decision."""
        if not (self._waiting or self._owner):
            return
        if self._state == self._seen:
            return
        promise = self._promise
        if self._waiting.has_large or self._order.is_behind or (promise is not None and len(promise.chips) > MANY):
            self._wake.set()
        else:
            self.choose()

    def choose(self) -> None:
        """Choose now, however long it takes, if something has changed."""
        if (state := self._state) != self._seen:
            at_once(self._update())
            self._seen = state  # what is kept now may change the next choice

    async def run(self) -> None:
        """Choose piece by piece for large gangs, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            started_s, seen = self._now_s, self._state
            await Turn().share_between(self._update())
            self._seen = seen
            await asyncio.sleep(_REST * (self._now_s - started_s))

    def open_to(self, pod: Pod) -> Collection[str]:
        """The owner of the earmarked nodes, if a pod may use them because it ends in time."""
        promise, now_s = self._promise, self._wall_s()
        if promise is None or (end_s := self._cluster.jobs.end_of(pod, now_s)) == math.inf:
            return ()
        latest_s = max((self._ends_s(uid, now_s) for uid in self._occupants(promise.chips)), default=0.0)
        return (promise.owner,) if end_s <= latest_s < math.inf else ()

    def lent(self, pod: Pod, request: ChipRequest, candidates: Collection[str] | None = None) -> tuple[str, Fit] | None:
        """The node and chips of a loan on which a pod alone would fit; None without such a loan."""
        promise, need = self._promise, self._last
        if promise is None or need is None or self._loans_of(need) >= self._most_loans * need.seats:
            return None
        if pod.priority != promise.priority:
            return None  # a more important job does not wait for it; a more important pod may use the chips anyway
        if not any(self._is_in_use(*on_node) for on_node in promise.chips.items()):
            return None  # the job may start now, or once seats of others have lapsed
        index = self._cluster.view(Without.of(pod, (), (self._owner,)))
        best = index.best(request, promise.chips if candidates is None else promise.chips.keys() & candidates)
        # More nodes may be kept than the job needs; it may start beside the pods on some of them.
        rooms = (nodes * capacity(left.vacancy, need.request)[0] for left, nodes in index.buckets_of(promise.chips))
        return best if sum(rooms) < need.seats else None

    def borrow(self, pod: Pod, request: ChipRequest, candidates: Collection[str] | None) -> tuple[str, Fit] | None:
        """The node and chips of a loan on which a pod alone fits; None without such a loan."""
        best = self.lent(pod, request, candidates)
        if best is not None and self._last is not None:
            self._loans[self._owner] = self._last, self._loans_of(self._last) + 1
        return best

    def _loans_of(self, need: Need) -> int:
        return self._loans[need.owner][1] if need.owner in self._loans else 0

    @property
    def _state(self) -> tuple[int, tuple[int, int, int], float]:
        return self._cluster.changes.revision, self._waiting.revision, self._now_s // _PERIOD_S

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
        if promise is not None and self._last is not None:
            entries = self._cluster.index.entries
            free = sum(
                (chips & entry.vacancy.kept).bit_count()
                for name, chips in promise.chips.items()
                if isinstance(entry := entries.get(name), Bucket)
            )
            self.kept_chip_s[self._last.job.namespace] += free * (now_s - self._measured_s)
        self._measured_s = now_s

    def _note_use(self) -> None:
        """Remember if the job of the last earmark has started, and forget the loans of jobs that wait no more."""
        if self._last is not None and self._has_started(self._last):
            self.setbacks.on_use(self._last.job)
            self._last = None
        self._loans = {owner: loans for owner, loans in self._loans.items() if self._waits(loans[0])}

    def _waits(self, need: Need) -> bool:
        is_known = need.owner in self._cluster.pods if need.is_alone else need.job in self._cluster.jobs.by_key
        return is_known and not self._has_started(need)

    def _has_started(self, need: Need) -> bool:
        if need.is_alone:
            pod = self._cluster.pods.get(need.owner)
            return pod is not None and bool(pod.spec.node_name)
        job = self._cluster.jobs.by_key.get(need.job)
        return job is not None and sum(bool(pod.spec.node_name) for pod in job.pods.values()) >= job.min_available

    def _refresh(self) -> Steps[bool]:
        """Read what has changed of jobs and nodes; returns whether the choice may be another one now."""
        state, before, labels = self._state, self._seen, self._cluster.labels.version
        if is_over := state[-1] != before[-1]:
            self._waiting.look_again()
        if is_over or labels != self._labels:
            self._labels, self._basis = labels, None
            self._hopeless.clear()
        if (yield from self._order.refresh(self._basis[1] if self._basis is not None else None)):
            self._basis = None
        has_changed = yield from self._waiting.refresh()
        return has_changed or state[1:] != before[1:] or not self._stays(self._last)

    def _stays(self, need: Need | None) -> bool:
        """Whether what is kept for a job would be chosen again."""
        if need is None or self._basis is None or self._basis[0] is not need or self._promise is None:
            return False
        # A pod that fits nowhere may fit on any node that has changed.
        is_placeless = need.is_alone and not self._basis[1].names
        return not is_placeless or self._lacks_more or self._cluster.index.best(need.request, need.candidates) is None

    def _update(self) -> Steps[None]:
        if self._now_s - self._measured_s >= _MEASURE_S:
            self.measure()
        if not (yield from self._refresh()):
            return
        self._note_use()
        promises = self._ledger.promises
        for need in self._waiting.needs():
            kept = promises.get(need.owner)
            if kept is not None and not kept.drains:
                continue  # it preempts: its seats are kept already
            chips = dict[str, ChipSet]()
            refused = self._obstacles.count_refused(need.pod)
            kind = need.kind, refused
            if kind not in self._hopeless:  # many pods that can't be placed are made from one template
                chips = yield from self._choose(need, kept.chips if kept is not None else {}, refused)
            if not chips or self._is_stuck(need, chips):
                self._waiting.pass_over(need)
                if not chips:
                    self._hopeless.add(kind)
                continue
            if self._owner != need.owner:
                yield from self._drop()
                self._owner, self._first_s, self._drained_s = need.owner, self._now_s, None
            self._last = need
            yield from self._keep(need, chips)
            return
        yield from self._drop()

    def _keep(self, need: Need, chips: Mapping[str, ChipSet]) -> Steps[None]:
        """Promise a job these chips instead of others."""
        owner, promises = need.owner, self._ledger.promises
        kept = promises.get(owner)
        now = dict(kept.chips) if kept is not None else {}
        changed = [name for name in {**chips, **now} if now.get(name) != chips.get(name)]
        for first in range(0, len(changed), _STEP):
            if first:
                yield
            if self._waiting.version(need.job) != need.version or (first and promises.get(owner) is None):
                return  # it has got its seats, or is another one now
            for name in changed[first : first + _STEP]:
                now.pop(name, None)
                if name in chips and self._is_available(name):
                    now[name] = chips[name]
            if promises.get(owner) is not None:
                promises.adjust(owner, dict(now))
            else:
                chips_now = dict(now)
                promises.keep(
                    Promise(owner, need.what, need.priority, chips_now, math.inf, drains=True, since=need.since)
                )

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

    def _choose(self, need: Need, current: Mapping[str, ChipSet], refused: int) -> Steps[dict[str, ChipSet]]:
        """The chips to keep; none if these are too many, or there are too few nodes.

        On nodes that have had no pods for some time only as many as its scheduler has asked for: the refused ones lack
        something else there.
        """
        most = self._share * self._order.chips
        if need.seats * need.request.chips > most:
            return {}
        if current and need.owner == self._owner and self._stays(need):
            return dict(current)
        self._lacks_more = False
        if need.is_alone and (fitting := self._fitting(need, current, refused)):
            self._basis = need, Part(fitting)
            return fitting
        is_first, chosen, seats, is_used = need.owner == self._owner, dict[str, ChipSet](), 0, False
        doublings = min(int((self._now_s - self._first_s) // MORE_S), _MOST_DOUBLINGS) if is_first else 0
        asked = need.seats - refused if refused else need.seats << doublings
        entry = None
        for number, entry in enumerate(self._order.entries(need.request.products, need.candidates), start=1):
            name = entry[1]
            if not number % _STEP:
                yield
            more, chips = self._empty(name, need) if name not in chosen else (0, 0)
            if more and self._order.is_seen_empty(name):
                more = min(more, asked)
                asked -= more
                self._lacks_more = self._lacks_more or not more
            if more:
                most -= chips.bit_count()
                if most < 0:
                    break
                chosen[name] = chips
                seats += more
                is_used = is_used or self._is_in_use(name, chips)
            if seats >= (need.seats << doublings if is_used else need.seats):
                break
        self._basis = (need, Part(last=entry)) if entry is not None else None
        return chosen if seats >= need.seats else {}

    def _fitting(self, need: Need, current: Mapping[str, ChipSet], refused: int) -> dict[str, ChipSet]:
        """The chips that a pod would take now; none if it fits nowhere."""
        index = self._cluster.index

        def is_open(name: str) -> bool:
            return self._admits(name, need) and not (refused and self._order.is_seen_empty(name))

        for name, chips in current.items():
            entry = index.entries.get(name)
            is_free = isinstance(entry, Bucket) and not chips & ~_unused(entry)
            if is_free and chips.bit_count() == need.request.chips and is_open(name):
                return dict(current)
            fit = judge(entry.vacancy.unkept or entry.vacancy, need.request) if isinstance(entry, Bucket) else None
            if isinstance(fit, Fit) and is_open(name):
                return {name: fit.take.chip_set}
        best = index.best(need.request, need.candidates)
        if best is not None and not is_open(best[0]):
            names = index.entries if need.candidates is None else need.candidates
            best = index.best(need.request, [name for name in names if is_open(name)])
        return {best[0]: best[1].take.chip_set} if best is not None else {}

    def _admits(self, name: str, need: Need) -> bool:
        """Whether a pod tolerates the taints of a node, and may be beside the pods of its job there."""
        record = self._cluster.nodes.get(name)
        taints = record.node.spec.taints if record is not None and record.node is not None else ()
        if taints and untolerated(taints, need.pod.spec.tolerations) is not None:
            return False
        is_spread = need.is_alone and need.request.is_spread
        return not (is_spread and self._cluster.jobs.job_of(need.pod).shares(name, need.owner))

    def _empty(self, name: str, need: Need) -> tuple[int, ChipSet]:
        """How many pods of a job fit on a node without other pods, and the chips for them; 0 if it is promised."""
        record, entry = self._cluster.nodes.get(name), self._cluster.index.entries.get(name)
        if record is None or not isinstance(entry, Bucket) or not self._is_available(name):
            return 0, 0
        if not (isinstance(record.server, Server) and isinstance(record.report, NodeReport)):
            return 0, 0
        if entry.vacancy.healthy < need.request.chips or not self._admits(name, need):
            return 0, 0
        chips = record.server.reported & ~record.report.unhealthy
        empty = with_fields(entry.vacancy, free=chips, room=record.server.product.chips, kept=0, unkept=None)
        return capacity(empty, need.request)[0], chips

    def _is_available(self, name: str) -> bool:
        """Whether no chips of a node are promised, other than to a waiting gang."""
        return all(promise.drains for promise in self._ledger.promises.on(name))

    def _is_stuck(self, need: Need, chips: Mapping[str, ChipSet]) -> bool:
        """Whether a job has not used free chips for long; then others come first for some time."""
        if need.owner != self._owner:
            return False
        if any(self._is_in_use(*on_node) for on_node in chips.items()) and not self._lacks_more:
            self._drained_s = None
            return False
        if self._drained_s is None:
            self._drained_s = self._now_s
        if self._now_s - self._drained_s <= PATIENCE_S:
            return False
        self.setbacks.in_vain(need.job)
        return True

    def _is_in_use(self, name: str, chips: ChipSet) -> bool:
        """Whether pods hold some of these chips; the seats of gangs that have not started don't count."""
        entry = self._cluster.index.entries.get(name)
        if not isinstance(entry, Bucket):
            return False
        for uid, take in self._ledger.on(name).items():
            seat = self._ledger.get(uid)
            if seat is not None and seat.stage in WAITING:
                chips &= ~take.chip_set
        return bool(chips & ~_unused(entry))

    def _occupants(self, chips: Mapping[str, ChipSet]) -> Iterator[str]:
        for name in chips:
            record = self._cluster.nodes.get(name)
            if record is not None:
                yield from (uid for uid, holding in record.holdings.items() if holding.chips or holding.counted)
            yield from (uid for uid, take in self._ledger.on(name).items() if take.chips)

    def _ends_s(self, uid: str, now_s: float) -> float:
        pod = self._cluster.pods.get(uid)
        return self._cluster.jobs.end_of(pod, now_s) if pod is not None else math.inf


def _unused(entry: Bucket) -> ChipSet:
    """The chips without a pod, kept or not."""
    return entry.vacancy.free | entry.vacancy.kept
