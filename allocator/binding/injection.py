"""Injects chips into Bindings that other schedulers post.

The API server shows every Binding to the webhook before it carries it out. What the webhook adds is written on the pod
in the same step, so it is as atomic as a Binding of the allocator itself (docs/architecture.md#decisions). Whether the
Binding is then made is not reported: another webhook may deny it, the pod may be gone. So the chips stay reserved as
those of a Binding of unknown outcome do (``Stage.DOUBTFUL``): until the watch shows the pod bound or deleted, and
otherwise as long as the API server may take for a request. A repeated Binding to the same node gets the same chips; one
to another node is refused during that time.

A scheduler that posts Bindings has chosen their nodes, so each is served for its node alone. Those of a gang wait for
each other, but only as long as the API server waits for the webhook. Each Binding that waits has chips that the next
gang lacks, and that gang has chips that the first one lacks: so once gangs stand in each other's way, they start in
turn (``allocator/gangs/start_queue.py``), and all but one hold nothing.
 When that time is over, a scheduler that posts its
Bindings one after the other can't be told from one that will post no more. So the pod is bound if its peers still fit
somewhere and none of them was refused meanwhile: with such a scheduler, a gang can start in part. It is served alone as
well, until it has all that its minimum needs: nothing is reserved for its other pods.
"""

import asyncio
import time
from collections.abc import Callable, Mapping

from allocator.binding.annotations import Stamper
from allocator.binding.barrier import Barrier
from allocator.binding.binding import Assignment, BindingLease, PodRef
from allocator.binding.known_pods import KnownPods
from allocator.decision.engine import DecisionEngine
from allocator.gangs.start_queue import StartQueue
from allocator.rules.job import JobKey
from allocator.state.job import Job
from allocator.state.reservation import Reservation, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason

ANSWER_S = 5.0

HOLD_S = 2.0
"""How long a Binding of a gang waits for the others; with the time to read a pod less than the API server waits."""

ROOM_S = 3.0
"""How often it is examined whether the gang whose turn it is fits; if not, its turn ends. Longer than the Bindings of
others are held, which may be in its way."""

REFUSED_S = 5.0
"""How long a gang whose Binding was refused does not start in part: schedulers try again within this time."""


