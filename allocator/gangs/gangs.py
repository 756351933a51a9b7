"""Gangs: the pods of a job are placed together or not at all.

Until as many pods of the job exist as its minimum requires, each of them is refused. The first pod that is filtered
then triggers the plan for all of them: the policy finds a seat for every pod that waits (or, if not all fit, for as
many as the minimum needs), and the ledger reserves all seats in the same step. Each later pod finds its seat reserved.
The seat of a pod that is deleted waits for the pod's successor. If a seat becomes unusable before any pod of the gang
was bound, the whole plan is dropped, whichever pod comes next: a gang must not start with a pod that can't be placed.
A taint makes a seat unusable, too, if it comes after the pod's scheduler has accepted the node.

A plan knows chips, a scheduler knows everything else: CPU, affinity, host ports, taints. So the Bindings of a gang are
held until each pod that its minimum needs has passed its scheduler's filters (``allocator/binding/barrier.py``).

Two gangs can't deadlock. A gang that waits for chips holds none, because a plan is made and reserved without an await
in between, or not at all; those of large gangs are made one at a time (``gradual.py``). A gang some of whose pods are
refused by their scheduler releases all its seats, and tries again in its turn (``start_queue.py``). Seats
that are reserved but not used end as a whole: after their time to live, or with the job. Only bound pods hold chips
without a limit, and those run.

A pod that comes later (the successor of one that has ended, or one beyond the minimum) joins its peers: only the
missing seats are planned, and pods that have a seat keep it. The same happens after a restart, when plans are forgotten
and only the bound pods are known; `resuming.py` then plans the rest before any call is answered.
"""

from collections.abc import Callable, Collection, Iterable

