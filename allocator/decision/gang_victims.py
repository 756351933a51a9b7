"""Chooses the seats of a gang, and the pods that have to end for them. No I/O.

Victims end only on nodes that the scheduler of the gang's pods has offered (``offered_nodes.py``). If it matters for
which pod, each pod that has to be placed must have been tried by its scheduler first, and gets a seat where it may be.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from allocator.decision.clearing import Fitting, clear
from allocator.decision.occupants import Occupants
from allocator.decision.offered_nodes import OfferedNodes
from allocator.decision.trial import Trial
from allocator.gangs.gangs import Gangs
from allocator.gangs.policy import GangRequest, Member
from allocator.rules.request import ChipRequest
from allocator.rules.vacancy import Vacancy
from allocator.rules.victims import NEVER, Suggestion, least_important_first
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.promises import Promise
from ascend.chips import ChipSet
from ascend.errors import Refusal
from ascend.grammar import count
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from ascend.turn import Steps


class RetryError(Refusal):
    """No victims can be chosen yet; the pod should be scheduled again soon, whatever happens in the cluster."""


class ChangedError(Exception):
    """The gang or the nodes have changed while victims were chosen."""


@dataclass(slots=True)
class Place:
    """A seat of the plan, and what has to end for it.

    Attributes:
        node: the node.
        request: what the pod requests that it is for.
        victims: the uids of the pods on the node that have to end.
        member: the uid of the pod for which it was planned.
        uid: the uid of the pod that was answered with it; empty before.
        others: the uids of the pods without chips on the node that have to end for what its scheduler counts.
    """

    node: str
    request: ChipRequest
    victims: frozenset[str]
    member: str
    uid: str = ""
    others: frozenset[str] = frozenset()


@dataclass(slots=True)
class VictimPlan:
    """The seats of a gang that preempts.

    Attributes:
        promise: what is kept for it.
        places: its seats.
        announced: whether the other pods were scheduled again for it.
    """

    promise: Promise
    places: list[Place]
    announced: bool = False


class GangVictims:
    """Chooses seats and victims, and keeps the seats for the gang.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations and promises.
        gangs: what is placed, and the policy.
        occupants: reads what pods hold.
        offered: where each pod may be.
        due_s: until when chips are kept whose holders have to end first.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        gangs: Gangs,
        occupants: Occupants,
        offered: OfferedNodes,
        *,
        due_s: Callable[[Iterable[str]], float],
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._gangs = gangs
        self._occupants = occupants
        self._offered = offered
        self._due_s = due_s
        self._trials: list[Trial] = []

    async def choose(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        suggested: Mapping[str, Suggestion],
        earlier: Iterable[Place],
    ) -> VictimPlan:
        """Seats for all pods that the gang still needs, with the victims there.

        Args:
            pod: the pod being scheduled.
            request: what it requests of a node.
            job: its gang.
            suggested: the nodes on which its scheduler would preempt pods for it.
            earlier: the seats of the last plan.

        Raises:
            Refusal: they don't fit even without the pods of lower priority.
            RetryError: other pods have to be tried by their scheduler first.
            ChangedError: the gang or the nodes have changed meanwhile.
        """
        given = {place.uid: place.node for place in earlier if place.uid}
        for peer in job.pods.values():  # another leader may have answered
            if peer.waits_for_chips and (node := peer.status.nominated_node_name):
                given.setdefault(peer.uid, node)
        promised = self._ledger.promises.get(job.key.plan)
        # There pods are ending already for peers, or have ended: a scheduler counts the nominated peers there.
        nodes = {node for node in given.values() if promised is not None and node in promised.chips} - suggested.keys()
        undisrupted = nodes.union(node for node, suggestion in suggested.items() if not suggestion.pdb_violations)
        nodes.update(suggested)
        if self._offered.is_by_pod(job):
            members = self._members(pod, request, job)
            known = [offered for member, _ in members if (offered := self._offered.of(member, job)) is not None]
            nodes.update(*(offered.suggested for offered in known))
            undisrupted.update(*(offered.undisrupted for offered in known))
        try:
            plan = await self._choose_on(undisrupted, pod, request, job)
        except RetryError:
            raise
        except Refusal:
            if len(undisrupted) == len(nodes):
                raise
            plan = await self._choose_on(nodes, pod, request, job, frozenset(nodes) - undisrupted)
        for uid, node in given.items():
            place = next((place for place in plan.places if place.node == node and not place.uid), None)
            if place is not None and (not job.is_mixed or place.member == uid):
                place.uid = uid
        return plan

    async def end_trials(self) -> None:
        """Free the trials of the last choice piece by piece; other tasks run meanwhile."""
        while self._trials:
            await self._trials.pop().free()

    def missing(self, job: Job) -> int:
        """How many more pods of a gang have to be bound, or their Bindings held, until it may start."""
        passed = job.placed_beside("") - self._ledger.plans.of(job.key.plan).unused + job.ended
        return job.needed - passed

    def _members(self, pod: Pod, request: ChipRequest, job: Job) -> list[tuple[Pod, ChipRequest]]:
        """The pods that need a seat beside those whose Bindings are held, as far as their scheduler has tried them.

        Raises:
            RetryError: it has not tried enough of them.
        """
        held, missing = self._offered.held_uids(job), self.missing(job)
        members: list[tuple[Pod, ChipRequest]] = [(pod, request)]
        for _, peer in job.by_rank():
            if peer.uid == pod.uid or peer.uid in held or not peer.waits_for_chips:
                continue
            offered, seat = self._offered.of(peer, job), self._ledger.get(peer.uid)
            if seat is not None and (not held if offered is None else seat.node in offered.nodes()):
                missing -= 1  # its scheduler has not refused that
            elif offered is not None:
                with suppress(Refusal):  # an invalid pod does not hold up its peers while there are enough of them
                    members.append((peer, self._gangs.request_of(peer)))
        missing = max(missing, 1)
        if len(members) < missing:
            pods = count(missing - len(members), "more of its pods has", "more of its pods have")
            sentence = f"{pods} to be tried by the scheduler before others are evicted"
            raise RetryError(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: {sentence}")
        return members[:missing]

    def _gang(
        self, nodes: Collection[str], pod: Pod, request: ChipRequest, job: Job, *, is_disrupting: bool
    ) -> Steps[GangRequest]:
        if not self._offered.is_by_pod(job):
            yield from self._gangs.planner.pending.read(job)
            gang, needed = yield from self._gangs.gang_request(pod, request, job, None)
            allowed = frozenset(nodes).union(self._offered.last(job))
            common = allowed if gang.candidates is None else allowed.intersection(gang.candidates)
            return replace(gang, members=gang.members[:needed], candidates=common)
        members: list[Member] = []
        for peer, wanted in self._members(pod, request, job):
            offered = self._offered.of(peer, job)
            own = offered.nodes(is_disrupting=is_disrupting) if offered is not None else frozenset(nodes)
            members.append(Member(peer.uid, peer.key, job.rank_of(peer), wanted, own))
        members.sort(key=lambda peer: (len(peer.candidates or ()), peer.rank))  # those with the fewest nodes first
        return self._gangs.planner.request(members, pod, job)

    async def _choose_on(
        self,
        nodes: Collection[str],
        pod: Pod,
        request: ChipRequest,
        job: Job,
        disrupted: frozenset[str] = frozenset(),
    ) -> VictimPlan:
        await self.end_trials()
        waiting = [pod, *(peer for peer in job.pods.values() if peer.waits_for_chips)]
        priority = min(peer.priority for peer in waiting)
        never = any(peer.spec.preemption_policy == NEVER for peer in waiting)
        trial = Trial(
            self._cluster,
            self._ledger,
            self._occupants,
            owner=job.key.plan,
            priority=priority,
            terminating_only=never,
        )
        self._trials.append(trial)
        version, held = job.version, self._offered.held_uids(job)
        steps = self._gang(nodes, pod, request, job, is_disrupting=bool(disrupted))
        gang, names = (await trial.turn.share_between(steps)).by_nodes()
        await trial.read(list(self._cluster.nodes if names is None else names), nodes)
        fitting = Fitting(gang, job, trial)
        largest = max((member.request for member in gang.members), key=lambda request: request.chips)
        await clear(fitting, trial, largest, disrupted)
        seats = await fitting.seats()
        if isinstance(seats, Refusal):  # pragma: no cover - `clear` has checked it
            raise seats
        requests = {member.uid: member.request for member in gang.members}
        chips: defaultdict[str, ChipSet] = defaultdict(int)
        for seat in seats:
            chips[seat.node] |= seat.take.chip_set
        victims = await self._needed_victims(trial, chips)
        ending = {uid for uids in victims.values() for uid in uids}
        if gang.seen is not None and any(ending.isdisjoint(unit.uids) for unit in trial.gone):
            sentence = "it fits only without jobs of lower priority that hold no server that it would get"
            raise Refusal(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: {sentence}")
        # Other tasks have run meanwhile.
        if job.version != version or self._offered.held_uids(job) != held:
            raise ChangedError
        owner = job.key.plan
        due_s = self._due_s(uid for uids in victims.values() for uid in uids)
        promise = Promise(owner, f"job {job.key}", priority, dict(chips), due_s)
        self._ledger.promises.keep(promise)
        places = [Place(seat.node, requests[seat.uid], victims[seat.node], seat.uid) for seat in seats]
        return VictimPlan(promise, places)

    async def _needed_victims(self, trial: Trial, chips: Mapping[str, ChipSet]) -> dict[str, frozenset[str]]:
        """The pods to end for these chips, as the nodes are now; other tasks may run meanwhile.

        Raises:
            ChangedError: the chips of a node would not be free even then.
        """
        changes, victims = self._cluster.changes, dict[str, frozenset[str]]()
        changed: Collection[str] = chips
        await trial.turn.share()
        while changed:  # those that have changed in between are examined again
            revision = changes.revision
            for node in changed:
                found = _needed_victims_on(trial, node, chips[node])
                if found is None:
                    raise ChangedError
                victims[node] = found
                await trial.turn.share()
            await trial.turn.wait()  # thousands of chips are promised then
            since = changes.since(revision)
            changed = chips if since is None else chips.keys() & since
        return victims


def _needed_victims_on(trial: Trial, node: str, taken: ChipSet) -> frozenset[str] | None:
    """The pods to end on a node for these chips; None if the chips are not free even then."""

    def free(staying: Iterable[str]) -> bool:
        offer = trial.offer(node, staying=set(staying))
        return isinstance(offer, Vacancy) and not taken & ~offer.free and offer.room >= taken.bit_count()

    if not free(()):
        return None
    staying: list[str] = []
    ended = trial.ended_on(node)
    for pod in reversed(least_important_first(ended)):
        if free([*staying, pod.uid]):
            staying.append(pod.uid)
    return frozenset(pod.uid for pod in ended).difference(staying)
