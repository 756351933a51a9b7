"""Holds the Bindings of a gang until all pods that its minimum needs can be bound; then they are posted together.

A scheduler asks to bind a pod after the pod has passed its filters on a node, and accounts for it there from then on:
kube-scheduler's Permit plugins rely on that, too. So a gang whose Bindings are all asked for can start as a
whole, and one that can't start has bound nothing. A held Binding is a future: it costs no thread, and is not polled.

A scheduler waits for the answer only for some time. Then the request is refused, but the pod keeps its seat, and still
counts for its gang (``allocator/binding/lapsed.py``): so a gang of any size starts, however slowly its scheduler
filters the pods. Bindings that nobody waits for any more are posted with the others.

A gang gives up as a whole if its scheduler refuses one of its pods (the pod's condition PodScheduled says so), or has
not asked to bind a further pod for a while. The requests that are held are then refused, so the scheduler releases what
it has accounted for, and the gang steps back behind others (``allocator/gangs/turns.py``). If several gangs are stuck,
only half of them give up, the last ones, and the others get the time to use what it releases.
"""

import asyncio
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final, NamedTuple

import structlog

from allocator.binding.lapsed import LapsedHolds
from allocator.gangs.gangs import Gangs
from allocator.rules.job import JobKey
from allocator.rules.scheduled import is_refusal, keys_of, refused, verdict_on
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Condition, Pod
from ascend.reasons import Reason

log = structlog.get_logger()

STALLED_S: Final = 20.0
"""How long after the last Binding was asked for a gang gives up. kube-scheduler tries a refused pod again after at most
10 s."""
REFUSED_S: Final = 2.0
"""How long a gang waits after its scheduler has refused one of its pods; the scheduler may have tried it too early."""

RETRIED_S: Final = 5.0
"""How long after the last Binding was asked for a pod counts as refused if it was refused before. kube-scheduler tries
it again when its backoff is over, 1 or 2 s after its first refusals, and does not report that it was refused as before.
"""
TURN_RETRIED_S: Final = 12.0
"""The same for the gang whose turn it is; kube-scheduler's longest backoff is 10 s."""
COMPLETE_S: Final = 5.0
"""How much longer Bindings are held if the gang is complete, and starts as soon as all nominations were seen."""


class _Call(NamedTuple):
    """A request to bind a pod.

    Attributes:
        answer: what its caller waits for.
        is_repeated: whether its scheduler tries the pod again later, and counts it where it is nominated meanwhile.
    """

    answer: asyncio.Future[None]
    is_repeated: bool


@dataclass(slots=True)
class _Assembly:
    """A gang whose Bindings are held.

    Attributes:
        job: the gang.
        begun_s: when a Binding was asked for first.
        since_s: when a further Binding was asked for last, or another gang gave up.
        held: the requests that callers wait for, by uid.
        most: the most pods that were held at the same time.
        asked: the uids of the pods that were asked for since there were so many.
        seen: the condition PodScheduled of its pods that have not come yet, when it was looked at last, by uid; before
            that, when the first Binding was held.
        refused: the pods that their scheduler has refused since, by uid, and when that was seen.
    """

    job: Job
    begun_s: float
    since_s: float
    held: dict[str, _Call] = field(default_factory=dict)
    most: int = 0
    asked: set[str] = field(default_factory=set)
    seen: dict[str, Condition | None] = field(default_factory=dict)
    refused: dict[str, float] = field(default_factory=dict)


