"""Plans gangs in their turn: the gangs that have to wait, and the nodes for a gang that has stepped back.

A gang that its scheduler does not let start releases all its seats: it steps back, and tries again in its turn
(``start_queue.py``). It does not rely on its first plan then. First each of its pods is offered to its scheduler while
the gang holds nothing, which tells on which nodes each pod may be at all; then all are planned on these nodes. What the
scheduler refuses beside peers that hold their seats already is remembered for the next try.

A gang without prospects has no turn, and nobody waits for it: its scheduler offers no node for a pod that it needs
(``obstacles.py``). It keeps its place, and has its turn when the scheduler asks for that pod again.

A gang that does not fit with all that is remembered has tried in vain: it rests, with all gangs like it
(``resting.py``).

While a gang tries, it *yields* once it has no prospect that anybody knows of: its scheduler refuses one of its pods
beside the others, or it has tried in vain before, or a gang like it. It releases its chips to whoever lacks nothing
else, and its next try keeps the chips: so it starts if it can, whoever comes.

A gang that has not tried yet leaves the nodes of the last try to the gangs of the same or a higher priority that have
stepped back: it would only fail there as well, and take from them what they lack. If it doesn't fit elsewhere, it waits
for a turn like them, without a try in vain.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from allocator.gangs.obstacles import RELEASED_S, Obstacles
from allocator.gangs.planning import Planner, Scope
from allocator.gangs.progress import Progress
from allocator.gangs.resting import FIRST_REST_S, LONGEST_REST_S, Resting, kind_of
from allocator.gangs.start_queue import StartQueue, Wait, priority_of
from allocator.rules.job import JobKey
from allocator.rules.node_constraints import untolerated
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.verdicts import capacity
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node import NodeRecord
from allocator.state.reservation import Seat, Stage
from allocator.state.view import AS_IT_IS, Without
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.rate_limiters import ItemBackoff
from ascend.reasons import Reason
from ascend.turn import Steps

_MANY: Final = 64
"""Of larger gangs a plan takes more than a few milliseconds."""

_ORDERS: Final = 4
"""So many tries in vain tell that the pods of a gang exclude each other, whatever is still offered for each of them: by
zones, for example. If they differ, each try plans them in another order."""

SETTLED_S: Final = 5.0
"""How long after a turn has begun the offers of a scheduler may be outdated: without what the gang before has released.
"""

TRIED_S: Final = 2.0
"""How long after its scheduler has tried a pod of it for the first time a gang may have a turn while other pods of it
are untried: pods that were created together are tried one right after the other."""


class Attempts:
    """Follows the attempts of gangs to start.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        progress: says whether a gang has started.
        planner: finds seats.
        obstacles: what gangs lack besides chips.

    Attributes:
        queue: the gangs that have stepped back, and those that wait for them.
        resting: the gangs that rest.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, progress: Progress, planner: Planner, obstacles: Obstacles
    ) -> None:
        # When it was examined whether a gang fits on what another one holds, and whether it does.
        self._examined: dict[tuple[JobKey, JobKey], tuple[float, bool]] = {}
        # The jobs for which gangs have released chips.
        self._helped = ItemBackoff[JobKey](ledger.monotonic, FIRST_REST_S, LONGEST_REST_S)
        self.resting = Resting(cluster, ledger.monotonic)
        self.queue = StartQueue(
            cluster.jobs.by_key,
            ledger.monotonic,
            has_started=lambda job: progress.find_started(job) is not None,
            holds=progress.holds,
            has_prospects=self._has_prospects,
            started=self.resting.on_end,
        )
        self._obstacles = obstacles
        self._cluster = cluster
        self._ledger = ledger
        self._progress = progress
        self._planner = planner

    def plan(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without
    ) -> list[Seat]:
        """Seats for a pod and all its peers without a seat; reserves nothing.

        Raises:
            Refusal: the gang does not fit, has to wait for others, or its pods have to be filtered first.
        """
        if (refusal := self._refusal(pod, job)) is not None:
            raise refusal
        wait = self.queue.get(job)
        if wait is None:
            return self._plan_first(pod, request, job, candidates, without)
        lacking = self._planner.lacks_offers(pod, request, job, wait)
        if lacking > 0:
            pods = count(lacking, "more of its pods has", "more of its pods have")
            raise _waits(job, f"{pods} to be filtered before they are planned again", wait)
        return self._planner.plan(pod, request, job, candidates, wait, without=without)

    def may_be_planned(self, pod: Pod, request: ChipRequest, job: Job, without: Without) -> bool:
        """Whether a pod would get a seat now, or has to be filtered first for that."""
        if self._refusal(pod, job) is not None:
            return False
        wait = self.queue.get(job)
        if wait is None:
            return self._planner.fits(pod, request, job, Scope(None, without))
        # Its scheduler has to offer each pod once; when that is done, all are planned.
        return pod.uid not in wait.offers or self._planner.lacks_offers(pod, request, job, wait) <= 0

    def left_to_others(self, job: Job) -> dict[JobKey, frozenset[str]]:
        """The nodes that a new gang leaves to earlier gangs, by the earlier gangs' jobs."""
        if not self.queue or self._is_clearing(job):
            return {}
        if self.queue.get(job) is not None or self._progress.find_started(job):
            return {}
        return {key: self._nodes(key.plan) | wait.nodes for key, wait in self.queue.preceding(priority_of(job))}

    def _plan_first(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without
    ) -> list[Seat]:
        """The plan of a new gang, on nodes that no earlier gang needs."""
        left = self.left_to_others(job)
        try:
            avoided = frozenset[str]().union(*left.values())
            return self._planner.plan(pod, request, job, candidates, avoided=avoided, without=without)
        except Refusal:
            holder = self.queue.first
            if holder is not None and self._fits_without(holder, pod, request, job, candidates):
                raise _waits(job, f"pod {pod.key} waits for job {holder.key}, which has what it needs") from None
            if not left and (candidates is None or not job.is_mixed):
                raise
        if left:
            # They drain for it, or for gangs that wait for a turn as well; it may not fit there either.
            drained = [promise.owner for promise in self._ledger.promises if promise.drains]
            self._planner.plan(pod, request, job, candidates, without=Without(owners=drained))
            ahead = next(iter(left))
            raise _waits(job, f"pod {pod.key} waits for job {ahead}, which tries before it on the nodes left")
        self._planner.plan(pod, request, job, None)  # it may not fit at all
        rest = f"its pods differ, and do not all fit where pod {pod.key} may be; each of them has to be filtered"
        raise _waits(job, f"job {job.key}: {rest}")

    def _fits_without(
        self, holder: Job, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None
    ) -> bool:
        """Whether a job would fit beside the pods that run, on what the holder has; examined now and then.

        Of a large gang the chips are counted, and of a large holder some seats: more would take long.
        """
        plan = self._ledger.plans.of(holder.key.plan)
        seats = [*plan.held, *sorted(plan.seats)]
        if not seats:
            return False
        now_s, known = self._ledger.monotonic(), self._examined
        self._examined = known = {key: (at_s, fits) for key, (at_s, fits) in known.items() if now_s < at_s + TRIED_S}
        if (job.key, holder.key) not in known:
            names = self._usable(holder, pod, request, candidates)
            if job.size > _MANY:
                fits = self._has_chips_without(seats, request, job, names)
            else:
                fits = self._planner.fits(pod, request, job, Scope(names, Without(seats[:_MANY])))
            known[job.key, holder.key] = now_s, fits
        return known[job.key, holder.key][1]

    def _has_chips_without(
        self, seats: Collection[str], request: ChipRequest, job: Job, names: Collection[str] | None
    ) -> bool:
        """Whether nothing but the chips of these seats is missing for a gang on these nodes, by number."""
        needed = job.needed - job.placed_beside("")
        buckets = self._cluster.index.buckets_of(names)
        free = sum(capacity(bucket.vacancy, request)[0] * nodes for bucket, nodes in buckets)
        kept = (seat for seat in map(self._ledger.get, seats) if seat is not None)
        held = sum(seat.take.occupied.bit_count() for seat in kept if names is None or seat.node in names)
        return free < needed <= free + held // max(request.chips, 1)

    def _usable(
        self, holder: Job, pod: Pod, request: ChipRequest, candidates: Collection[str] | None
    ) -> Collection[str] | None:
        """The nodes offered for a pod, and nodes that its scheduler may leave out for the chips of a gang."""
        selected = self._cluster.labels.only(pod.spec.node_requirements)
        if candidates is None:
            return selected
        reach = set(candidates)
        for name in self._nodes(holder.key.plan) - reach:
            record = self._cluster.nodes.get(name)
            if record is None or record.node is None or (selected is not None and name not in selected):
                continue
            if untolerated(record.node.spec.taints, pod.spec.tolerations) is None and self._is_short(record, request):
                reach.add(name)
        return frozenset(reach)

    def _is_short(self, record: NodeRecord, request: ChipRequest) -> bool:
        """Whether a scheduler may count too few chips on a node: it does not know seats that are only planned."""
        if not isinstance(record.offer, Vacancy) or not request.is_for_chips:
            return True
        seats = filter(None, map(self._ledger.get, self._ledger.on(record.name)))
        planned = sum(seat.take.occupied.bit_count() for seat in seats if seat.stage is Stage.PLANNED)
        return record.offer.free.bit_count() + planned < request.chips

    def make_room(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None = None) -> bool:
        """Let a yielding gang release its chips for a pod that needs these chips; returns whether a gang did.

        The gang of the pod has the next turn. Not soon again for the same job: its scheduler may refuse the nodes for
        other reasons than chips.
        """
        if not self._may_have_room(job):
            return False
        yielding = (gang for gang in self._yielding() if gang is not job)
        held = (gang for gang in yielding if self._fits_without(gang, pod, request, job, candidates))
        holder = next((gang for gang in held if self._gives_way(gang, pod)), None)
        if holder is None:
            return False
        self._helped.fail(job.key)
        had_turn = self.queue.first in (None, holder)
        why = f"pod {pod.key} fits on them, and gangs like it have kept chips in vain"
        self.step_back(holder, (), why, rests=self.resting.has_tried(holder))
        if (wait := self.queue.get(holder)) is not None:
            wait.may_keep = True
        if job.is_gang and had_turn:
            self.queue.lead(job)
        return True

    def make_room_for_waiting(self) -> Steps[None]:
        """Do the same for pods that are refused because their scheduler counts the chips of a yielding gang.

        Thousands may wait, so of pods and gangs that are alike one is examined.
        """
        if next(self._yielding(), None) is None:
            return
        examined = set[object]()
        for pod, job in self._obstacles.short_of_chips():
            if self._may_have_room(job):
                with suppress(Refusal):
                    request = self._planner.request_of(pod)
                    kind = kind_of(job) if job.is_gang else (request, pod.spec.node_requirements)
                    is_new = kind not in examined
                    examined.add(kind)
                    if is_new and not self._fits(pod, request, job) and self.make_room(pod, request, job):
                        return
            yield

    def _fits(self, pod: Pod, request: ChipRequest, job: Job) -> bool:
        """Whether a job fits as it is; for a large gang that is left to the count of chips."""
        return job.size <= _MANY and self._planner.fits(pod, request, job, Scope(None, AS_IT_IS))

    def _may_have_room(self, job: Job) -> bool:
        """Whether a gang may release chips for a job, which has not tried and lacks nothing but chips."""
        is_ruled_out = self._has_tried(job) or self._helped.is_waiting(job.key)
        return not is_ruled_out and self._obstacles.of(job) is None

    def _yielding(self) -> Iterator[Job]:
        """The gangs that hold chips and may not keep them from others."""
        for plan in self._ledger.plans:
            holder = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            if holder is not None and self.yields(holder):
                yield holder

    def _gives_way(self, holder: Job, pod: Pod) -> bool:
        """Whether a gang that yields does so for a pod: for one of a lower priority only while anything is owed."""
        if priority_of(holder) <= pod.priority or self.resting.is_owed:
            return True
        if (wait := self.queue.get(holder)) is not None:
            wait.has_kept = True
        return False

    def yields(self, job: Job) -> bool:
        """Whether a gang that has not started may not keep chips from others."""
        return self._is_without_claim(job) and self._progress.find_started(job) is None

    def _is_without_claim(self, job: Job) -> bool:
        has_tried, wait = self._has_tried(job), self.queue.get(job)
        if wait is not None and wait.may_keep:
            return has_tried and self.resting.is_owed
        return has_tried or self._obstacles.refusal(job) is not None

    def _has_tried(self, job: Job) -> bool:
        """Whether a gang, or one like it, has tried in vain."""
        wait = self.queue.get(job)
        return (wait is not None and wait.tries > 0) or self.resting.has_tried(job)

    def _nodes(self, plan: str) -> frozenset[str]:
        held = (self._ledger.get(uid) for uid in self._ledger.plans.of(plan).held)
        return frozenset(seat.node for seat in (*self._ledger.seats(plan), *held) if seat is not None)

    def _has_prospects(self, job: Job) -> bool:
        """Whether a gang is awake, and its scheduler, if known, offers nodes for the pods of its minimum."""
        if job in self.resting:
            return False
        return self._obstacles.of(job) is None and self._obstacles.why_untried(job, for_s=TRIED_S) is None

    def pass_on(self) -> None:
        """End the turn of a gang that does not fit, or has made no progress for long; call it periodically."""
        first = self.queue.first
        if first is not None and not self._progress.holds(first):
            silent_s = self._ledger.monotonic() - self.queue.since_s
            if not self._may_fit(first):
                self.does_not_fit(first)
            elif silent_s >= RELEASED_S and self._obstacles.refusal(first, for_chips=True) is not None:
                self.queue.fail(first)  # its scheduler has seen since that chips are free
        self.queue.pass_on()

    def _may_fit(self, job: Job, *, limits: Mapping[str, int] = MappingProxyType({})) -> bool:
        """Whether a gang fits, has seats or gets chips whose holders end; it is unknown of a large one.

        Args:
            job: the gang.
            limits: the most pods of it on a node, by name of the node.
        """
        pod = next((pod for pod in job.pods.values() if pod.waits_for_chips), None)
        if pod is None or self._is_clearing(job) or self._ledger.plans.of(job.key.plan).unused or job.size > _MANY:
            return True
        try:
            request = self._planner.request_of(pod)
        except Refusal:
            return False
        scope = Scope(None, self._planner.usable(pod, job), limits=limits)
        return self._planner.fits(pod, request, job, scope)

    def _is_clearing(self, job: Job) -> bool:
        """Whether other pods end for a gang."""
        promise = self._ledger.promises.get(job.key.plan)
        return promise is not None and not promise.drains

    def _refusal(self, pod: Pod, job: Job) -> Refusal | None:
        """Why a gang has to wait for another gang or for its scheduler; None if planning is allowed."""
        refused, ahead = self._obstacles.refusal(job), self.queue.ahead_of(job)
        rests = job in self.resting and not self._progress.holds(job)
        if (refused is None and ahead is None and not rests) or self._progress.find_started(job) is not None:
            return None
        wait = self.queue.get(job)
        if refused is not None:
            return _waits(job, f"job {job.key} can't start: {refused}", wait)
        # The same while it rests, and whosever turn it is: kube-scheduler writes each change, and tries the pod again.
        turn = "gangs of which pods were refused try one by one, later after each try in vain"
        return _waits(job, f"pod {pod.key} waits for its turn: {turn}", wait)

    def note_offer(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> None:
        """Record the nodes that the scheduler offers for a pod of a gang that has stepped back."""
        wait = self.queue.get(job)
        if wait is None or job in self.resting or self.queue.ahead_of(job) is not None:
            return
        nominated = pod.status.nominated_node_name
        if candidates is not None and set(candidates) == {nominated}:
            promise = self._ledger.promises.get(job.key.plan)
            if promise is None or promise.drains or nominated not in promise.chips:
                return  # its scheduler filters the nominated node first, which says nothing about the others
        offered = self._cluster.index.entries if candidates is None else candidates
        held = self._ledger.get(pod.uid)
        if held is not None and held.node not in offered:
            wait.refuse(pod.uid, held.node, self._held_on(held.node, job))
        if pod.uid not in wait.offers:
            self.queue.advance(job)  # many pods take long
        if not (wait.tries or wait.offers or job.is_mixed):
            # What its scheduler offers for one pod it offers for each: a round of its queue may take seconds.
            for uid, peer in job.pods.items():
                if peer.waits_for_chips and not self._obstacles.lacks_more_than_chips(peer):
                    wait.offer(uid, offered)
        wait.offer(pod.uid, offered)

    def step_back(self, job: Job, refused: Collection[str], why: str, *, rests: bool = False) -> None:
        """Release all seats of a gang, and let it try again in its turn.

        Args:
            job: the gang.
            refused: the uids of the pods that its scheduler has refused.
            why: what kept it from starting, a part of a sentence.
            rests: whether it rests, whatever its try has shown.
        """
        if (wait := self.queue.get(job)) is not None:
            for uid in refused:
                for node in wait.offers.get(uid, ()):
                    wait.refuse(uid, node, self._held_on(node, job))
        if seats := self._ledger.drop_plan(job.key.plan):
            self.resting.note_try(job)
        since_s = min((seat.since_s for seat in seats), default=math.inf)
        chips = sum(seat.take.occupied.bit_count() for seat in seats)
        self._obstacles.on_release(job)
        if wait is not None and (wait.may_keep or wait.has_kept):
            self.resting.count_kept(chips * max(0.0, self._ledger.monotonic() - since_s))
            wait.may_keep = wait.has_kept = False
        if wait is not None and wait.limits and not (job.is_mixed or self._may_fit(job, limits=wait.limits)):
            self._rest(job, wait)
        elif rests or (wait is not None and wait.tries >= min(job.size, _ORDERS)):
            self.resting.begin(job)
            self._ledger.promises.drop(job.key.plan)  # also the chips of victims, which it has tried
        wait = self.queue.fail(job)
        wait.nodes, wait.why = frozenset(seat.node for seat in seats), why

    def does_not_fit(self, job: Job) -> None:
        """End the turn of a gang that does not fit: the gang waits for chips like any gang."""
        wait, turn_s = self.queue.get(job), self._ledger.monotonic() - self.queue.began_s
        if wait is None:
            return
        if turn_s < SETTLED_S and self._may_fit(job):
            wait.forget_offers()
        elif not wait.tries or not (self.resting.has_tried(job) or self._may_fit(job)):
            self.queue.leave(job.key, is_vain=True)
        else:
            self._rest(job, wait)
            self.queue.fail(job)

    def _rest(self, job: Job, wait: Wait) -> None:
        """Let a gang rest unless it lacks chips, and try anything again then: the cluster may have changed.

        How many pods fit on a node says nothing of a gang whose pods differ: others of them may fit there.
        """
        if wait.limits and not (job.is_mixed or self._is_clearing(job)) and self._may_fit(job):
            self.resting.begin(job)
        wait.limits.clear()

    def _held_on(self, node: str, job: Job) -> int:
        """How many pods of a gang have Bindings to a node that are held."""
        held = self._ledger.plans.of(job.key.plan).held
        return sum(uid in held for uid in self._ledger.on(node))


def _waits(job: Job, rest: str, wait: Wait | None = None) -> Refusal:
    if wait is not None and wait.tries:
        rest = f"job {job.key} has released its chips, because {wait.why}; {rest}"
    return Refusal(Reason.GANG_STEPPED_BACK, rest)
