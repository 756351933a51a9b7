"""Gangs: the pods of a job get their places together or not at all, and then one by one, in whatever order they ask.

Until as many pods of the job are there as its minimum says, each of them is refused. The first that asks then makes the
plan for all of them: the policy seats every pod that waits (or, where that is too much, as many as the minimum needs),
and the ledger reserves all seats in the same step. Every later question finds its seat reserved. A seat whose pod is
deleted waits for the pod's successor. Where a place is no good any more before anybody was bound, the whole plan is
given up, whoever asks next: a gang must not begin of which a pod has nowhere to go.

Two gangs can't block each other: a gang holds nothing while it waits for chips (no hold and wait), because a plan is
made and reserved without an await in between, or not at all. What is reserved but not used ends as a whole: after the
time to live, or when the job is gone. Only pods that are bound hold chips without end, and those run.

A pod that comes later (a successor of one that has ended, or more than the minimum) joins its peers: what the gang
still lacks is planned, on servers of the same product; those who have a place keep it. So it is after a restart too,
when the plan is forgotten and only the bound pods are left of it; `resume` then plans the rest before anybody else is
served.
"""

from collections.abc import Callable, Collection
from contextlib import nullcontext

from allocator.gangs.packing import pack
from allocator.gangs.planning import Planner, Question
from allocator.gangs.policy import Policy
from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.remembered import Remembered
from allocator.state.reservation import Reservation, Seat, Stage
from ascend.errors import Refusal
from ascend.kube.objects import Pod

INCOMPLETE = "GangIncomplete"
NO_GROUP = "GroupMissing"
NEVER = frozenset({INCOMPLETE, NO_GROUP})
"""Reasons that no other pod's end changes."""


