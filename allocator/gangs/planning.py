"""Plans gangs: finds seats for all pods of a gang that need one, all at once."""

from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.gangs.pending_members import PendingMembers
from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.node_labels import NodeLabels
from allocator.state.reservation import Seat
from allocator.state.versioned_cache import VersionedCache
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_LIMIT: Final = 128
"""The most outcomes cached: each keeps the names of the nodes it was found for."""

_Kind: TypeAlias = tuple[ChipRequest, frozenset[tuple[str, str]]]
"""Pods of a gang with the same request and node selector: where one of them fits, the other fits as well."""


class PlanKey(msgspec.Struct, frozen=True):
    """All that the outcome of planning depends on, besides what nodes have left.

    Attributes:
        job: the gang.
        version: the version of its pods.
        kind: what the pod requests.
        own: the node of its seat; it distinguishes two pods of the gang with equal requests.
        late: its uid, if the scheduler knows it before the informers do: it does not count for its peers.
        candidates: names of the only nodes it may be on; None for every node.
    """

    job: JobKey
    version: int
    kind: _Kind
    own: str
    late: str
    candidates: Collection[str] | None


class Planner:
    """Finds seats; reserves nothing.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
        request_of: reads what a pod requests of a node; raises a Refusal if that is invalid.
        policy: where the pods of a job are placed.
    """

    def __init__(
        self, cluster: Cluster, ledger: Ledger, request_of: Callable[[Pod], ChipRequest], policy: Policy
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._policy = policy
        self._pending = PendingMembers(cluster, ledger, request_of)
        # A scheduler filters the pods of a gang that does not fit one after the other; each would plan all of them.
        self._outcomes: VersionedCache[PlanKey, Refusal | None] = VersionedCache(_LIMIT)

    def fits(self, pod: Pod, request: ChipRequest, job: Job) -> bool:
        """Whether a plan can be made; planned only if something has changed since the last time."""
        outcomes, key = self._outcomes.at(self._cluster.index.version), self._key(pod, request, job, None)
        if key not in outcomes:
            try:
                self.plan(pod, request, job, None)
            except Refusal:
                return False
        return outcomes[key] is None

    def plan(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        """Seats for a pod and all its peers that need one, or for as many as the minimum needs.

        Args:
            pod: the pod being scheduled; it may not be among those that get a seat.
            request: what it requests of a node.
            job: its job, a gang.
            candidates: names of the only nodes it may be on; if they are several, they apply to its peers with the same
                node selector as well.

        Raises:
            Refusal: not even the minimum fits.
        """
        several = frozenset(candidates) if candidates is not None and len(candidates) > 1 else None
        if candidates is not None and several is None:
            return self._plan(pod, request, job, candidates)
        outcomes = self._outcomes.at(self._cluster.index.version)
        key = self._key(pod, request, job, several)
        if (known := outcomes.get(key)) is not None:
            raise Refusal(known.reason, known.message)
        try:
            seats = self._plan(pod, request, job, several)
        except Refusal as refusal:
            outcomes[key] = refusal.with_traceback(None)
            raise
        outcomes[key] = None
        return seats

    def _key(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> PlanKey:
        held = self._ledger.get(pod.uid)
        kind, own = (request, frozenset(pod.spec.node_selector.items())), held.node if held is not None else ""
        return PlanKey(job.key, job.version, kind, own, "" if pod.uid in job.pods else pod.uid, candidates)

    def _plan(self, pod: Pod, request: ChipRequest, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        is_one = candidates is not None and len(candidates) == 1
        nodes = _MemberNodes(self._cluster.labels, pod.spec.node_selector, None if is_one else candidates)
        waiting, needed = self._pending.needed(pod, request, job)
        members: list[Member] = []
        invalid: list[Refusal] = []
        for rank, each, requested in waiting:
            if isinstance(requested, Refusal):
                invalid.append(requested)  # an invalid pod does not hold up its peers while there are enough of them
                continue
            own = candidates if each.uid == pod.uid and is_one else nodes.of(each.spec.node_selector)
            members.append(Member(each.uid, each.key, rank, requested, own))
        if len(members) < needed:
            raise Refusal(invalid[0].reason, invalid[0].message)
        gang = GangRequest(job.key, tuple(members), nodes.common)
        found = self._with_previous_nodes(gang)
        if isinstance(found, Refusal) and needed < len(members):
            found = self._with_previous_nodes(replace(gang, members=gang.members[:needed]))
        if isinstance(found, Refusal):
            raise found
        return found

    def _with_previous_nodes(self, gang: GangRequest) -> list[Seat] | Refusal:
        """The policy's seats, with pods on their previous nodes as far as that leaves room for all."""
        previous = self._cluster.previous.of(gang.job) if self._cluster.previous is not None else {}
        kept = tuple(
            replace(member, candidates=(node,))
            if (node := previous.get(member.rank)) is not None
            and ((allowed := gang.allowed(member)) is None or node in allowed)
            and self._cluster.index.vacancy_for(member.request, node) is not None
            else member
            for member in gang.members
        )
        if kept != gang.members:
            found = self._policy(replace(gang, members=kept), self._cluster.index)
            if not isinstance(found, Refusal):
                return found
        return self._policy(gang, self._cluster.index)


class _MemberNodes:
    """The nodes each pod of a gang may be on, as far as that is known while one of them is scheduled.

    Args:
        labels: finds nodes by label.
        selector: the node selector of the pod being scheduled.
        candidates: names of the only nodes for pods with that selector; None if the selector alone decides.

    Attributes:
        common: names of the only nodes for pods with that selector; None for every node.
    """

    def __init__(self, labels: NodeLabels, selector: Mapping[str, str], candidates: Collection[str] | None) -> None:
        self._labels = labels
        self._selector = selector
        self._others: dict[frozenset[tuple[str, str]], Collection[str]] = {}
        self.common = labels.selected(selector) if candidates is None and selector else candidates

    def of(self, selector: Mapping[str, str]) -> Collection[str] | None:
        """Names of the only nodes for a pod with this selector; None if these are the common ones."""
        if selector == self._selector:
            return None
        key = frozenset(selector.items())
        if key not in self._others:
            self._others[key] = self._labels.selected(selector)
        return self._others[key]
