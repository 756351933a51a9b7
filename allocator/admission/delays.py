"""The delays of refused workloads: how long each is, and which of them end early because all pods fit.

After a refusal Kueue gives the quota back and tries again after the delay, which doubles. It ends early when all pods
fit on nodes of the flavor that Kueue chose last, which it prefers while there is quota. Kueue may also choose the same
place again, where they do not fit: after each end that led to another refusal the next one takes twice as long.
"""

from asyncio import Lock, gather
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nsmallest
from typing import Final

import msgspec
import structlog

from allocator.admission.objects import Workload
from allocator.admission.statuses import AGAIN_S, Statuses, attempt
from allocator.admission.workload_pods import OwningJob
from allocator.decision.expected import ExpectedPods
from allocator.state.changes import Changes
from ascend.errors import InvalidValue, Refusal
from ascend.kube.objects import Pod

log = structlog.get_logger()

RETRY_S: Final = 60.0
"""The delay after the first refusal, as Kueue's own controllers have it; it doubles up to ``MOST_S``."""
MOST_S: Final = 1800.0
LEAST_S: Final = 1.0
"""A delay is not ended earlier than this; it doubles with each end that was in vain, up to ``_MOST_MISSES``."""
_MOST_MISSES: Final = 5
"""Then it is 32 s: in the few seconds of a refusal the quota of a workload is of no use."""
LOOK_S: Final = 1.0
"""How often workloads in a delay are looked at, if anything has changed."""
MOST_LOOKS: Final = 16
"""How many of them: those that were looked at least recently."""
_REST_S: Final = 2.0
"""After delays were ended the others are looked at this much later: Kueue has to ask about the first ones before."""
_TRIAL_S: Final = 60.0
"""Seats on trial are released at once; after this time if that fails."""


class Delay(msgspec.Struct):
    """A workload that was refused.

    Attributes:
        workload: as it was last seen.
        refused: as it was refused, with the flavor that Kueue had chosen, and without a place.
        tries: how often it was refused.
        since_s: when it was last.
        revision: the changes of nodes that were considered.
        owed_s: the delay that is not written yet.
        job: its job, as it was last read; unset if it has to be read.
        timers: when Kueue's timers of its delays end, Unix seconds, also those of delays that ended early.
        has_ended: whether the delay was ended early.
        misses: how often that was in vain.
    """

    workload: Workload
    refused: Workload
    tries: int = 0
    since_s: float = 0.0
    revision: int = -1
    owed_s: float = 0.0
    job: OwningJob | msgspec.UnsetType | None = msgspec.UNSET
    timers: tuple[float, ...] = ()
    has_ended: bool = False
    misses: int = 0

    @property
    def precedence(self) -> tuple[int, str]:
        """By priority and age, as in Kueue's queues."""
        return -(self.workload.spec.priority or 0), self.workload.metadata.creation_timestamp or ""