from allocator.gangs.attempts import Attempts
from allocator.gangs.obstacles import Obstacles
from allocator.gangs.planning import Planner
from allocator.gangs.policy import Policy
from allocator.gangs.progress import WAITING, Progress
from allocator.rules.job import JobKey
from allocator.rules.node_constraints import untolerated
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Reservation, Seat, Stage
from allocator.state.view import AS_IT_IS, Without
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Gangs:
    """Plans gangs and assigns their seats.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        ttl_s: how long a plan lives after one of its pods was bound.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        policy_of: where the pods of a pod's job are placed; raises a Refusal if what the job asks for is invalid.
        now_s: the wall clock, Unix seconds.

    Attributes:
        obstacles: what gangs lack besides chips.
        queue: the gangs that have stepped back, and those that wait for them.
        resting: the gangs that have tried in vain, as far as anything can be known only by trying.
        awaiting_victims: returns the uids of the pods of a gang for which other pods are ending.
        planned: called with the uids of pods after chips were reserved for them in a plan.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        *,
        ttl_s: float,
        request_of: Callable[[Pod], ChipRequest],
        policy_of: Callable[[Pod], Policy],
        now_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._progress = Progress(cluster, ledger)
        self.request_of = request_of
        self.planner = Planner(cluster, ledger, request_of, policy_of, now_s)
        self.incomplete, self.lacks = self._progress.incomplete, self._progress.lacks
        self.find_started, self.holds = self._progress.find_started, self._progress.holds
        self.may_start = self._progress.may_start
        self.awaiting_victims: Callable[[Job], Collection[str]] = lambda _job: ()
        self.planned: Callable[[Iterable[str]], None] = lambda _uids: None
        self.obstacles = Obstacles(cluster, ledger, self._awaits_victims)
        self._attempts = Attempts(cluster, ledger, self._progress, self.planner, self.obstacles)
        self.queue, self.resting = self._attempts.queue, self._attempts.resting
        self.pass_on, self.left_to_others = self._attempts.pass_on, self._attempts.left_to_others
        self.step_back = self._attempts.step_back
        self.make_room, self.make_room_for_waiting = self._attempts.make_room, self._attempts.make_room_for_waiting
        self.yields = self._attempts.yields
        self.gang_request = self.planner.gang_request
        self._pruned = self._losses = 0
        # Plans with an unusable seat whose gang has started: they are dropped if its bound pods disappear. For each,
        # the uid of one of these pods, so that it need not be searched for every time.
        self._failing: dict[str, str] = {}

    def place(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> Reservation:
        """The pod's seat; without a plan, its whole job is planned and reserved. Call right after ``prune``.

        Args:
            pod: a pod that is neither bound nor has a Binding in flight.
            request: what it requests of a node.
            job: its job, a gang.
            candidates: names of the only nodes it may be on. If they are several, its peers are placed among them too,
                since most pods of a job are made from one template; a peer with another node selector is placed by
                that. A single name applies to this pod alone.

        Raises:
            Refusal: the gang is incomplete, or does not fit.
        """
        if (without := self._without_invalid(pod, request, job)).pods:
            self._ledger.release(pod.uid)
        self._attempts.note_offer(pod, job, candidates)
        try:
            found = self._find_making_room(pod, request, job, candidates, without)
        except Refusal as refusal:
            if refusal.reason is Reason.GANG_DOES_NOT_FIT:
                if (plan := self._ledger.plans.get(job.key.plan)) is not None:
                    plan.refused.add(pod.uid)
                if not self._ledger.plans.of(job.key.plan).held:
                    self._attempts.does_not_fit(job)
            elif refusal.reason is Reason.GANG_STEPPED_BACK and self.obstacles.refusal(job) is None:
                is_new = self.queue.get(job) is None
                self.queue.join(job)
                if is_new and self.queue.first is job:
                    return self.place(pod, request, job, candidates)
            raise
        if isinstance(found, Reservation):
            return self._take_seat(pod, found)
        self.reserve(job, found)
        made = self._ledger.get(pod.uid)
        if made is None or pod.uid not in {seat.uid for seat in found}:
            raise _left_out(pod, job)
        return made

    def reserve(self, job: Job, seats: Collection[Seat]) -> None:
        """Reserve seats that were found just now. Call it right after ``prune``."""
        self._ledger.reserve_plan(job.key.plan, seats, ttl_s=self._ttl_s)
        self._pruned = self._cluster.changes.revision  # they are usable
        self.planned(seat.uid for seat in seats)

    def place_on(self, pod: Pod, request: ChipRequest, job: Job, node: str) -> Reservation:
        """A seat for a pod on the node to which its scheduler binds it; no seat is planned for its peers.

        Args:
            pod: a pod that is neither bound nor has a Binding in flight.
            request: what it requests of a node.
            job: its job, a gang.
            node: the node.

        Raises:
            Refusal: the gang is incomplete, or the pod does not fit there.
        """
        if self._without_invalid(pod, request, job).pods:
            self._ledger.release(pod.uid)
        seat, lacking = self._find_seat(pod, request, job, (node,)), self.lacks(job, pod)
        if lacking is not None:
            raise lacking
        if seat is not None:
            return self._take_seat(pod, seat)
        seats = self.planner.plan_alone(pod, request, job, node, self.planner.usable(pod, job))
        self._ledger.reserve_plan(job.key.plan, seats, ttl_s=self._ttl_s)
        made = self._ledger.get(pod.uid)
        if made is None:
            raise _left_out(pod, job)
        return made

    def vacant_on(self, pod: Pod, request: ChipRequest, job: Job, node: str) -> Reservation | None:
        """The seat on a node for the successor of a pod, if this pod would get that seat."""
        seat = self._find_seat(pod, request, job, (node,))
        return seat if seat is not None and seat.is_empty else None

    def free_seat(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> None:
        """Release the seat that a pod placed alone would get of a plan that was made before the pods of its job."""
        if job.key.plan in self._ledger.plans and (seat := self._find_seat(pod, request, job, candidates)) is not None:
            self._ledger.release(seat.uid)

    def require_rest(self, job: Job) -> None:
        """Accept a complete gang whose pods without a seat fit all at once; reserves nothing.

        Raises:
            Refusal: it is incomplete, or they don't fit.
        """
        for pod in job.pods.values():
            if (incomplete := self._progress.incomplete(job, pod)) is not None:
                raise incomplete
            if pod.waits_for_chips and self._ledger.get(pod.uid) is None:
                self.planner.plan(pod, self.request_of(pod), job, None)
                return

    def release_unused(self, job: Job, refused: Pod | None = None) -> None:
        """Release the seats of a gang without a held Binding; after its start, only the seat of ``refused``."""
        if self._progress.find_started(job) is None:
            if not self._ledger.plans.of(job.key.plan).held:
                self._ledger.drop_plan(job.key.plan)
        elif refused and (seat := self._ledger.get(refused.uid)) and seat.stage is Stage.PLANNED:
            self._ledger.release(refused.uid)

    def _awaits_victims(self, pod: Pod, job: Job) -> bool:
        return pod.uid in self.awaiting_victims(job)

    def release_without_prospects(self) -> None:
        """Release the seats of gangs of which no Binding is held, and that their schedulers don't let start."""
        for plan in tuple(self._ledger.plans):
            job = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            if job is not None and self.obstacles.refusal(job) is not None:
                self.release_unused(job)

    def preview(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without = AS_IT_IS
    ) -> str:
        """The node on which the pod would be placed; reserves nothing.

        Raises:
            Refusal: the gang is incomplete, or does not fit.
        """
        found = self._find(pod, request, job, candidates, self._without_invalid(pod, request, job, without))
        if isinstance(found, Reservation):
            return found.node
        node = next((seat.node for seat in found if seat.uid == pod.uid), None)
        if node is None:
            raise _left_out(pod, job)
        return node

    def may_fit(self, pod: Pod, job: Job) -> bool:
        """Whether a refused pod, or a peer of it, could get a seat now; planned only if something has changed."""
        held, incomplete = self._ledger.get(pod.uid), self._progress.incomplete(job, pod)
        if held is not None and held.stage is Stage.PLANNED and incomplete is None:
            return True
        try:
            request = self.request_of(pod)
        except Refusal:
            return False
        without = self._without_invalid(pod, request, job)
        seat = self._find_seat(pod, request, job, None, without)
        if incomplete is not None and (seat is None or self._progress.find_started(job) is None):
            return False
        return seat is not None or self._attempts.may_be_planned(pod, request, job, without)

    def prune(self) -> None:
        """Drop unstarted plans with an unusable seat or without their pod group, and plans whose pods are all gone.

        Only nodes that have changed since the last call are examined.
        """
        changes, losses = self._cluster.changes, self._cluster.jobs.losses
        if losses != self._losses:
            self._losses = losses
            self._drop_groupless()
        if changes.revision == self._pruned:
            return
        seen, self._pruned = self._pruned, changes.revision
        if not self._ledger.plans:
            self._failing.clear()
            return
        names = changes.since(seen)
        for name in self._cluster.nodes if names is None else names:
            for uid in tuple(self._ledger.on(name)):
                seat = self._ledger.get(uid)
                if seat is not None and seat.stage in WAITING and self._is_unusable(seat):
                    self._failing.setdefault(seat.plan, "")
        for plan, uid in tuple(self._failing.items()):
            job = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            started = self._progress.find_started(job, uid) if job is not None else None
            if started is None:
                self._ledger.drop_plan(plan)
            if started is not None and (self._ledger.seats(plan) or self._ledger.plans.of(plan).held):
                self._failing[plan] = started.uid
            else:
                del self._failing[plan]

    def _drop_groupless(self) -> None:
        """Drop unstarted plans whose pod group was deleted: how many pods start together is unknown."""
        for plan in tuple(self._ledger.plans):
            job = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            if job is not None and self._cluster.jobs.lacks_group(job) and self._progress.find_started(job) is None:
                self._ledger.drop_plan(plan)

    def _find_making_room(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without
    ) -> Reservation | list[Seat]:
        """Do the same as ``_find``; without a seat, let a yielding gang release chips for the pod."""
        try:
            return self._find(pod, request, job, candidates, without)
        except Refusal:
            if self._ledger.get(pod.uid) is not None or not self.make_room(pod, request, job, candidates):
                raise
        self._attempts.note_offer(pod, job, candidates)  # it may be the turn of its gang now
        return self._find(pod, request, job, candidates, without)

    def _find(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without
    ) -> Reservation | list[Seat]:
        """The existing seat for a pod, or else new ones for it and its peers; changes nothing.

        Raises:
            Refusal: the gang is incomplete, or does not fit.
        """
        seat, incomplete = self._find_seat(pod, request, job, candidates, without), self._progress.incomplete(job, pod)
        # After the plan was made pods may have been deleted, or the minimum raised.
        if incomplete is not None and (seat is None or self._progress.find_started(job) is None):
            raise incomplete
        if seat is not None:
            return seat
        return self._attempts.plan(pod, request, job, candidates, without)

    def _find_seat(
        self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None, without: Without = AS_IT_IS
    ) -> Reservation | None:
        """A seat of the existing plan that suits the pod now: its own, a vacated one, or one to swap with a peer."""
        own = self._ledger.get(pod.uid) if pod.uid not in without.pods else None
        if own is not None and (candidates is None or own.node in candidates):
            return own
        seats = self._ledger.seats(job.key.plan)
        if seats:  # names are looked up once for each seat
            candidates = (
                self._cluster.labels.only(pod.spec.node_requirements) if candidates is None else frozenset(candidates)
            )
        for seat in seats:
            if candidates is not None and seat.node not in candidates:
                continue
            if seat.is_empty:
                available = seat.part is None or seat.part.rank == job.rank_of(pod)
            else:
                available = own is not None and _is_in_one_block(own, seat) and self._may_swap(pod, request, seat.uid)
            if available and self._cluster.suits(seat, request):
                return seat
        return None

    def _may_swap(self, pod: Pod, request: ChipRequest, uid: str) -> bool:
        """Whether a peer can take the pod's seat for its own: pods with equal requests are interchangeable."""
        peer = self._cluster.pods.get(uid)
        try:
            return (
                peer is not None
                and peer.spec.node_requirements == pod.spec.node_requirements
                and self.request_of(peer) == request
            )
        except Refusal:
            return False

    def _take_seat(self, pod: Pod, seat: Reservation) -> Reservation:
        if seat.uid == pod.uid:
            return (self._ledger.advance(pod.uid, seat.stage) or seat) if seat.stage is Stage.RESERVED else seat
        if self._ledger.get(pod.uid) is None:
            return self._ledger.hand(seat.uid, pod.uid, pod.key)
        self._ledger.swap(pod.uid, seat.uid)
        return self._ledger.get(pod.uid) or seat

    def _without_invalid(self, pod: Pod, request: ChipRequest, job: Job, without: Without = AS_IT_IS) -> Without:
        """Without what is reserved for a pod, too, unless that is a seat of its gang that still suits it."""
        held = self._ledger.get(pod.uid)
        is_valid = held is None or (held.plan == job.key.plan and self._cluster.suits(held, request))
        return without if is_valid else without._replace(pods=(pod.uid, *without.pods))

    def _is_unusable(self, seat: Reservation) -> bool:
        """Whether the pod of a seat could not take it now, or all pods of its plan are gone."""
        if self._ledger.plans.of(seat.plan).is_deserted:
            return True
        pod = self._cluster.pods.get(seat.uid)
        try:
            request = self.request_of(pod) if pod is not None else ChipRequest.of(seat.take)
        except Refusal:
            return False  # refused when the pod is scheduled
        if pod is not None and seat.stage is Stage.HELD and self._is_repelled(pod, seat.node):
            return True
        return not self._cluster.suits(seat, request)

    def _is_repelled(self, pod: Pod, node: str) -> bool:
        """Whether a node was tainted after the scheduler of a pod had accepted it there."""
        record = self._cluster.nodes.get(node)
        taints = record.node.spec.taints if record is not None and record.node is not None else ()
        return bool(taints) and untolerated(taints, pod.spec.tolerations) is not None


def _is_in_one_block(one: Reservation, other: Reservation) -> bool:
    """Whether two seats may be exchanged as far as their blocks matter."""
    return one.part is None or other.part is None or one.part.block == other.part.block


def _left_out(pod: Pod, job: Job) -> Refusal:
    return Refusal(
        Reason.GANG_DOES_NOT_FIT,
        f"job {job.key}: its first {count(job.min_available, 'pod')} fit, pod {pod.key} does not fit beside them",
    )
