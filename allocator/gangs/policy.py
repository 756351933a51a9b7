"""The interface of placement policies: where the pods of a gang are placed, chosen for each job.

A policy knows what its job asks for, and finds one seat for each member in the index of nodes, or says why it can't. It
reserves nothing. It works in steps, so that the nodes of a large gang can be searched for in pieces; the index must not
change in between.

A new policy is a module with a class like ``SwitchAffinity`` (``switch_affinity.py``), and a line in the table of
``policies.py``.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping

import msgspec
from msgspec.structs import replace

from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.job import Job
from allocator.state.location import Level
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.turn import Steps


class Member(msgspec.Struct, frozen=True, gc=False):
    """A pod of a gang that needs a seat.

    Attributes:
        uid: the pod's uid.
        pod: ``namespace/name``.
        rank: its rank within the job.
        request: what it requests of a node.
        candidates: names of the only nodes it may be on; None if ``GangRequest.candidates`` applies.
    """

    uid: str
    pod: str
    rank: int
    request: ChipRequest
    candidates: Collection[str] | None = None


class Peer(msgspec.Struct, frozen=True, gc=False):
    """Where a pod of the gang is or was that is not to be placed now.

    Attributes:
        node: the name of the node.
        block: the id of its block; None if it is unknown, because another program has placed the pod, or the job had no
            blocks then.
        stays: whether it is there; else it has ended, and its successor may be placed elsewhere.
    """

    node: str
    block: int | None
    stays: bool = True


class GangRequest(msgspec.Struct, frozen=True):
    """What a policy has to place.

    Attributes:
        job: the job.
        members: the pods to place, by rank.
        policy: where they are placed.
        candidates: names of the only nodes to use; None for every node.
        limits: the most of these members on a node, by name of the node; a node that is missing has no limit.
        peers: names of the nodes with other pods of the job: members that are spread are not placed there.
        record: where pods of the job are or were, by rank; only for policies with a level.
        neighbours: how many pods of other jobs to which it prefers to be near each SuperPod has.
        faulty: names of nodes to be used last, since pods of the job have failed there.
        minimum: how many pods of the job must have a seat, those included that have one.
        seen: what the policy sees of the cluster besides the index.
        models: the products of its placed pods that have to stay on one model, and the models of their chips.
    """

    job: JobKey
    members: tuple[Member, ...]
    policy: "Policy"
    candidates: Collection[str] | None = None
    limits: Mapping[str, int] = {}
    peers: Collection[str] = ()
    record: Mapping[int, Peer] = {}
    neighbours: Mapping[int, int] = {}
    faulty: frozenset[str] = frozenset()
    minimum: int = 1
    seen: object = None
    models: frozenset[tuple[str, str]] = frozenset()

    def allowed(self, member: Member) -> Collection[str] | None:
        """Names of the only nodes for a member; None for every node."""
        return self.candidates if member.candidates is None else member.candidates

    def by_nodes(self) -> "tuple[GangRequest, Collection[str] | None]":
        """The same for an index with a part of the nodes, and the names of these; None if it depends on every node."""
        if self.policy.level is not None:
            return self, None
        if self.candidates and all(member.candidates is None for member in self.members):
            return replace(self, candidates=None), self.candidates
        allowed = {id(names): names for names in map(self.allowed, self.members)}  # most are the same
        several = [names for names in allowed.values() if names is not None]
        return self, frozenset[str]().union(*several) if len(several) == len(allowed) else None


class Policy(msgspec.Struct, frozen=True):
    """Where the pods of one job are placed. Equal policies place equal jobs in the same way."""

    @property
    def level(self) -> Level | None:
        """The level of the network at which groups of ranks are kept together; None if pods may be anywhere.

        If there is one, pods exchange their seats within one place of that level only.
        """
        return None

    @property
    def returns_pods(self) -> bool:
        """Whether the policy itself sends ranks back to previous nodes, and uses nodes last where pods have failed."""
        return self.level is not None

    @property
    def gives_way(self) -> bool:
        """Whether a job that is no gang is placed without it, and not refused."""
        return False

    @property
    def needs_network(self) -> bool:
        """Whether the pods of the job communicate over the network of their chips."""
        return True

    @property
    def near(self) -> Mapping[str, str]:
        """The labels of the pods of other jobs to which the job prefers to be near; empty for none."""
        return {}

    def fewest(self, gang: GangRequest, needed: int) -> int:  # noqa: ARG002 - any number may be placed
        """How many members are tried next if not all fit, at least ``needed``: a block is placed whole or not."""
        return needed

    @abstractmethod
    def place(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find one seat for each member, in their order, or say why they don't fit."""

    def read(self, cluster: Cluster) -> Steps[None]:  # noqa: ARG002 - nothing is read
        """Read, with pauses, what ``sees`` needs of a large cluster."""
        yield from ()

    def sees(self, cluster: Cluster, job: Job, ended: frozenset[str]) -> object:  # noqa: ARG002 - nothing is seen
        """The state of the cluster besides the index, once pods with these uids have ended; None for no state.

        Preemption ends pods of lower priority to see whether that helps.
        """
        return None

    def advice(self, cluster: Cluster) -> tuple[str, ...]:  # noqa: ARG002 - there is none
        """What the makers of the hardware advise against in the job, one sentence for each."""
        return ()
