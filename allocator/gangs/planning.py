"""The plan of a gang: who needs a seat and on which nodes it may be, put to the policy; a refusal is remembered."""

from collections.abc import Callable, Collection
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.gangs.policy import GangRequest, Member, Policy
from allocator.gangs.pools import MemberPools
from allocator.gangs.roster import Roster
from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.remembered import Remembered
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.kube.objects import Pod

_MOST_REFUSALS: Final = 128
"""A question has the names of all nodes that a scheduler thinks of, and each time strings of its own."""

_Kind: TypeAlias = tuple[Ask, frozenset[tuple[str, str]]]
"""Pods of a gang that ask for the same on the same nodes: where one of them fits, so does another."""


class Question(msgspec.Struct, frozen=True):
    """All that an answer about a gang's pod depends on besides nodes and reservations.

    Attributes:
        job: the gang.
        version: that of its pods.
        minimum: how many of them must be placed together.
        lacks_group: nobody knows how many.
        kind: what the pod asks for.
        own: the node it has its seat on; of two pods that ask for the same, each is the other's peer and not its own.
        late: its uid, where its scheduler knows it before we do: its peers' questions don't count it.
        candidates: the only nodes it may be on; None for all.
    """

    job: JobKey
    version: int
    minimum: int
    lacks_group: bool
    kind: _Kind
    own: str
    late: str
    candidates: Collection[str] | None


class Planner:
    """Makes plans.

    Args:
        cluster: what is seen.
        ledger: what is decided.
        ask_of: what a pod asks of a node.
        policy: where the pods of a job go.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger, ask_of: Callable[[Pod], Ask], policy: Policy) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._policy = policy
        self._roster = Roster(cluster, ledger, ask_of)
        # A scheduler asks for pod after pod of a gang that does not fit, and each answer would take a plan of them all.
        self._refusals: Remembered[Question, Refusal] = Remembered(_MOST_REFUSALS)

    @property
    def state(self) -> tuple[int, int]:
        """What all answers depend on: nodes and reservations."""
        # Peers have to be joined wherever their places are, also on nodes that are no use to anybody and stay so.
        return self._cluster.index.version, self._ledger.version

    def question(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> Question:
        """What is asked, so that the same is found out only once."""
        held = self._ledger.get(pod.uid)
        lacks_group = self._cluster.jobs.lacks_group(job)
        kind, own = (ask, frozenset(pod.spec.node_selector.items())), held.node if held is not None else ""
        late = "" if pod.uid in job.pods else pod.uid
        return Question(job.key, job.version, job.min_available, lacks_group, kind, own, late, candidates)

    def plan(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        """Seats for a pod and all peers that need one, or for as many as the minimum needs; reserves nothing.

        Args:
            pod: the pod that is asked about; it may be none of those that get a seat.
            ask: what it asks of a node.
            job: its job, a gang.
            candidates: the only nodes it may be on, and where they are several, its peers with the same node selector.

        Raises:
            Refusal: not even so many fit.
        """
        several = frozenset(candidates) if candidates is not None and len(candidates) > 1 else None
        if candidates is not None and several is None:
            return self._plan_anew(pod, ask, job, candidates)
        refusals, question = self._refusals.under(self.state), self.question(pod, ask, job, several)
        if (known := refusals.get(question)) is not None:
            raise Refusal(known.reason, known.message)
        try:
            return self._plan_anew(pod, ask, job, several)
        except Refusal as refusal:
            refusals[question] = refusal.with_traceback(None)
            raise

    def _plan_anew(self, pod: Pod, ask: Ask, job: Job, candidates: Collection[str] | None) -> list[Seat]:
        is_one = candidates is not None and len(candidates) == 1
        pools = MemberPools(self._cluster.pools, pod.spec.node_selector, None if is_one else candidates)
        waiting, needed = self._roster.in_need(pod, ask, job)
        members: list[Member] = []
        unfit: list[Refusal] = []
        for rank, each, asks in waiting:
            if isinstance(asks, Refusal):
                unfit.append(asks)  # what is wrong with it is its own trouble, as long as there are enough others
                continue
            own = candidates if each.uid == pod.uid and is_one else pools.of(each.spec.node_selector)
            named = self._cluster.pools.named_products(each.spec.node_selector, asks)
            members.append(Member(each.uid, each.key, rank, asks, own, named))
        if len(members) < needed:
            raise Refusal(unfit[0].reason, unfit[0].message)
        products = self._cluster.peer_products(job, pod.uid)
        if products is not None and not all(member.may_join(products) for member in members):
            # Those that name other servers than their peers are on are meant to be there; the rest join them.
            members = [member.joining(products) for member in members]
            products = None
        request = GangRequest(job.key, tuple(members), lambda: self._roster.placed(pod, job), pools.common, products)
        found = self._back(request)
        if isinstance(found, Refusal) and needed < len(members):
            found = self._back(replace(request, members=request.members[:needed]))
        if isinstance(found, Refusal):
            raise found
        return found

    def _back(self, request: GangRequest) -> list[Seat] | Refusal:
        """The policy's seats, with pods on their previous nodes as far as that leaves room for all."""
        previous = self._cluster.previous.of(request.job) if self._cluster.previous is not None else {}
        bound = tuple(
            replace(member, candidates=(node,))
            if (node := previous.get(member.rank)) is not None
            and ((allowed := request.allowed(member)) is None or node in allowed)
            and self._cluster.index.vacancy_for(member.ask, node) is not None
            else member
            for member in request.members
        )
        if bound != request.members:
            found = self._policy(replace(request, members=bound), self._cluster.index)
            if not isinstance(found, Refusal):
                return found
        return self._policy(request, self._cluster.index)