class Delays:
    """Keeps and ends the delays.

    Args:
        statuses: writes them.
        expected: knows whether pods fit.
        changes: the changes of nodes.
        read: reads the job of a workload.
        pods: the pods with chips of a workload and its job.
        monotonic: the clock for the least time of a delay.
        now_s: the wall clock, Unix seconds.
        deciding: held while seats are looked for.
    """

    def __init__(
        self,
        statuses: Statuses,
        expected: ExpectedPods,
        changes: Changes,
        *,
        read: Callable[[Workload], Awaitable[OwningJob | None]],
        pods: Callable[[Workload, OwningJob | None], list[Pod]],
        monotonic: Callable[[], float],
        now_s: Callable[[], float],
        deciding: Lock,
    ) -> None:
        self._statuses = statuses
        self._expected = expected
        self._changes = changes
        self._read = read
        self._pods = pods
        self._monotonic = monotonic
        self._now_s = now_s
        self._deciding = deciding
        self._of: dict[str, Delay] = {}
        self._ended_s = float("-inf")

    def __iter__(self) -> Iterator[Delay]:
        return iter(self._of.values())

    def next_s(self, uid: str) -> float:
        """How long the delay of a workload is that is refused now."""
        return float(min(RETRY_S * 2 ** min(self._tries(uid), 16), MOST_S))

    def _tries(self, uid: str) -> int:
        last = self._of.get(uid)
        return last.tries - bool(last.owed_s) if last is not None else 0  # one that Kueue did not wait for is repeated

    def record(
        self, workload: Workload, refused: Workload, delay_s: float, revision: int, job: OwningJob | None
    ) -> None:
        """Record that a workload was refused, with the changes of nodes that were considered."""
        last, is_owed = self._of.get(workload.uid, Delay(workload, refused)), self._statuses.delays_evictions
        self._of[workload.uid] = Delay(
            workload,
            refused.without_places(),
            self._tries(workload.uid) + 1,
            self._monotonic(),
            revision,
            delay_s if is_owed else 0.0,
            job,
            last.timers if is_owed else (*last.timers, self._now_s() + delay_s),
            misses=last.misses + last.has_ended,
        )

    def follow(self, workload: Workload, tries: int) -> bool:
        """Follow a workload without quota, refused so often; returns whether its delay has to be written."""
        delay = self._of.get(workload.uid)
        if delay is not None:
            if delay.workload.spec != workload.spec:
                delay.job, delay.refused = msgspec.UNSET, workload
            delay.workload = workload
            return bool(delay.owed_s)
        if tries and workload.requeue_at_s > self._now_s():
            self._of[workload.uid] = Delay(workload, workload, tries)  # another leader has refused it
        return False

    def forget(self, uid: str) -> None:
        """Forget a workload that is admitted or gone."""
        self._of.pop(uid, None)

    async def write(self) -> None:
        """Write the delays of evicted workloads, and end those that Kueue does not end by itself."""
        await gather(
            *(
                attempt(delay.workload.key, work)
                for delay in tuple(self._of.values())
                if not delay.workload.has_reservation and (work := self._writing(delay)) is not None
            )
        )

    def _writing(self, delay: Delay) -> Awaitable[None] | None:
        """What is to be written about a workload without quota."""
        now_s, at_s = self._now_s(), delay.workload.requeue_at_s
        if delay.owed_s:
            return self._begin(delay)
        if self._statuses.delays_evictions:
            return self._statuses.end_delay(delay.workload) if 0.0 < at_s <= now_s else None
        left = tuple(timer_s for timer_s in delay.timers if timer_s + AGAIN_S > now_s)
        if left == delay.timers:
            return None
        if at_s <= now_s:
            return self._renew(delay, left)
        delay.timers = left  # Kueue reads the workload again when the present delay ends
        return None

    async def _begin(self, delay: Delay) -> None:
        await self._statuses.delay(delay.workload, delay.owed_s)
        delay.owed_s = 0.0

    async def _renew(self, delay: Delay, left: tuple[float, ...]) -> None:
        """Have Kueue read a workload anew: it has queued a copy in which the delay is not over.

        That copy stays, and the workload waits, until the workload changes (0.14: workload_controller.go, AfterFunc).
        """
        await self._statuses.end_delay(delay.workload)
        delay.timers = left

    async def look(self) -> None:
        """End the delays of workloads that fit now, all at one time: the first by priority and age."""
        now_s, revision, clock_s = self._monotonic(), self._changes.revision, self._now_s()
        if now_s - self._ended_s < _REST_S:
            return
        due = [
            delay
            for delay in self._of.values()
            if delay.revision != revision
            and now_s - delay.since_s >= LEAST_S * 2 ** min(delay.misses, _MOST_MISSES)
            and not delay.workload.is_true("QuotaReserved")
            and delay.workload.requeue_at_s > clock_s
        ]
        due = nsmallest(MOST_LOOKS, due, key=lambda delay: (delay.revision, delay.precedence))
        due.sort(key=lambda delay: delay.precedence)
        unread = (delay for delay in due if delay.job is msgspec.UNSET)
        await gather(*(attempt(delay.workload.key, self._read_job(delay)) for delay in unread))
        async with self._deciding:
            fitting = await self._fitting(due, revision)
        if fitting:
            self._ended_s = now_s
        await gather(*(attempt(delay.workload.key, self._end(delay)) for delay in fitting))

    async def _fitting(self, due: Sequence[Delay], revision: int) -> list[Delay]:
        """The delays of workloads that fit beside each other: seats are reserved meanwhile."""
        fitting, seats = [], list[str]()
        try:
            for delay in due:
                if delay.job is msgspec.UNSET:
                    continue
                delay.revision, seen = revision, delay.workload
                with suppress(Refusal, InvalidValue):
                    seats += await self._expected.keep(self._pods(delay.refused, delay.job), _TRIAL_S)
                    if self._of.get(seen.uid) is delay and delay.workload is seen:
                        fitting.append(delay)
        finally:
            self._expected.release(seats)
        return fitting

    async def _read_job(self, delay: Delay) -> None:
        delay.job = await self._read(delay.workload)

    async def _end(self, delay: Delay) -> None:
        delay.has_ended = True
        await self._statuses.end_delay(delay.workload)
        log.info("a workload may fit now", workload=delay.workload.key)