class Barrier:
    """Holds Bindings of gangs.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        gangs: says when a gang may start.
        monotonic: the clock.
        hold_s: how long the caller of one Binding waits at most.
        most_calls: the most callers that wait; half as many before a gang is complete.

    Attributes:
        lapsed: the pods whose Bindings nobody waits for any more.
        post: called with the reservation of such a pod, in stage BINDING, when its gang starts.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        *,
        monotonic: Callable[[], float],
        hold_s: float,
        most_calls: int = sys.maxsize,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._monotonic = monotonic
        self._hold_s = hold_s
        self._most_calls = most_calls
        self._assemblies: dict[JobKey, _Assembly] = {}
        self._why: Refusal | None = None
        self._closed: Refusal | None = None
        self._excused: Callable[[str], bool] = lambda _uid: False
        self.lapsed = LapsedHolds(cluster, ledger, monotonic)
        self.post: Callable[[Reservation], None] = lambda _reservation: None
        ledger.on_let_go(self._let_go)

    async def passed(self, pod: Pod, job: Job, *, is_repeated: bool = False) -> None:
        """Wait until the gang of a pod may start; its reservation is in stage BINDING then.

        Args:
            pod: a pod with a seat, on the node to which its scheduler binds it.
            job: its job, a gang.
            is_repeated: its scheduler tries the pod again if this takes too long, and counts it where it is nominated
                meanwhile, as kube-scheduler does.

        Raises:
            Refusal: the gang has given up, or the pod's seat was released.
        """
        if self._closed is not None:
            raise self._closed
        assembly = self._assemblies.get(job.key)
        if assembly is None:
            # The scheduler may refuse the next pod at once, before anything is checked.
            seen = {each.uid: verdict_on(each) for each in job.pods.values() if each.waits_for_chips}
            now_s = self._monotonic()
            assembly = self._assemblies[job.key] = _Assembly(job, now_s, now_s, seen=seen)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_further = pod.uid not in self.lapsed
        self.lapsed.discard(pod.uid)
        held = self._ledger.advance(pod.uid, Stage.HELD)
        assembly.job = job
        assembly.held[pod.uid] = _Call(future, is_repeated)
        assembly.refused.pop(pod.uid, None)
        self._note_progress(assembly, pod.uid)
        if is_further and held is not None:
            for uid in self.lapsed.uncounted(pod, held):
                self._ledger.withdraw(uid)
        self._open_if_complete(assembly)
        if not future.done():
            self._make_room(assembly)
        try:
            await future
        except asyncio.CancelledError:
            self.withdraw(pod.uid)
            raise

    def holds_other(self, job: Job, node: str) -> bool:
        """Whether Bindings of another gang to a node are held."""
        own, there = self._ledger.held(job.key.plan), map(self._ledger.get, self._ledger.on(node))
        return any(each is not None and each.stage is Stage.HELD and each.uid not in own for each in there)

    def excuse(self, excused: Callable[[str], bool]) -> None:
        """Set what says, by uid, for which pods a gang waits however late their schedulers ask to bind them."""
        self._excused = excused

    def filtered(self, uid: str, names: Collection[str]) -> None:
        """Note that a scheduler filters a pod again, on these nodes, and waits for no Binding of the pod."""
        node = self.lapsed.node_of(uid)
        if node is None or node not in names:
            self.withdraw(uid)

    def leave(self, uid: str) -> None:
        """The caller of a pod does not wait any more."""
        held = self._ledger.get(uid)
        assembly = self._assemblies.get(JobKey.of_plan(held.plan)) if held is not None and held.plan else None
        if assembly is not None and uid in assembly.held:
            self._lapse(assembly, uid, "its scheduler does not wait any more")

    def withdraw(self, uid: str) -> None:
        """End the wait of a pod whose Binding its scheduler has given up for good; the pod keeps its seat."""
        reservation = self._ledger.get(uid)
        if reservation is not None and reservation.stage is Stage.HELD:
            sentence = f"pod {reservation.pod}: its scheduler has given up the Binding"
            self._end(uid, Refusal(Reason.GANG_STEPPED_BACK, sentence))

    def close(self, why: Refusal) -> None:
        """End the wait of all pods, and of those that come; they keep their seats."""
        self._closed = why
        for assembly in tuple(self._assemblies.values()):
            for uid in tuple(assembly.held):
                self._end(uid, why)

    def check(self) -> None:
        """Let gangs start, or give up; call it periodically."""
        self._gangs.prune()  # nobody may have called since a node became unusable
        self._gangs.turns.pass_on(lambda key: key in self._assemblies)
        self._gangs.release_without_prospects()
        now_s = self._monotonic()
        stuck: list[tuple[_Assembly, str]] = []
        for assembly in tuple(self._assemblies.values()):
            for uid in self._lapsed_of(assembly.job):
                pod = self._cluster.pods.get(uid)
                if pod is None or self.lapsed.has_ended(pod):
                    self._ledger.withdraw(uid)
            self._open_if_complete(assembly)
            self._expire(assembly, now_s)
            if self._assemblies.get(assembly.job.key) is assembly and (why := self._obstacle(assembly, now_s)):
                stuck.append((assembly, why))
        if stuck:
            stuck.sort(key=lambda each: self._order(each[0].job))
            for assembly, why in stuck[len(stuck) // 2 :]:
                self._give_up(assembly, why)
            for assembly in self._assemblies.values():
                assembly.since_s = now_s
                assembly.refused.clear()

    def _note_progress(self, assembly: _Assembly, uid: str) -> None:
        """Give a gang more time: a further pod has come, or one that was not asked for since the last one did.

        It is no progress that pods are asked for again and again.
        """
        number = len(self._ledger.held(assembly.job.key.plan))
        if number > assembly.most:
            assembly.most = number
            assembly.asked.clear()
        if uid not in assembly.asked:
            assembly.asked.add(uid)
            assembly.since_s = self._monotonic()

    def _lapsed_of(self, job: Job) -> list[str]:
        return [uid for uid in self._ledger.held(job.key.plan) if uid in self.lapsed] if self.lapsed else []

    def _open_if_complete(self, assembly: _Assembly) -> None:
        job = assembly.job
        if not self._gangs.may_start(job):
            return
        for uid, call in tuple(assembly.held.items()):
            if call.answer.cancelled():
                self.leave(uid)  # its caller has gone in this very moment
        lapsed = self._lapsed_of(job)
        if not (assembly.held or lapsed) or not all(map(self.lapsed.is_settled, lapsed)):
            return
        if not self._gangs.may_start(job):
            return
        held, assembly.held = assembly.held, {}
        self._assemblies.pop(job.key, None)
        self._gangs.turns.leave(job.key)
        for uid, call in held.items():
            # At once for all of them: from now on the gang has started.
            self._ledger.advance(uid, Stage.BINDING)
            call.answer.set_result(None)
        for uid in lapsed:
            self.lapsed.discard(uid)
            if (reservation := self._ledger.advance(uid, Stage.BINDING)) is not None:
                self.post(reservation)

    def _expire(self, assembly: _Assembly, now_s: float) -> None:
        """Let no caller wait for longer than it may."""
        limit_s = self._hold_s + COMPLETE_S * self._gangs.may_start(assembly.job)
        for uid in list(takewhile(lambda uid: self._is_late(uid, now_s, limit_s), assembly.held)):  # in this order
            self._lapse(assembly, uid, f"its Binding was held for {limit_s:.3g} s")

    def _make_room(self, assembly: _Assembly) -> None:
        """Let the caller that has waited longest wait no more if there are too many: each has a connection."""
        most = self._most_calls if self._gangs.may_start(assembly.job) else self._most_calls // 2
        if sum(len(each.held) for each in self._assemblies.values()) > most:
            longest = max(self._assemblies.values(), key=lambda each: len(each.held))
            self._lapse(longest, next(iter(longest.held)), "too many Bindings are held")

    def _lapse(self, assembly: _Assembly, uid: str, why: str) -> None:
        """Refuse the request to bind a pod that has passed its scheduler's filters."""
        job, call, held = assembly.job, assembly.held[uid], self._ledger.get(uid)
        pod, missing = job.pods.get(uid), count(self._missing(job), "further pod")
        # No two sentences about a pod are alike: that its scheduler has written this one shows that it has given up.
        waited = f"for {self._monotonic() - assembly.begun_s:.0f} s job {job.key} has waited for {missing}"
        sentence = f"pod {held.pod if held else uid}: {why}; {waited}, and the pod keeps its seat"
        refusal = Refusal(Reason.GANG_AWAITED, sentence)
        if pod is None or held is None or not call.is_repeated:
            self._end(uid, refusal)
            return
        del assembly.held[uid]
        self.lapsed.add(pod, held.node)
        assembly.seen[uid] = verdict_on(pod)
        if not call.answer.done():
            call.answer.set_exception(refusal)

    def _is_late(self, uid: str, now_s: float, limit_s: float) -> bool:
        reservation = self._ledger.get(uid)
        return reservation is not None and now_s - reservation.since_s >= limit_s

    def _obstacle(self, assembly: _Assembly, now_s: float) -> str:
        """Why a gang has to give up, a part of a sentence; empty if it may still start."""
        coming, job = 0, assembly.job
        silent_s = now_s - assembly.since_s
        is_retried = silent_s >= (RETRIED_S if self._gangs.turns.get(job) is None else TURN_RETRIED_S)
        obstacles: list[str] = []
        for pod in job.pods.values():
            if pod.uid in assembly.held or pod.uid in self.lapsed or not pod.waits_for_chips:
                continue
            coming += 1
            verdict = verdict_on(pod)
            if self._gangs.awaits_victims(pod, job):
                assembly.seen[pod.uid] = verdict  # it was refused before they were evicted
                assembly.refused.pop(pod.uid, None)
                continue
            if verdict is not None and verdict != assembly.seen.get(pod.uid) and is_refusal(verdict):
                assembly.refused.setdefault(pod.uid, now_s)
            assembly.seen[pod.uid] = verdict
            is_new = now_s - assembly.refused.get(pod.uid, now_s) >= REFUSED_S
            # The gang may have been refused before it was planned, and the pod has not been filtered since.
            stale = () if pod.uid in self._ledger.refused(job.key.plan) else (Reason.GANG_DOES_NOT_FIT,)
            if verdict is not None and (is_new or (is_retried and is_refusal(verdict, *stale))):
                assembly.refused.setdefault(pod.uid, now_s)
                obstacles.append(refused(pod, verdict))
        missing = self._missing(job)
        if obstacles and coming - len(obstacles) < missing:
            return obstacles[0]
        if self._is_excused(assembly):
            assembly.since_s = now_s
        if now_s - assembly.since_s < STALLED_S:
            return ""
        pods = f"{count(missing, 'further pod')} was asked for within {STALLED_S:.3g} s: {_lacking(assembly)}"
        return f"no Binding of {pods}"

    def _is_excused(self, assembly: _Assembly) -> bool:
        if any(map(self._excused, assembly.seen)):
            return True
        return any(self._gangs.awaits_victims(pod, assembly.job) for pod in assembly.job.pods.values())

    def _missing(self, job: Job) -> int:
        return job.needed - job.ended - len(self._ledger.held(job.key.plan))

    def _order(self, job: Job) -> tuple[bool, int, str, JobKey]:
        """The order among stuck gangs: the last ones give up."""
        pods = job.pods.values()
        priority = max((pod.priority for pod in pods), default=0)
        since = min((pod.metadata.creation_timestamp or "" for pod in pods), default="")
        return self._gangs.turns.get(job) is None, -priority, since, job.key

    def _give_up(self, assembly: _Assembly, why: str) -> None:
        job = assembly.job
        waiting = count(len(self._ledger.held(job.key.plan)), "Binding")
        sentence = f"job {job.key} releases its chips: {waiting} waited for its other pods, and {why}"
        self._why = Refusal(Reason.GANG_STEPPED_BACK, sentence)
        try:
            self._gangs.step_back(job, assembly.refused, why)
        finally:
            self._why = None
        log.info("a gang gives up for now", job=str(job.key), kind=job.kind, error=sentence)

    def _end(self, uid: str, why: Refusal) -> None:
        self._why = why
        try:
            self._ledger.withdraw(uid)
        finally:
            self._why = None

    def _let_go(self, reservation: Reservation) -> None:
        key = JobKey.of_plan(reservation.plan)
        self.lapsed.discard(reservation.uid)
        assembly = self._assemblies.get(key)
        if assembly is None:
            return
        call = assembly.held.pop(reservation.uid, None)
        if not assembly.held and not self._lapsed_of(assembly.job):
            del self._assemblies[key]
        if call is not None and not call.answer.done():
            call.answer.set_exception(self._why or self._why_released(assembly.job, reservation))

    def _why_released(self, job: Job, reservation: Reservation) -> Refusal:
        """Why the chips of a pod whose Binding was held were released by others than the barrier."""
        pod = job.pods.get(reservation.uid)
        missing = self._gangs.incomplete(job, pod) if pod is not None else None
        if missing is not None and missing.reason is Reason.GROUP_MISSING:
            return missing
        waited = f"its chips were released while its Binding waited for the other pods of job {job.key}"
        return Refusal(Reason.GANG_STEPPED_BACK, f"pod {reservation.pod}: {waited}")


def _lacking(assembly: _Assembly) -> str:
    """The pods whose Bindings could still complete a gang."""
    pods = assembly.job.pods.values()
    return keys_of([pod for pod in pods if pod.waits_for_chips and pod.uid not in assembly.held])
