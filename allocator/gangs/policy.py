"""What a placing policy for gangs is given and gives back.

A policy is a pure function from a request and the index of nodes to the seats of all pods it was asked for, or to a
refusal; it reserves nothing. SuperPoD blocks, their repair after faults and switch lists (spec/superpod.md §1.6, §2.11,
§4.2) are other functions of this shape: all of them map ranks to nodes, given who is placed already and must stay.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from allocator.rules.job import JobKey
from allocator.rules.request import Ask
from allocator.state.index import NodeIndex
from allocator.state.reservation import Seat
from ascend.errors import Refusal


class Member(msgspec.Struct, frozen=True):
    """A pod of a gang that needs a seat.

    Attributes:
        uid: the pod's.
        pod: ``namespace/name``.
        rank: its number within the job.
        ask: what it asks of a node.
        candidates: the only nodes it may be on; None where that is left to ``GangRequest.candidates``.
        named: names of the products that it names itself; None: any.
    """

    uid: str
    pod: str
    rank: int
    ask: Ask
    candidates: Collection[str] | None = None
    named: frozenset[str] | None = None

    def may_join(self, products: frozenset[str]) -> bool:
        """Whether what it names leaves one of these products."""
        return self.named is None or not self.named.isdisjoint(products)

    def joining(self, products: frozenset[str]) -> "Member":
        """Kept to these products, unless it names only others."""
        if not self.may_join(products):
            return self
        return replace(self, ask=replace(self.ask, peers=products), named=products & (self.named or products))


class GangRequest(msgspec.Struct, frozen=True):
    """What a policy has to place.

    Attributes:
        job: whose pods they are.
        members: the pods to place, by rank.
        placed: finds the nodes of the peers that have a place already, by rank; they stay.
        candidates: the only nodes to be used; None for all.
        products: names of the products those peers are on, the only ones to be used; None: one of all for all members,
            unless these name different ones.
    """

    job: JobKey
    members: tuple[Member, ...]
    placed: Callable[[], Mapping[int, str]] = dict
    candidates: Collection[str] | None = None
    products: frozenset[str] | None = None

    def allowed(self, member: Member) -> Collection[str] | None:
        """The only nodes for a member; None for all."""
        return self.candidates if member.candidates is None else member.candidates

    @property
    def is_apart(self) -> bool:
        """Whether the members name products of which no single one would do for all of them."""
        named = {member.named for member in self.members if member.named is not None}
        return bool(named) and not frozenset.intersection(*named)


Policy: TypeAlias = Callable[[GangRequest, NodeIndex], list[Seat] | Refusal]
"""Gives one seat for each member, in their order."""
