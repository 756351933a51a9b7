"""Plans gangs: finds the pods of a gang that need a seat, and seats for all of them at once."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.gangs.one_model import has_to_stay, stays_on_one
from allocator.gangs.pending import PendingMembers
from allocator.gangs.policies import revision
from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.gangs.record import count_neighbours, ending_nodes, read_record
from allocator.gangs.search import Search
from allocator.gangs.start_queue import Wait, created
from allocator.rules.job import JobKey
from allocator.rules.job_settings import require_one_block, with_settings
from allocator.rules.request import ChipRequest
from allocator.rules.verdicts import peer_on_node
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.location import Level
from allocator.state.reservation import Seat
from allocator.state.view import AS_IT_IS, Without
from ascend.errors import Refusal
from ascend.grammar import count, some
from ascend.kube.objects import NodeRequirements, Pod
from ascend.reasons import Reason
from ascend.turn import Steps, at_once

_MOST_OUTCOMES: Final = 128
"""The most outcomes cached: each keeps the names of the nodes it was found for."""

_STEP: Final = 128
"""After so many pods there is a pause."""

_Kind: TypeAlias = tuple[ChipRequest, NodeRequirements]
"""Pods of a gang with the same request, node selector and affinity: where one of them fits, the other fits as well."""


class PlanKey(msgspec.Struct, frozen=True):
    """All that the outcome of planning depends on, besides what nodes have left.

    Attributes:
        job: the gang.
        version: the version of its pods.
        kind: what the pod requests.
        own: the node of its seat; it distinguishes two pods of the gang with equal requests.
        index: what nodes have left for the gang.
        late: its uid, if the scheduler knows it before the informers do: it does not count for its peers.
        candidates: names of the only nodes it may be on; None for every node.
        avoided: names of nodes that are left to other gangs.
        seen: the revision of what the policy sees besides.
    """

    job: JobKey
    version: int
    kind: _Kind
    own: str
    index: NodeIndex
    late: str
    candidates: Collection[str] | None
    avoided: frozenset[str]
    seen: int


class Scope(NamedTuple):
    """Where the pods of a gang may be placed.

    Attributes:
        candidates: names of the only nodes of the pod being scheduled, and of its peers if they are several; None for
            every node.
        avoided: names of nodes that are left to other gangs.
        wait: what is known of a gang that waits for a turn.
        limits: the most pods of the gang on a node, by name of the node.
        without: what does not count.
    """

    candidates: Collection[str] | None
    without: Without
    avoided: frozenset[str] = frozenset()
    wait: Wait | None = None
    limits: Mapping[str, int] = MappingProxyType({})

    @property
    def is_common(self) -> bool:
        """Whether a result within this scope is the same for peers of the pod, and therefore kept."""
        return self.wait is None and not self.limits and (self.candidates is None or len(self.candidates) > 1)


class Planner:
    """Finds seats; reserves nothing.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        policy_of: where the pods of a pod's job are placed; raises a Refusal if what the job asks for is invalid.
        now_s: the wall clock, Unix seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        ledger: Ledger,
        request_of: Callable[[Pod], ChipRequest],
        policy_of: Callable[[Pod], Policy],
        now_s: Callable[[], float],
    ) -> None:
        self._now_s = now_s
        self._cluster = cluster
        self._ledger = ledger
        self._policy_of = policy_of
        self.request_of = request_of
        self.pending = PendingMembers(cluster, ledger, request_of)
        self.search = Search(cluster, ledger)
        # A scheduler filters the pods of a gang that does not fit one after the other; each would plan all of them.
        self._outcomes: dict[PlanKey, Refusal | None] = {}
        self._version = -1

    def fits(self, pod: Pod, request: ChipRequest, job: Job, within: Scope) -> bool:
        """Whether a plan can be made; planned only if something has changed since the last time."""
        for scope in self._scopes(pod, job, within):
            outcomes, key = self._known_outcomes(), self._key(pod, request, job, scope)
            if scope.is_common and key in outcomes and outcomes[key] is None:
                return True
            with suppress(Refusal):
                self._plan_once(pod, request, job, scope)
                return True
        return False

    def note_refusal(self, refusal: Refusal, pod: Pod, request: ChipRequest, job: Job, within: Scope) -> None:
        """Record why ``plan`` can't make a plan within this scope, which was tried on the nodes as they are now."""
        scope, *_ = self._scopes(pod, job, within)
        self._known_outcomes()[self._key(pod, request, job, scope)] = refusal

    def plan(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        candidates: Collection[str] | None,
        wait: Wait | None = None,
        *,
        avoided: frozenset[str] = frozenset(),
        without: Without = AS_IT_IS,
    ) -> list[Seat]:
        """Seats for a pod and all its peers that need one, or for as many as the minimum needs.

        Args:
            pod: the pod being scheduled; it may not be among those that get a seat.
            request: what it requests of a node.
            job: its job, a gang.
            candidates: names of the only nodes it may be on; if they are several, they apply to its peers with the same
                node selector and affinity as well.
            wait: what is known of a gang that waits for a turn.
            avoided: names of nodes that are left to other gangs.
            without: what does not count.

        Chips that are promised to the gang, and those promised to lower priorities if it does not fit otherwise, count
        as free; in its turn also the nodes that drain for gangs of its priority that were created later.

        Raises:
            Refusal: not even the minimum fits.
        """
        names = candidates if candidates is None or wait is not None else frozenset(candidates)
        limits = wait.limits if wait is not None else {}
        *fewer, last = self._scopes(pod, job, Scope(names, without, avoided, wait, limits))
        for scope in fewer:
            with suppress(Refusal):
                return self._plan_once(pod, request, job, scope)
        return self._plan_once(pod, request, job, last)

    def _scopes(self, pod: Pod, job: Job, scope: Scope) -> list[Scope]:
        """The scopes to try: with the gang's own promises, then with promises to others that the gang may use."""
        without = scope.without
        own = without._replace(owners=(job.key.plan, *without.owners))
        later = self._later(pod, job) if scope.wait is not None else ()
        more = Without(own.pods, (*own.owners, *later), max(pod.priority, own.priority))
        is_same = self._cluster.view(more) is self._cluster.view(own)
        return [scope._replace(without=without) for without in ((own,) if is_same else (own, more))]

    def _plan_once(self, pod: Pod, request: ChipRequest, job: Job, scope: Scope) -> list[Seat]:
        if not scope.is_common:
            return self._plan(pod, request, job, scope)
        outcomes = self._known_outcomes()
        key = self._key(pod, request, job, scope)
        if (known := outcomes.get(key)) is not None:
            raise Refusal(known.reason, known.message)
        try:
            seats = self._plan(pod, request, job, scope)
        except Refusal as refusal:
            outcomes[key] = refusal.without_frames()
            raise
        outcomes[key] = None
        return seats

    def _known_outcomes(self) -> dict[PlanKey, Refusal | None]:
        """The outcomes at this version of the index so far; add to them before anything else changes."""
        version = self._cluster.index.version
        if version != self._version or len(self._outcomes) >= _MOST_OUTCOMES:
            self._version, self._outcomes = version, {}
        return self._outcomes

    def _key(self, pod: Pod, request: ChipRequest, job: Job, scope: Scope) -> PlanKey:
        held = self._ledger.get(pod.uid)
        kind, own = (request, pod.spec.node_requirements), held.node if held is not None else ""
        late = "" if pod.uid in job.pods else pod.uid
        seen = revision(with_settings(pod, job.settings), self._cluster)
        index = self._cluster.view(scope.without)
        return PlanKey(job.key, job.version, kind, own, index, late, scope.candidates, scope.avoided, seen)

    def plan_alone(self, pod: Pod, request: ChipRequest, job: Job, node: str, without: Without) -> list[Seat]:
        """A seat for a pod on one node, whatever its peers need.

        Raises:
            Refusal: the pod does not fit there.
        """
        member = Member(pod.uid, pod.key, job.rank_of(pod), request)
        if request.is_spread and job.shares(node, pod.uid):
            raise peer_on_node()
        index = self._cluster.view(without)
        gang = self.request((member,), pod, job, (node,))
        found = at_once(gang.policy.place(gang, index))
        (verdict,) = index.verdicts(request, (node,)).values()
        if isinstance(found, Refusal):
            raise Refusal(verdict.reason, verdict.message) if isinstance(verdict, Refusal) else found
        return found

    def usable(self, pod: Pod, job: Job, without: Iterable[str] = ()) -> Without:
        """Whatever does not count, besides some pods, for a pod of a gang on the node of its scheduler's choice.

        Chips that are kept for gangs that come later are among it.
        """
        return Without.of(pod, without, (job.key.plan, *self._later(pod, job)))

    def _later(self, pod: Pod, job: Job) -> Collection[str]:
        promises = self._ledger.promises
        return promises.behind(job.key.plan, pod.priority, created(job)) if promises else ()

    def lacks_offers(self, pod: Pod, request: ChipRequest, job: Job, wait: Wait) -> int:
        """How many pods of a gang that waits for a turn have to be offered nodes before it can be planned."""
        waiting, needed = self.pending.needed(pod, request, job)
        return needed - sum(member.pod.uid in wait.offers for member in waiting)

    def gang_request(
        self,
        pod: Pod,
        request: ChipRequest,
        job: Job,
        candidates: Collection[str] | None,
        wait: Wait | None = None,
    ) -> Steps[tuple[GangRequest, int]]:
        """What the policy has to place for a pod and its peers, and how many of them must be placed.

        Raises:
            Refusal: fewer than these have a valid request.
        """
        is_one = candidates is not None and len(candidates) == 1
        common, requirements = self.common(pod, None if is_one else candidates), pod.spec.node_requirements
        allowed = dict[object, Collection[str]]()  # once for all peers with the same requirements
        waiting, needed = self.pending.needed(pod, request, job)
        members: list[Member] = []
        invalid: list[Refusal] = []
        if wait is not None:  # a scheduler has not offered any node yet for the others
            waiting = [member for member in waiting if member.pod.uid in wait.offers]
        for number, waits in enumerate(waiting, start=1):
            member, spec = waits.member, waits.pod.spec
            if not number % _STEP:
                yield
            if isinstance(member, Refusal):
                invalid.append(member)  # an invalid pod does not hold up its peers while there are enough of them
                continue
            own: Collection[str] | None = None  # those of the pod being scheduled
            if is_one and member.uid == pod.uid:
                own = candidates
            elif wait is not None:
                own = wait.offers[member.uid]
            elif (its := spec.node_requirements) != requirements:
                own = allowed[its] if its in allowed else allowed.setdefault(its, self._cluster.labels.admitting(spec))
            members.append(member if own is None else replace(member, candidates=own))
        if len(members) < needed:
            raise Refusal(invalid[0].reason, invalid[0].message)
        require_one_block(f"job {job.key}", pod, (member.pod for member in waiting), job.settings)
        yield from self._policy_of(pod).read(self._cluster)
        return self.request(members, pod, job, common), needed

    def request(
        self, members: Iterable[Member], pod: Pod, job: Job, candidates: Collection[str] | None = None
    ) -> GangRequest:
        """What the policy of a job has to place.

        Args:
            members: the pods to place, by rank.
            pod: a pod of the job.
            job: the job.
            candidates: names of the only nodes for members without candidates of their own; None for every node.

        Raises:
            Refusal: what the job asks of its policy is invalid.
        """
        placed, policy = tuple(members), self._policy_of(pod)
        uids = {member.uid for member in placed}
        spread = any(member.request.is_spread for member in placed)
        peers = job.nodes_beside(uids) if spread else ()
        record = read_record(job, uids, self._ledger, self._cluster.blocks) if policy.level is not None else {}
        models = frozenset(self._models(job, uids)) if any(map(stays_on_one, placed)) else frozenset()
        near = count_neighbours(job, policy.near, self._cluster) if policy.near else {}
        return GangRequest(
            job.key,
            placed,
            policy,
            candidates,
            peers=peers,
            record=record,
            neighbours=near,
            faulty=self._cluster.faulty_nodes.of(job.key),
            minimum=job.needed,  # without those that request no chips
            seen=policy.sees(self._cluster, job, frozenset()),
            models=models,
        )

    def _models(self, job: Job, uids: set[str]) -> Iterator[tuple[str, str]]:
        """The product and the known model of each placed pod of a job, without some, that has to stay on one."""
        labels = self._cluster.labels
        for uid, node in job.placed.items():
            kind = labels.kind_of(node) if uid not in uids else None
            if kind is not None and kind[1] and has_to_stay(job.pods[uid], job, frozenset(kind[:1]), labels):
                yield kind

    def _plan(self, pod: Pod, request: ChipRequest, job: Job, scope: Scope) -> list[Seat]:
        gang, needed = at_once(self.gang_request(pod, request, job, scope.candidates, scope.wait))
        self.require_ended(gang, job)
        limits = dict.fromkeys(scope.avoided, 0)
        if scope.limits:
            seats = (self._ledger.get(uid) for uid in job.placed if uid != pod.uid)
            there = Counter(seat.node for seat in seats if seat is not None)
            limits |= {node: max(0, most - there[node]) for node, most in scope.limits.items()}
        members = gang.members
        if members and scope.wait is not None and job.is_mixed and gang.policy.level is None:
            # Which of its pods fit on a node together only tries show, and the same try would show the same again.
            first = scope.wait.tries % len(members)
            members = members[first:] + members[:first]
        if ended := frozenset(scope.without.pods) - {pod.uid}:
            gang = replace(gang, seen=gang.policy.sees(self._cluster, job, ended))
        wanted = replace(gang, members=members, limits=limits)
        found = at_once(self.search.seats(wanted, needed, self._cluster.view(scope.without)))
        if isinstance(found, Refusal):
            raise found
        return found

    def require_ended(self, gang: GangRequest, job: Job) -> None:
        """Accept a gang unless pods of it are about to end on nodes to which others return.

        Raises:
            Refusal: some are.
        """
        if gang.policy.returns_pods and (names := ending_nodes(job, gang.record, self._cluster, self._now_s())):
            nodes = "nodes to which its pods return" if gang.policy.level is Level.SWITCH else "nodes of its blocks"
            sentence = f"{count(len(names), 'pod')} of it are still ending on {nodes}"
            raise Refusal(Reason.GANG_DOES_NOT_FIT, f"job {job.key}: {sentence}: {some(names)}")

    def common(self, pod: Pod, candidates: Collection[str] | None) -> Collection[str] | None:
        """The nodes for the peers of a pod that have the same requirements of nodes; None for every node."""
        return self._cluster.labels.only(pod.spec.node_requirements) if candidates is None else candidates