class Injector:
    """Chooses chips for Bindings.

    Args:
        pods: finds the pods that are bound.
        engine: chooses the chips.
        barrier: holds the Bindings of gangs.
        stamper: makes predicate times and annotations.
        monotonic: the clock.
        lease: permission to have a Binding made; refuses if another allocator leads, or may lead soon.
        reserved: called with pods whose chips are reserved.
    """

    def __init__(
        self,
        *,
        pods: KnownPods,
        engine: DecisionEngine,
        barrier: Barrier,
        stamper: Stamper,
        monotonic: Callable[[], float] = time.monotonic,
        lease: Callable[[float], BindingLease] = BindingLease,
        reserved: Callable[[Pod, Assignment], None] = lambda _pod, _assignment: None,
    ) -> None:
        self._pods = pods
        self._cluster = engine.cluster
        self._engine = engine
        self._barrier = barrier
        self._stamper = stamper
        self._monotonic = monotonic
        self._refused_s: dict[JobKey, float] = {}
        self._one_by_one: set[JobKey] = set()
        self._queue = StartQueue(engine.cluster.jobs.by_key, monotonic, self._has_started, engine.gangs.holds)
        self._examined_s = 0.0
        self._lease = lease
        self._reserved = reserved

    async def inject(self, ref: PodRef, node: str, *, dry_run: bool = False) -> Mapping[str, str]:
        """The annotations a Binding must carry; none for a pod that requests no chips, or that can't be bound anyway.

        Args:
            ref: the pod; a Binding made by hand may lack its uid, and is refused.
            node: where it is to be bound.
            dry_run: the Binding will not be made, so nothing is reserved.

        Raises:
            Refusal: the pod does not fit there, has a Binding to another node in flight, or is invalid on every node: a
                job has one vNPU, whichever scheduler binds its pods.
                Or there is no such pod.
            ApiError: the API server refuses to read the pod.
            Unreachable: the informer has not seen the pod, and it can't be read.
        """
        if not ref.uid:
            # Whoever reaches the webhook could ask by name which pods there are, and have chips reserved for them.
            # The API server removes the uid of Bindings at the older path.
            at = f"as posted to pods/{ref.name}/binding; the API server removes that of bindings"
            raise Refusal(Reason.INVALID_REQUEST, f"pod {ref.key}: the Binding must name its uid (metadata.uid), {at}")
        pod = await self._pods.find(ref)
        if pod is None or pod.spec.node_name or not pod.is_live:
            # The API server does not bind a pod that has a node or has ended, and says so itself.
            return {}
        if not pod.requests_chips:
            self._engine.validate(pod)
            return {}
        if dry_run:
            for refusal in self._engine.filter(pod, [node]).refused.values():
                raise Refusal(refusal.reason, refusal.message)
            return {}
        lease = self._lease(ANSWER_S)
        self._engine.gangs.obstacles.on_request(pod)
        gang = self._engine.gang_of(pod)
        reservation = await self._reserve_or_release(pod, gang, node)
        if gang is not None:
            self._queue.advance(gang)
            lease = self._lease(ANSWER_S)  # it may have waited for others
        reservation = self._hand_out(pod, reservation)
        return {**self._stamper.annotations(pod, reservation), **lease.annotations}

    async def _reserve_or_release(self, pod: Pod, gang: Job | None, node: str) -> Reservation:
        try:
            return await self._reserve(pod, gang, node)
        except (Refusal, asyncio.CancelledError) as error:
            if gang is not None:
                # One that follows from the refusal of a peer doesn't count, or each try would refuse the next one. The
                # call is cancelled if the scheduler or the API server has ended.
                if isinstance(error, Refusal) and error.reason is not Reason.GANG_STEPPED_BACK:
                    self._note_refusal(gang)
                self._engine.gangs.release_unused(gang, pod)
            raise

    async def _reserve(self, pod: Pod, gang: Job | None, node: str) -> Reservation:
        if gang is not None:
            self._require_turn(pod, gang)
        try:
            reservation = self._engine.place_on(pod, node)
        except Refusal as refusal:
            lacks_pods = refusal.reason in {Reason.GANG_INCOMPLETE, Reason.GROUP_MISSING}
            if gang is not None and not lacks_pods and self._barrier.holds_other(gang, node):
                self._queue.join(gang)
            raise
        if reservation.stage is Stage.HELD:
            raise Refusal(Reason.GANG_STEPPED_BACK, f"pod {pod.key}: another request to bind it is held")
        if gang is None or reservation.stage not in {Stage.PLANNED, Stage.RESERVED} or self._is_one_by_one(gang):
            return reservation
        try:
            async with asyncio.timeout(HOLD_S):
                await self._barrier.wait_for_gang(pod, gang)
        except TimeoutError:
            self._start_in_part(pod, gang)
            return self._engine.place_on(pod, node)  # the gang may have stepped back at the same time
        return reservation

    def _require_turn(self, pod: Pod, gang: Job) -> None:
        """Accept a gang whose turn has come, or that needs no turn.

        Raises:
            Refusal: another gang is served now.
        """
        gangs = self._engine.gangs
        if self._has_started(gang):
            return
        has_begun = gangs.find_started(gang) is not None
        if has_begun or (self._queue.first is not None and gangs.incomplete(gang, pod) is None):
            self._queue.join(gang, has_begun=has_begun)  # another allocator may have started it
            self._pass_on()
        first = self._queue.ahead_of(gang)
        if first is not None and not (has_begun and gangs.find_started(first) is None):
            starts = f"job {gang.key}: job {first.key} starts first; they stood in each other's way"
            raise Refusal(Reason.GANG_STEPPED_BACK, starts)

    def _has_started(self, gang: Job) -> bool:
        """Whether a gang has all pods that its minimum needs."""
        gangs = self._engine.gangs
        return gangs.find_started(gang) is not None and gangs.may_start(gang)

    def _pass_on(self) -> None:
        """End the turn of a gang that has let its time pass, and the turns of gangs without room."""
        self._queue.pass_on()
        now_s = self._monotonic()
        if now_s - max(self._queue.since_s, self._examined_s) < ROOM_S:
            return
        self._examined_s = now_s
        for _ in range(len(self._queue)):
            if (first := self._queue.first) is None or self._fits(first):
                break
            self._queue.fail(first)

    def _fits(self, gang: Job) -> bool:
        try:
            self._engine.gangs.require_rest(gang)
        except Refusal:
            return False
        return True

    def _is_one_by_one(self, gang: Job) -> bool:
        """Whether a gang has started in part, and the Bindings of its other pods follow."""
        return gang.key in self._one_by_one and self._engine.gangs.find_started(gang) is not None

    def _note_refusal(self, gang: Job) -> None:
        now_s = self._monotonic()
        self._refused_s = {key: since_s for key, since_s in self._refused_s.items() if now_s - since_s < REFUSED_S}
        self._refused_s[gang.key] = now_s

    def _start_in_part(self, pod: Pod, gang: Job) -> None:
        """Accept that a gang starts with one Binding.

        Raises:
            Refusal: it can't start as a whole.
        """
        if self._monotonic() - self._refused_s.get(gang.key, -REFUSED_S) < REFUSED_S:
            raise Refusal(
                Reason.GANG_STEPPED_BACK, f"job {gang.key}: the Binding of another of its pods was refused just now"
            )
        self._require_turn(pod, gang)
        self._engine.gangs.require_rest(gang)
        self._queue.join(gang, has_begun=True)
        self._one_by_one = {key for key in self._one_by_one if key in self._cluster.jobs.by_key} | {gang.key}

    def _hand_out(self, pod: Pod, reservation: Reservation) -> Reservation:
        if reservation.stage in {Stage.BINDING, Stage.ASSUMED}:
            return reservation  # a Binding of the allocator itself, which knows its outcome
        is_new = reservation.stage is not Stage.DOUBTFUL
        reservation = self._stamper.stamp(reservation, Stage.DOUBTFUL)
        if is_new:
            self._reserved(pod, Assignment(reservation.node, reservation.grant))
        return reservation