class Gangs:
    """Plans jobs and hands out the seats.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        ttl_s: how long a plan lives after one of its pods was bound last.
        ask_of: what a pod asks of a node.
        policy: where the pods of a job go.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        *,
        ttl_s: float,
        ask_of: Callable[[Pod], Ask],
        policy: Policy = pack,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._ttl_s = ttl_s
        self._ask_of = ask_of
        self._planner = Planner(cluster, ledger, ask_of, policy)
        self._trials: Remembered[Question, bool] = Remembered()
        self._tidied = 0
        # Plans with a place that is no good; they are given up, too, where those who are bound go meanwhile. With each,
        # the uid of one of these, so that nobody has to look for one again and again.
        self._failing: dict[str, str] = {}

    def place(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Reservation:
        """The pod's seat, with the plan of its whole job made first where there is none; right after ``tidy``.

        Args:
            pod: a pod that is not bound, nor about to be.
            ask: what it asks of a node.
            job: its job, a gang.
            candidates: the only nodes it may be on. Where they are several, its peers are looked for among them too,
                since most pods of a job are made from one template; a peer with another node selector goes where that
                says. A single name says where this pod goes and no more.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        held = self._ledger.get(pod.uid)
        if held is not None and not self._is_good(held, ask, job):
            self._ledger.release(pod.uid)
        found = self._find(pod, ask, job, candidates)
        if isinstance(found, Reservation):
            return self._sit(pod, found)
        self._ledger.reserve_plan(job.key.plan, found, ttl_s=self._ttl_s)
        self._tidied = self._cluster.changes.revision  # places that were found just now are good
        made = self._ledger.get(pod.uid)
        if made is None or pod.uid not in {seat.uid for seat in found}:
            raise _left_out(pod, job)
        return made

    def preview(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> str:
        """The node the pod would be placed on; reserves nothing.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        node = self._seats(pod, ask, job, candidates).get(pod.uid)
        if node is None:
            raise _left_out(pod, job)
        return node

    def may_fit(self, pod: Pod, job: Job) -> bool:
        """Whether asking again makes sense; found out anew only when something has changed since the last time."""
        held = self._ledger.get(pod.uid)
        if held is not None and held.stage is Stage.PLANNED and self._lack(job, pod) is None:
            return True
        try:
            ask = self._ask_of(pod)
        except Refusal:
            return False
        fits, question = self._trials.under(self._planner.state), self._planner.question(pod, ask, job, None)
        if question not in fits:
            try:
                # Where it is one too many itself, its peers get their places when it asks.
                fits[question] = bool(self._seats(pod, ask, job, None))
            except Refusal:
                fits[question] = False
        return fits[question]

    def tidy(self) -> None:
        """Give up the plans of gangs nobody of which is bound where a place is no good any more, or nobody sits on any.

        Only nodes that have changed since the last time are looked at.
        """
        changes = self._cluster.changes
        if changes.revision == self._tidied:
            return
        seen, self._tidied = self._tidied, changes.revision
        if not self._ledger.has_plans:
            self._failing.clear()
            return
        names = changes.since(seen)
        for name in self._cluster.nodes if names is None else names:
            for uid in tuple(self._ledger.on(name)):
                seat = self._ledger.get(uid)
                if seat is not None and seat.stage is Stage.PLANNED and self._is_useless(seat):
                    self._failing.setdefault(seat.plan, "")
        for plan, uid in tuple(self._failing.items()):
            job = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            begun_by = self._one_on_its_way(job, uid) if job is not None else None
            if begun_by is None:
                self._ledger.drop_plan(plan)
            if begun_by is not None and self._ledger.has_seats(plan):
                self._failing[plan] = begun_by.uid
            else:
                del self._failing[plan]

    def resume(self) -> list[Job]:
        """Plan the rest of every gang of which some pods are bound and some wait; returns those that don't fit."""
        self.tidy()
        stuck = []
        for job in self._cluster.jobs:
            waiting = [pod for pod in job.pods.values() if pod.waits_for_chips]
            if not job.is_gang or not waiting or len(waiting) == job.size:
                continue
            try:
                self._resume(job, sorted(waiting, key=lambda pod: (job.rank_of(pod), pod.name)))
            except Refusal:
                stuck.append(job)
        return stuck

    def _resume(self, job: Job, waiting: list[Pod]) -> None:
        for pod in waiting:
            if self._ledger.get(pod.uid) is not None:
                continue
            try:
                ask = self._ask_of(pod)
            except Refusal:
                continue  # what is wrong with one keeps no other from its place
            self.place(pod, ask, job, None)
            return

    def _seats(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> dict[str, str]:
        """The nodes of those who would get a place if the pod was asked for, by uid; reserves nothing.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        held = self._ledger.get(pod.uid)
        bad = held is not None and not self._is_good(held, ask, job)
        with self._ledger.suspended(pod.uid) if bad else nullcontext():
            found = self._find(pod, ask, job, candidates)
        return {pod.uid: found.node} if isinstance(found, Reservation) else {seat.uid: seat.node for seat in found}

    def _find(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Reservation | list[Seat]:
        """The seat there is for a pod, or else the new ones of it and its peers; changes nothing.

        Raises:
            Refusal: the gang is not complete, or does not fit.
        """
        seat, lack = self._find_seat(pod, ask, job, candidates), self._lack(job, pod)
        # A plan was made for all who were needed then; since, some may have gone, or the minimum may be another one.
        if lack is not None and (seat is None or not self._has_begun(job)):
            raise lack
        return self._planner.plan(pod, ask, job, candidates) if seat is None else seat

    def _lack(self, job: Job, pod: Pod) -> Refusal | None:
        """What a gang lacks that has nothing to do with nodes; None where it is complete."""
        if self._cluster.jobs.lacks_group(job):
            return Refusal(NO_GROUP, f"pod {pod.key} is of {job.kind} {job.key}, which does not exist (yet)")
        # Its scheduler may know it before we do; one that we know to have failed, or to be deleted, is none of them.
        present = job.present + (pod.uid not in self._cluster.pods)
        if present >= job.min_available:
            return None
        missing = job.min_available - present
        return Refusal(
            INCOMPLETE,
            f"job {job.key}: {job.min_available} pods must be placed together, {present} are there, {missing} missing",
        )

    def _find_seat(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Reservation | None:
        """A seat of the plan there is that suits the pod now: its own, an empty one, or a peer's to change with."""
        held = self._ledger.get(pod.uid)
        if held is not None and (candidates is None or held.node in candidates):
            return held
        seats, selector = self._ledger.seats(job.key.plan), pod.spec.node_selector
        if seats and candidates is not None:
            candidates = frozenset(candidates)  # many seats are looked for among them
        elif seats and selector:
            candidates = self._cluster.pools.selected(selector)
        for seat in seats:
            if candidates is not None and seat.node not in candidates:
                continue
            free = seat.is_empty or (held is not None and self._may_change(pod, ask, seat.uid))
            if free and self._cluster.suits(seat, ask):
                return seat
        return None

    def _may_change(self, pod: Pod, ask: Ask, uid: str) -> bool:
        """Whether a peer may have the pod's seat for its own: equal ones are interchangeable, and will be told anew."""
        peer = self._cluster.pods.get(uid)
        try:
            return peer is not None and peer.spec.node_selector == pod.spec.node_selector and self._ask_of(peer) == ask
        except Refusal:
            return False

    def _sit(self, pod: Pod, seat: Reservation) -> Reservation:
        if seat.uid == pod.uid:
            return (self._ledger.advance(pod.uid, seat.stage) or seat) if seat.stage is Stage.TENTATIVE else seat
        if self._ledger.get(pod.uid) is None:
            return self._ledger.hand(seat.uid, pod.uid, pod.key)
        self._ledger.swap(pod.uid, seat.uid)
        return self._ledger.get(pod.uid) or seat

    def _is_good(self, held: Reservation, ask: Ask, job: Job) -> bool:
        """Whether what is kept for a pod is a place with its gang, and would still do."""
        return held.plan == job.key.plan and self._cluster.suits(held, ask)

    def _is_useless(self, seat: Reservation) -> bool:
        """Whether the pod of a seat could not take it now, or nobody sits on any of its plan."""
        if self._ledger.is_deserted(seat.plan):
            return True
        pod = self._cluster.pods.get(seat.uid)
        try:
            ask = self._ask_of(pod) if pod is not None else Ask(len(seat.chips))
        except Refusal:
            return False  # it hears of that when it asks
        return not self._cluster.suits(seat, ask)

    def _has_begun(self, job: Job) -> bool:
        return self._one_on_its_way(job) is not None

    def _one_on_its_way(self, job: Job, last: str = "") -> Pod | None:
        """A pod of a job that is bound, or about to be; the one that was found last is looked at first, by its uid."""
        found = job.pods.get(last)
        if found is not None and self._is_on_its_way(found):
            return found
        return next(filter(self._is_on_its_way, job.newest), None)  # who is bound has changed

    def _is_on_its_way(self, pod: Pod) -> bool:
        """Whether a pod is bound, or about to be, or somebody was told its chips."""
        held = self._ledger.get(pod.uid)
        waits = pod.waits_for_chips and (held is None or held.stage is Stage.PLANNED)
        return pod.asks_for_chips and not waits


def _left_out(pod: Pod, job: Job) -> Refusal:
    return Refusal(
        "GangDoesNotFit",
        f"job {job.key}: its first {job.min_available} pods are placed, pod {pod.key} does not fit beside them",
    )
