"""Plans gangs in their turn: what a gang has to wait for, and what is learned of one that has stepped back."""

from collections.abc import Collection, Mapping

from allocator.gangs.obstacles import Obstacles
from allocator.gangs.planning import Planner
from allocator.gangs.progress import Progress
from allocator.gangs.turns import Setback, Turns
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Attempts:
    """Follows the attempts of gangs to start.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        progress: says whether a gang has started.
        planner: finds seats.
        obstacles: what gangs lack besides chips.

    Attributes:
        turns: the gangs that have stepped back.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, progress: Progress, planner: Planner, obstacles: Obstacles
    ) -> None:
        self._obstacles = obstacles
        self.turns = Turns(cluster.jobs.by_key, ledger, obstacles)
        self._cluster = cluster
        self._ledger = ledger
        self._progress = progress
        self._planner = planner

    def plan(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        """Seats for a pod and all its peers that need one; reserves nothing.

        Raises:
            Refusal: the gang does not fit, has to wait for others, or its pods have to be filtered first.
        """
        if (wait := self.obstacle(pod, job)) is not None:
            raise wait
        setback = self.turns.get(job)
        if setback is None:
            return self._plan_first(pod, request, job, candidates)
        lacking = self._planner.lacks_offers(pod, request, job, setback)
        if lacking > 0:
            pods = count(lacking, "more of its pods has", "more of its pods have")
            raise _waits(job, f"{pods} to be filtered before they are planned again", setback)
        return self._planner.plan(pod, request, job, candidates, setback)

    def may_be_planned(self, pod: Pod, request: ChipRequest, job: Job) -> bool:
        """Whether a pod would get a seat now, or has to be filtered first for that."""
        if self.obstacle(pod, job) is not None:
            return False
        setback = self.turns.get(job)
        if setback is None:
            return self._planner.fits(pod, request, job)
        # Its scheduler has to offer each pod once; when that is done, all are planned.
        return pod.uid not in setback.offers or self._planner.lacks_offers(pod, request, job, setback) <= 0

    def left_to_others(self, job: Job) -> dict[JobKey, frozenset[str]]:
        """The nodes that a gang that has not tried yet leaves to those that come before it, by their jobs."""
        preceding = self.turns.preceding(job)
        if not preceding or self._progress.find_started(job) is not None:
            return {}
        promise = self._ledger.promises.get(job.key.plan)
        if promise is not None and not promise.drains:
            return {}  # others end for it on its nodes
        return {key: self._nodes(key.plan) | setback.nodes for key, setback in preceding}

    def _plan_first(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        """The plan of a gang that has not tried yet, on nodes that it need not leave to others."""
        left = self.left_to_others(job)
        avoided = frozenset[str]().union(*left.values())
        try:
            return self._planner.plan(pod, request, job, candidates, avoided=avoided)
        except Refusal:
            if left:
                raise self._behind(pod, request, job, candidates, left) from None
            if candidates is None or not job.is_mixed:
                raise
        self._planner.plan(pod, request, job, None)  # it may not fit at all
        rest = f"its pods differ, and do not all fit where pod {pod.key} may be; each of them has to be filtered"
        raise _waits(job, f"job {job.key}: {rest}")

    def _behind(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        candidates: Collection[str] | None,
        left: Mapping[JobKey, Collection[str]],
    ) -> Refusal:
        """Why a gang waits that fits only on nodes that it leaves to others.

        Raises:
            Refusal: it does not fit there either.
        """
        drained = [each.owner for each in self._ledger.promises if each.drains]
        with self._ledger.promises.lifted(drained):
            seats = self._planner.plan(pod, request, job, candidates)
        ahead = next(
            (key for key, nodes in left.items() if any(each.node in nodes for each in seats)), next(iter(left))
        )
        return _waits(job, f"pod {pod.key} waits for job {ahead}, which tries before it on the nodes left")

    def _nodes(self, plan: str) -> frozenset[str]:
        held = (self._ledger.get(uid) for uid in self._ledger.held(plan))
        return frozenset(each.node for each in (*self._ledger.seats(plan), *held) if each is not None)

    def obstacle(self, pod: Pod, job: Job) -> Refusal | None:
        """Why a gang has to wait for another one, or for its scheduler; None if it may be planned."""
        refused, ahead = self._obstacles.refusal(job), self.turns.ahead_of(job)
        if (refused is None and ahead is None) or self._progress.find_started(job) is not None:
            return None
        setback = self.turns.get(job)
        if refused is not None:
            return _waits(job, f"job {job.key} can't start: {refused}", setback)
        return _waits(job, f"pod {pod.key} waits for job {ahead}, which tries before it", setback)

    def note_offer(self, pod: Pod, job: Job, candidates: Collection[str] | None) -> None:
        """Record on which nodes its scheduler offers a pod of a gang that has stepped back, and where it does not."""
        setback = self.turns.get(job)
        if setback is None or self.turns.ahead_of(job) is not None:
            return
        nominated = pod.status.nominated_node_name
        if candidates is not None and set(candidates) == {nominated}:
            promise = self._ledger.promises.get(job.key.plan)
            if promise is None or promise.drains or nominated not in promise.chips:
                return  # its scheduler filters the nominated node first, which says nothing about the others
        if self._progress.find_started(job) is not None:
            self.turns.leave(job.key)
            return
        offered = self._cluster.index.entries if candidates is None else candidates
        held = self._ledger.get(pod.uid)
        if held is not None and held.node not in offered:
            setback.refuse(pod.uid, held.node, self._held_on(held.node, job))
        if pod.uid not in setback.offers:
            self.turns.extend()  # many pods take long
        setback.offer(pod.uid, offered)

    def step_back(self, job: Job, refused: Collection[str], why: str) -> None:
        """Release all seats of a gang, and let it try again in its turn.

        Args:
            job: the gang.
            refused: the uids of the pods that its scheduler has refused.
            why: what kept it from starting, a part of a sentence.
        """
        setback = self.turns.get(job)
        if setback is not None:
            for uid in refused:
                for node in setback.offers.get(uid, ()):
                    setback.refuse(uid, node, self._held_on(node, job))
        nodes = frozenset(each.node for each in self._ledger.drop_plan(job.key.plan))
        self._obstacles.released(job)
        self.turns.step_back(job, nodes, why)

    def _held_on(self, node: str, job: Job) -> list[str]:
        held = self._ledger.held(job.key.plan)
        return [uid for uid in self._ledger.on(node) if uid in held]


def _waits(job: Job, rest: str, setback: Setback | None = None) -> Refusal:
    if setback is not None and setback.tries:
        rest = f"job {job.key} has released its chips, because {setback.why}; {rest}"
    return Refusal(Reason.GANG_STEPPED_BACK, rest)
