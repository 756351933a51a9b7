"""The types of a placement policy for gangs.

A policy is a function from a request and the index of nodes to one seat for each member, or to a refusal. It reserves
nothing. It works in steps, so that the nodes of a large gang can be searched for in pieces; the index must not change
in between.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import msgspec

from allocator.rules.job import JobKey
from allocator.rules.request import ChipRequest
from allocator.state.index import NodeIndex
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


class GangRequest(msgspec.Struct, frozen=True):
    """What a policy has to place.

    Attributes:
        job: the job.
        members: the pods to place, by rank.
        candidates: names of the only nodes to use; None for every node.
        limits: the most of these members on a node, by name of the node; a node that is missing has no limit.
        peers: names of the nodes with other pods of the job: members that are spread are not placed there.
    """

    job: JobKey
    members: tuple[Member, ...]
    candidates: Collection[str] | None = None
    limits: Mapping[str, int] = {}
    peers: Collection[str] = ()

    def allowed(self, member: Member) -> Collection[str] | None:
        """Names of the only nodes for a member; None for every node."""
        return self.candidates if member.candidates is None else member.candidates


Policy: TypeAlias = Callable[[GangRequest, NodeIndex], Steps[list[Seat] | Refusal]]
"""Returns one seat for each member, in their order."""
