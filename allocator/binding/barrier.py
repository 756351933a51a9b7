"""Holds the Bindings of a gang until as many pods as its minimum can be bound, and posts them together.

A scheduler asks to bind a pod after the pod has passed its filters on a node, and accounts for it there from then on:
kube-scheduler's Permit plugins rely on that, too. So a gang whose Bindings are all asked for can start as a
whole, and one that can't start has bound nothing. A held Binding is a future: it costs no thread, and is not polled.

A scheduler waits for the answer only for some time. Then the request is refused, but the pod keeps its seat, and still
counts for its gang (``allocator/binding/lapsed.py``): so a gang of any size starts, however slowly its scheduler
filters the pods. Bindings that nobody waits for any more are posted with the others.

A gang gives up as a whole if its scheduler refuses one of its pods (the pod's condition PodScheduled says so), or has
not asked to bind a further pod for a while. The requests that are held are then refused, so the scheduler releases what
it has accounted for, and the gang steps back behind others (``gangs/start_queue.py``). If several gangs are stuck,
only half of them give up, the last ones, and the others get the time to use what it releases.
"""

import asyncio
import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, islice, takewhile
from typing import Final, NamedTuple

import structlog

from allocator.binding.lapsed import LapsedHolds
from allocator.binding.verdicts import Verdicts
from allocator.decision.engine import DecisionEngine
from allocator.rules.job import JobKey
from allocator.rules.scheduled import Refused, is_refusal, keys_of, refused, refused_by_filters
from allocator.state.job import Job
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.jobs.pod_groups import KUBERNETES
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Turn

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
AT_ONCE: Final = 64
"""The most Bindings of a gang that starts that go on in one turn of the event loop."""
COMPLETE_S: Final = 5.0
"""How much longer Bindings are held if all pods that the gang needs have passed their scheduler's filters: for so long
nominations are waited for. If that is too short, all of these Bindings are given up together, so that none is given up
while nominations are waited for again."""

