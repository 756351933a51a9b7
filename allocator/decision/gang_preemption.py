"""Preemption for gangs: no pod ends unless the whole gang fits then. No I/O.

Victims are chosen once for all pods that the gang still needs (``clearing.py``). A scheduler preempts for one pod at a
time. So the seats are kept as the gang's promise, and each of its pods is answered with one of them: the node and the
victims there.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from allocator.decision.gang_victims import ChangedError, GangVictims, Place, RetryError, VictimPlan
from allocator.decision.occupants import Occupants
from allocator.decision.offered_nodes import OfferedNodes
from allocator.gangs.gangs import Gangs
from allocator.gangs.obstacles import Lacking
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.rules.victims import Occupant, Suggestion
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.rate_limiters import doubled_s
from ascend.reasons import Reason

_AGAIN_S: Final = 5.0
"""How long an answer that preemption does not help is valid for the gang: its scheduler calls for each of its pods."""

_ATTEMPTS: Final = 10
"""How often victims are chosen at once, if the gang or the nodes change meanwhile; then its scheduler calls again."""

_VAIN_S: Final = 60.0
"""How long a gang that has stepped back after others were evicted for it evicts nobody; twice as long each time."""
_LONGEST_VAIN_S: Final = 3600.0


@dataclass(slots=True)
class _Eviction:
    """When others had to end for a gang last.

    Attributes:
        job: the ``first_version`` of the job.
        tries: how often it had stepped back then.
        is_vain: whether it has stepped back since.
        vain: how often it has stepped back after others were evicted for it.
        at_s: when that was, or was found to be in vain.
    """

    job: int
    tries: int
    vain: int
    at_s: float
    is_vain: bool = False


class GangPreemption:
    """Chooses victims for gangs, and remembers what each pod was answered.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        gangs: what is placed, and the policy.
        occupants: reads what pods hold.
        due_s: until when chips are kept whose holders have to end first.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        occupants: Occupants,
        due_s: Callable[[Iterable[str]], float],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._occupants = occupants
        self._due_s = due_s
        self._lock = asyncio.Lock()
        self._offered = OfferedNodes(ledger, gangs.queue)
        self._victims = GangVictims(cluster, ledger, gangs, occupants, self._offered, due_s=due_s)
        self._plans: dict[str, VictimPlan] = {}
        self._useless: dict[str, tuple[tuple[int, frozenset[str]], float, Refusal]] = {}
        self._evictions: dict[str, _Eviction] = {}
        gangs.awaiting_victims = self.awaiting_victims

    def on_filter(self, pod: Pod, job: Job, nodes: Collection[str]) -> None:
        """A pod of a gang that does not fit was filtered: these nodes have passed the scheduler's own filters.

        A gang needs them as well, and its scheduler names only nodes without room when it asks for victims.
        """
        self._offered.on_filter(pod, job, nodes)

    def awaiting_victims(self, job: Job) -> Collection[str]:
        """The uids of the pods of a gang for which others are ending."""
        plan = self._current(job) if job.key.plan in self._plans else None
        return {place.uid for place in plan.places if place.uid and self.remaining(place)} if plan is not None else ()

    async def place(
        self, pod: Pod, request: ChipRequest, job: Job, suggested: Mapping[str, Suggestion]
    ) -> Place | None:
        """The node of a pod on which others have to end first; None if the pod has to wait for its peers.

        Other tasks may run before it returns, so these may have ended.

        Args:
            pod: the pod.
            request: what it requests of a node.
            job: its gang.
            suggested: the nodes on which pods may end.

        Raises:
            Refusal: the gang is incomplete, or would not fit even then.
            RetryError: it is too early to choose victims.
        """
        self._offered.on_suggestion(pod, job, suggested)
        async with self._lock:  # so that the pods of a gang share one plan
            try:
                place = await self._place(pod, request, job, suggested)
                if place is not None:
                    self._ledger.promises.renew(job.key.plan, self._due_s(place.victims))
            finally:
                await self._victims.end_trials()
        return place

    async def _place(
        self, pod: Pod, request: ChipRequest, job: Job, suggested: Mapping[str, Suggestion]
    ) -> Place | None:
        obstacle = self._gangs.obstacles.of(job)
        if obstacle is not None and obstacle.lacking is Lacking.SCHEDULER:
            raise RetryError(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: no other pod ends for it: {obstacle.why}")
        plan = self._current(job)
        if plan is not None and not self._is_refused(pod, job):
            self._note_others(plan, pod, suggested)
            place = self._answer(plan, pod, request, job, suggested)
            if place is not None or any(seat.uid == pod.uid for seat in plan.places):
                return place
            # The other places are for its peers, if they are possible.
            planned = any(seat.member == pod.uid for seat in plan.places) or not job.is_mixed
            if planned and all(seat.uid or seat.node in suggested or not self.remaining(seat) for seat in plan.places):
                return None
        for _ in range(_ATTEMPTS):
            with suppress(ChangedError):
                return await self._place_anew(pod, request, job, suggested, plan.places if plan is not None else ())
        raise RetryError(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: nodes have changed while victims were chosen")

    def _is_refused(self, pod: Pod, job: Job) -> bool:
        """Whether the scheduler refuses a pod its seat beside peers, though nobody has to end there any more."""
        seat, offered = self._ledger.get(pod.uid), self._offered.of(pod, job)
        if seat is None or offered is None or pod.uid in self.awaiting_victims(job):
            return False
        return seat.node not in offered.nodes()

    async def _place_anew(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        suggested: Mapping[str, Suggestion],
        earlier: Collection[Place],
    ) -> Place | None:
        if (incomplete := self._gangs.incomplete(job, pod)) is not None:
            raise incomplete
        useless, state = self._useless.get(job.key.plan), self._state(job)
        is_by_pod = self._offered.is_by_pod(job)  # then each call may tell of other nodes
        if useless is not None and useless[0] == state and self._now_s < useless[1] + _AGAIN_S and not is_by_pod:
            raise Refusal(useless[2].reason, useless[2].message)
        self._require_prospects(job)
        try:
            plan = await self._victims.choose(pod, request, job, suggested, earlier)
        except RetryError:
            raise
        except Refusal as refusal:
            if self._state(job) != state:
                raise ChangedError from refusal
            self._useless = {key: entry for key, entry in self._useless.items() if self._now_s < entry[1] + _AGAIN_S}
            self._useless[job.key.plan] = state, self._now_s, refusal.without_frames()
            raise
        self._plans[job.key.plan] = plan
        self._note_others(plan, pod, suggested)
        self._note_eviction(plan, job)
        return self._answer(plan, pod, request, job, suggested)

    def _note_others(self, plan: VictimPlan, pod: Pod, suggested: Mapping[str, Suggestion]) -> None:
        """Note a scheduler's victims without chips on the places open to a pod."""
        for place in plan.places:
            if place.uid in {"", pod.uid} and place.node in suggested:
                holdings = self._cluster.nodes[place.node].holdings
                place.others = frozenset(uid for uid in suggested[place.node].uids if uid not in holdings)

    def _state(self, job: Job) -> tuple[int, frozenset[str]]:
        return job.version, self._offered.held_uids(job)

    def _require_prospects(self, job: Job) -> None:
        """Accept a gang for which nobody was evicted in vain, or long enough ago.

        Raises:
            RetryError: it has released its chips since: its scheduler does not let it start, even without the victims.
        """
        last = self._evictions.get(job.key.plan)
        if last is None or last.job != job.first_version:
            return
        if not last.is_vain and self._tries(job) > last.tries:
            last.is_vain, last.vain, last.at_s = True, last.vain + 1, self._now_s
        if self._offered.held_uids(job) and self._victims.missing(job) <= 1:
            return  # its scheduler says that the last pod fits beside its peers
        wait_s = doubled_s(_VAIN_S, last.vain, _LONGEST_VAIN_S) if last.is_vain else 0.0
        left_s = last.at_s + wait_s - self._now_s
        if left_s > 0:
            times = count(last.vain, "time")
            sentence = f"it has released its chips after pods were evicted for it, {times}; it waits for {left_s:.0f} s"
            raise RetryError(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: {sentence}")

    def _note_eviction(self, plan: VictimPlan, job: Job) -> None:
        if not any(self.remaining(place) for place in plan.places):
            return
        known, jobs = self._cluster.jobs.by_key, self._evictions
        for key in [key for key in jobs if JobKey.of_plan(key) not in known]:
            del jobs[key]
        last = jobs.get(job.key.plan)
        vain = last.vain if last is not None and last.job == job.first_version else 0
        jobs[job.key.plan] = _Eviction(job.first_version, self._tries(job), vain, self._now_s)

    def _tries(self, job: Job) -> int:
        wait = self._gangs.queue.get(job)
        return wait.tries if wait is not None else 0

    def unanswered_peers(self, job: Job) -> list[Pod]:
        """The pods of a gang that have to call for the other places of a new plan; returned once for each plan.

        They may have been refused before the plan was possible, and their scheduler sees nothing that has changed.
        """
        plan = self._current(job)
        if plan is None or plan.announced:
            return []
        plan.announced = True
        is_open = any(not place.uid and self.remaining(place) for place in plan.places)
        answered = {place.uid for place in plan.places}
        return [pod for _, pod in job.by_rank() if pod.waits_for_chips and pod.uid not in answered] if is_open else []

    def remaining(self, place: Place) -> list[Occupant]:
        """The victims of a place that have not ended yet."""
        record = self._cluster.nodes.get(place.node)
        if record is None:
            return []
        others = self._occupants.without_chips(filter(self._occupants.exists, sorted(place.others)))
        return others + [
            self._occupants.of(pod, record, holding)
            for uid in sorted(place.victims)
            if (holding := record.holdings.get(uid)) is not None and (pod := self._cluster.pods.get(uid)) is not None
        ]

    @property
    def _now_s(self) -> float:
        return self._ledger.promises.monotonic()

    def _current(self, job: Job) -> VictimPlan | None:
        """The plan of a gang, as long as its seats are kept for it."""
        promises = self._ledger.promises
        for name, plan in tuple(self._plans.items()):
            kept = promises.get(name)
            if kept is None or kept.chips is not plan.promise.chips:
                del self._plans[name]
        return self._plans.get(job.key.plan)

    def _answer(
        self, plan: VictimPlan, pod: Pod, request: ChipRequest, job: Job, suggested: Mapping[str, Suggestion]
    ) -> Place | None:
        """The pod's place, or one of a peer with an equal request that was not answered yet."""
        own = next((place for place in plan.places if place.uid == pod.uid), None)
        if own is not None:
            if not self.remaining(own):
                return None  # its node is free for it
            if own.node in suggested:
                return own
            own.uid = ""
        for place in sorted(plan.places, key=lambda place: place.member != pod.uid):
            is_possible = place.member == pod.uid or (place.request == request and not job.is_mixed)
            if is_possible and not place.uid and place.node in suggested and self.remaining(place):
                place.uid = pod.uid
                return place
        return None