SAME_AGE_S: Final = 1.0
"""Requests ended at ages that differ by less, but begun further apart, have met the time-out of their scheduler."""
SHORTEST_TIMEOUT_S: Final = 5.0
"""kube-scheduler's default (k/k:pkg/scheduler/extender.go, DefaultExtenderTimeout)."""
HELD_SHARE: Final = 0.8
"""The share of a scheduler's time-out for which its Bindings are held."""
STALE_S: Final = 5.0
"""A refusal that is seen so soon after a Binding is held may be older than the request."""


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
        begun_s: when a Binding was asked for first, or a pod of a group of kube-scheduler got a seat.
        since_s: when a further Binding was asked for last, or another gang gave up.
        held: the requests that callers wait for, by uid.
        most: the most pods that were held at the same time.
        asked: the uids of the pods that were asked for since there were so many.
        last: the number of the last refusal before the first Binding was held, or another gang gave up.
        refused: the pods that their scheduler has refused since, by uid, and when that was seen.
        is_open: whether the gang starts.
    """

    job: Job
    begun_s: float
    since_s: float
    held: dict[str, _Call] = field(default_factory=dict)
    most: int = 0
    asked: set[str] = field(default_factory=set)
    last: int = 0
    refused: dict[str, float] = field(default_factory=dict)
    is_open: bool = False


class Barrier:
    """Holds Bindings of gangs.

    Args:
        engine: its gangs say when one may start.
        monotonic: the clock.
        hold_s: how long the caller of one Binding waits at most.
        most_calls: the most callers that wait; half as many if the gangs of which some wait have more pods, as long as
            none is complete.

    Attributes:
        lapsed: the pods whose Bindings nobody waits for any more.
        post: called with the reservation of such a pod, in stage BINDING, when its gang starts.
    """

    def __init__(
        self,
        engine: DecisionEngine,
        *,
        monotonic: Callable[[], float],
        hold_s: float,
        most_calls: int = sys.maxsize,
    ) -> None:
        self._engine = engine
        self._cluster = engine.cluster
        self._ledger = engine.ledger
        self._gangs = engine.gangs
        self._monotonic = monotonic
        self._hold_s = hold_s
        self._most_calls = most_calls
        self._assemblies: dict[JobKey, _Assembly] = {}
        self._why: Refusal | None = None
        self._closed: Refusal | None = None
        self._left = -math.inf, -math.inf
        self._excused: Callable[[], Iterable[str]] = tuple
        self._verdicts = Verdicts(engine.cluster)
        self.lapsed = LapsedHolds(engine.cluster, engine.ledger, monotonic)
        self.post: Callable[[Reservation], None] = lambda _reservation: None
        engine.ledger.on_let_go(self._let_go)

    def expect(self, job: Job) -> _Assembly:
        """Judge from now on whether a gang still may start; its first pod has a seat."""
        assembly = self._assemblies.get(job.key)
        if assembly is None:
            now_s = self._monotonic()
            assembly = self._assemblies[job.key] = _Assembly(job, now_s, now_s, last=self._verdicts.last)
        return assembly

    async def wait_for_gang(self, pod: Pod, job: Job, *, is_repeated: bool = False) -> None:
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
        assembly = self.expect(job)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        is_further = pod.uid not in self.lapsed
        self.lapsed.discard(pod.uid)
        held = self._ledger.advance(pod.uid, Stage.HELD)
        assembly.job = job
        assembly.held[pod.uid] = _Call(future, is_repeated)
        assembly.refused.pop(pod.uid, None)
        self._verdicts.settle(pod.uid)
        self._note_progress(assembly, pod.uid)
        if held is not None and self.lapsed.on_acceptance(pod, held.node, is_further=is_further):
            assembly.since_s = self._monotonic()
        self._open_if_complete(assembly)
        if not future.done():
            self._make_room(assembly)
        try:
            await future
        except asyncio.CancelledError:
            self.withdraw(pod.uid)
            raise

    def on_acceptance(self, pod: Pod) -> None:
        """Note a filtered pod: of its own groups kube-scheduler binds no pod before the last one was filtered."""
        job = self._engine.gang_of(pod)
        if job is not None and job.kind == KUBERNETES:
            self.expect(job)

    def require_room(self, pod: Pod) -> None:
        """Accept a pod alone, or of a gang whose Bindings can be held: others would be asked for in vain for ever.

        Raises:
            Refusal: its gang has more pods than may be held, and has not started.
        """
        job = self._engine.gang_of(pod)
        if job is not None and job.needed > self._most_calls and self._gangs.find_started(job) is None:
            most = count(self._most_calls, "Binding")
            sentence = f"job {job.key}: {count(job.needed, 'pod')} must be placed together, and {most} may be held"
            raise Refusal(Reason.INVALID_MIN_AVAILABLE, sentence)

    def holds_other(self, job: Job, node: str) -> bool:
        """Whether Bindings of another gang to a node are held."""
        own, there = self._ledger.plans.of(job.key.plan).held, map(self._ledger.get, self._ledger.on(node))
        return any(seat is not None and seat.stage is Stage.HELD and seat.uid not in own for seat in there)

    def excuse(self, excused: Callable[[], Iterable[str]]) -> None:
        """Set what returns the uids of pods for which a gang waits however late their schedulers ask to bind them."""
        self._excused = excused

    def on_filter(self, uid: str, names: Collection[str]) -> None:
        """Note that a scheduler filters a pod on these nodes, and waits for no Binding of the pod; the seat stays."""
        node = self.lapsed.node_of(uid)
        if node is None or node not in names:
            self.withdraw(uid)

    def leave(self, uid: str) -> None:
        """The caller of a pod does not wait any more."""
        held = self._ledger.get(uid)
        assembly = self._assemblies.get(JobKey.of_plan(held.plan)) if held is not None and held.plan else None
        if assembly is not None and uid in assembly.held and not assembly.is_open:
            if assembly.held[uid].is_repeated:  # the time-outs of other callers are no kube-scheduler's
                self._learn_timeout(assembly.job, uid)
            self._lapse(assembly, uid, "its scheduler does not wait any more")

    def _learn_timeout(self, job: Job, uid: str) -> None:
        """Hold Bindings for less long than a scheduler waits for them, as far as its ended requests show.

        A scheduler that ends a request itself writes the same sentence each time, and so never shows that it has given
        the pod up (``lapsed.py``). Requests that began at different times and were ended at one age have timed out;
        a scheduler that stops ends requests of different ages.
        """
        reservation, now_s = self._ledger.get(uid), self._monotonic()
        if reservation is None:
            return
        waited_s = now_s - reservation.since_s
        last_s, last_waited_s = self._left
        self._left = reservation.since_s, waited_s
        is_same_age = abs(waited_s - last_waited_s) < SAME_AGE_S <= abs(reservation.since_s - last_s)
        if not is_same_age or waited_s < SHORTEST_TIMEOUT_S or waited_s >= self._hold_s:
            return
        configured_s, self._hold_s = self._hold_s, HELD_SHARE * waited_s
        log.warning(
            "kube-scheduler's httpTimeout is shorter than gang_hold_s: Bindings are held for less long from now on",
            job=str(job.key),
            pod=reservation.pod,
            waited_s=round(waited_s, 1),
            gang_hold_s=configured_s,
            held_for_s=round(self._hold_s, 1),
        )

    def withdraw(self, uid: str) -> None:
        """End the wait of a pod whose Binding its scheduler has given up for good; the pod keeps its seat."""
        reservation = self._ledger.get(uid)
        if reservation is None or reservation.stage is not Stage.HELD:
            return
        assembly = self._assemblies.get(JobKey.of_plan(reservation.plan))
        if assembly is None or not assembly.is_open:
            sentence = f"pod {reservation.pod}: its scheduler has given up the Binding"
            self._end(uid, Refusal(Reason.GANG_STEPPED_BACK, sentence))

    def close(self, why: Refusal) -> None:
        """End the wait of all pods, and of pods that come later; all keep their seats."""
        self._closed = why
        for assembly in tuple(self._assemblies.values()):
            while assembly.is_open and assembly.job.key in self._assemblies:
                self._let_pass(assembly)
            for uid in tuple(assembly.held):
                self._end(uid, why)

    async def check(self) -> None:
        """Let gangs start, or give up; call it periodically."""
        turn = Turn()
        self._gangs.prune()  # nobody may have called since a node became unusable
        self._gangs.pass_on()
        await turn.share_between(self._gangs.make_room_for_waiting())
        self._gangs.release_without_prospects()
        stuck: list[tuple[_Assembly, str]] = []
        for assembly in tuple(self._assemblies.values()):
            for uid in self.lapsed.of(assembly.job.key.plan):
                await turn.share()
                pod = self._cluster.pods.get(uid)
                if uid in self.lapsed and (pod is None or self.lapsed.has_ended(pod)):
                    self._ledger.withdraw(uid)
            self._end_refused(assembly)
            self._open_if_complete(assembly)
            for uid in self._late(assembly):
                await turn.share()
                if uid in assembly.held and not assembly.is_open:
                    self._lapse(assembly, uid, f"its Binding was held for {self._hold_s:.3g} s")
            await turn.share()
            if not self._is_waiting(assembly):
                continue
            if why := self._gangs.obstacles.refusal(assembly.job, for_ever=True):
                self._give_up(assembly, why)
            elif why := self._obstacle(assembly, self._monotonic()):
                stuck.append((assembly, why))
        stuck = [entry for entry in stuck if self._is_waiting(entry[0])]
        if stuck:
            self._resolve(stuck)

    def _resolve(self, stuck: list[tuple[_Assembly, str]]) -> None:
        """Let the last half of the gangs give up that are stuck, or of which a pod was refused just now."""
        now_s, known = self._monotonic(), [assembly.job for assembly, _ in stuck]
        others = [other for other in self._assemblies.values() if self._is_waiting(other) and other.job not in known]
        stuck += [(other, why) for other in others if (why := self._obstacle(other, now_s, refused_s=0.0))]
        stuck.sort(key=lambda entry: self._order(entry[0].job))
        for assembly, why in stuck[len(stuck) // 2 :]:
            self._give_up(assembly, why)
        for assembly in self._assemblies.values():
            assembly.since_s, assembly.last = now_s, self._verdicts.last
            assembly.refused.clear()

    def _is_waiting(self, assembly: _Assembly) -> bool:
        return self._assemblies.get(assembly.job.key) is assembly and not assembly.is_open

    def _note_progress(self, assembly: _Assembly, uid: str) -> None:
        """Give a gang more time if the pod is a further one, or was not asked for since the last further pod came.

        It is no progress that pods are asked for again and again.
        """
        number = len(self._ledger.plans.of(assembly.job.key.plan).held)
        if number > assembly.most:
            assembly.most = number
            assembly.asked.clear()
        if uid not in assembly.asked:
            assembly.asked.add(uid)
            assembly.since_s = self._monotonic()

    def _open_if_complete(self, assembly: _Assembly) -> None:
        job = assembly.job
        if assembly.is_open or not self._gangs.may_start(job):
            return
        lapsed = self.lapsed.of(job.key.plan)
        if not (assembly.held or lapsed) or not all(map(self.lapsed.is_settled, lapsed)):
            return
        if gone := [uid for uid, call in assembly.held.items() if call.answer.cancelled()]:
            for uid in gone:
                self.leave(uid)  # its caller has gone in this very moment
            return
        assembly.is_open = True
        self._let_pass(assembly)

    def _let_pass(self, assembly: _Assembly) -> None:
        """Let Bindings of a gang that starts be posted; of thousands, the others in later turns of the event loop."""
        key = assembly.job.key
        if self._assemblies.get(key) is not assembly:
            return
        for uid in list(islice(chain(assembly.held, self.lapsed.of(key.plan)), AT_ONCE)):
            call = assembly.held.pop(uid, None)
            self.lapsed.discard(uid)
            reservation = self._ledger.advance(uid, Stage.BINDING)
            if call is not None and not call.answer.done():
                call.answer.set_result(None)
            elif reservation is not None:
                self.post(reservation)
        if assembly.held or self.lapsed.of(key.plan):
            asyncio.get_running_loop().call_soon(self._let_pass, assembly)
        else:
            del self._assemblies[key]

    def _end_refused(self, assembly: _Assembly) -> None:
        """End the wait of pods that a scheduler has refused since: another one waits for the answer, or nobody."""
        for uid in [uid for uid, verdict in self._verdicts.of(assembly.job.key).items() if verdict.number]:
            reservation = self._ledger.get(uid)
            if uid not in assembly.held or assembly.is_open or reservation is None:
                continue
            if self._monotonic() - reservation.since_s < STALE_S:
                self._verdicts.settle(uid)
            else:
                sentence = f"pod {reservation.pod}: a scheduler has refused it since its Binding is held"
                self._end(uid, Refusal(Reason.GANG_STEPPED_BACK, sentence))

    def _late(self, assembly: _Assembly) -> list[str]:
        """The uids of the pods whose callers have waited for as long as they may."""
        is_complete = self._gangs.may_start(assembly.job)
        since_s = self._monotonic() - self._hold_s - COMPLETE_S * is_complete
        late = list(takewhile(lambda uid: self._is_held_since(uid, since_s), assembly.held))  # in this order
        if not (is_complete and late):
            return late
        return list(dict.fromkeys([*late, *(uid for uid, call in assembly.held.items() if call.is_repeated)]))

    def _is_held_since(self, uid: str, time_s: float) -> bool:
        reservation = self._ledger.get(uid)
        return reservation is not None and reservation.since_s <= time_s

    def _make_room(self, assembly: _Assembly) -> None:
        """Let the caller that has waited longest wait no more if there are too many: each has a connection."""
        needed = sum(other.job.needed for other in self._assemblies.values())
        is_ample = needed <= self._most_calls or self._gangs.may_start(assembly.job)
        most = self._most_calls if is_ample else self._most_calls // 2
        if sum(len(assembly.held) for assembly in self._assemblies.values()) > most:
            longest = max(self._assemblies.values(), key=lambda assembly: len(assembly.held))
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
        self.lapsed.add(pod, held)
        if not call.answer.done():
            call.answer.set_exception(refusal)

    def _obstacle(self, assembly: _Assembly, now_s: float, *, refused_s: float = REFUSED_S) -> str:
        """Why a gang has to give up, a part of a sentence; empty if it may still start.

        Args:
            assembly: the gang.
            now_s: the present.
            refused_s: how long it waits after its scheduler has refused a pod.
        """
        job, missing = assembly.job, self._missing(assembly.job)
        silent_s = now_s - assembly.since_s
        retried_s = RETRIED_S if self._gangs.queue.get(job) is None else TURN_RETRIED_S
        victims_of = self._gangs.awaiting_victims(job)
        for uid in victims_of:
            self._verdicts.settle(uid)  # it was refused before they were evicted
            assembly.refused.pop(uid, None)
        obstacles: list[str] = []
        for uid, verdict in self._verdicts.of(job.key).items():
            if uid in victims_of or uid not in job.pods or not self._is_coming(assembly, job.pods[uid]):
                continue
            if verdict.number > assembly.last:
                assembly.refused.setdefault(uid, now_s)
            # A pod with a seat lacks chips in the eyes of a scheduler that has yet to see what others have released.
            is_short = refused_by_filters(verdict.condition) is Refused.CHIPS
            is_new = now_s - assembly.refused.get(uid, math.inf) >= (TURN_RETRIED_S if is_short else refused_s)
            is_retried = silent_s >= (TURN_RETRIED_S if is_short else retried_s)
            # The gang may have been refused before it was planned, and the pod has not been filtered since.
            stale = () if uid in self._ledger.plans.of(job.key.plan).refused else (Reason.GANG_DOES_NOT_FIT,)
            if is_new or (is_retried and is_refusal(verdict.condition, *stale)):
                assembly.refused.setdefault(uid, now_s)
                obstacles.append(refused(job.pods[uid], verdict.condition))
        if obstacles and sum(self._is_coming(assembly, pod) for pod in job.pods.values()) - len(obstacles) < missing:
            return obstacles[0]
        if victims_of or any(uid in job.pods for uid in self._excused()):
            assembly.since_s = now_s
        elif (untried := self._gangs.obstacles.why_untried(job)) is not None:
            return untried
        if now_s - assembly.since_s < STALLED_S:
            return ""
        pods = f"{count(missing, 'further pod')} was asked for within {STALLED_S:.3g} s: {_lacking(assembly)}"
        return f"no Binding of {pods}"

    def _is_coming(self, assembly: _Assembly, pod: Pod) -> bool:
        """Whether a pod of a gang waits, and its scheduler has not asked to bind it."""
        return pod.waits_for_chips and pod.uid not in assembly.held and pod.uid not in self.lapsed

    def _missing(self, job: Job) -> int:
        return job.needed - job.ended - len(self._ledger.plans.of(job.key.plan).held)

    def _order(self, job: Job) -> tuple[bool, bool, int, str, JobKey]:
        """The order among stuck gangs: the last ones give up."""
        pods = job.pods.values()
        priority = max((pod.priority for pod in pods), default=0)
        since = min((pod.metadata.creation_timestamp or "" for pod in pods), default="")
        return job is not self._gangs.queue.first, self._gangs.queue.get(job) is None, -priority, since, job.key

    def _give_up(self, assembly: _Assembly, why: str) -> None:
        job = assembly.job
        waiting = count(len(self._ledger.plans.of(job.key.plan).held), "Binding")
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
        if not assembly.held and not self.lapsed.of(key.plan):
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
