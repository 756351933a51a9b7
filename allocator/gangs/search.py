"""Finds the seats of a gang by its policy: on previous nodes if that leaves room for all, for fewer pods if need be."""

from msgspec.structs import replace

from allocator.gangs.one_model import place
from allocator.gangs.policy import GangRequest
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.ledger import Ledger
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.turn import Steps


class Search:
    """Finds seats; reserves nothing.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger

    def seats(self, gang: GangRequest, needed: int, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Find seats for all members; else for the first ``needed`` ones, and as many more as their blocks have.

        Args:
            gang: what is to be placed.
            needed: how many members must be placed.
            index: the nodes.
        """
        found = yield from self._on_others_first(gang, index)
        if isinstance(found, Refusal) and (fewer := _fewer(gang, needed)) is not None:
            found = yield from self._on_others_first(fewer, index)
        return found

    def _on_others_first(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """Seats on nodes where no pod of the gang has failed, else on any."""
        if gang.faulty and not gang.policy.returns_pods:  # else the policy itself uses them last
            limits = {**gang.limits, **dict.fromkeys(gang.faulty, 0)}
            found = yield from self._with_previous_nodes(replace(gang, limits=limits), index)
            if not isinstance(found, Refusal):
                return found
        return (yield from self._with_previous_nodes(gang, index))

    def _with_previous_nodes(self, gang: GangRequest, index: NodeIndex) -> Steps[list[Seat] | Refusal]:
        """The policy's seats, with pods on their previous nodes as far as that leaves room for all."""
        if gang.policy.returns_pods or self._cluster.previous is None:
            return (yield from place(gang, index))
        previous = self._cluster.previous.of(gang.job)
        kept = tuple(
            replace(member, candidates=(node,))
            if (node := previous.get(member.rank)) is not None
            and gang.limits.get(node) != 0
            and ((allowed := gang.allowed(member)) is None or node in allowed)
            and index.vacancy_for(member.request, node) is not None
            else member
            for member in gang.members
        )
        if kept != gang.members:
            found = yield from place(replace(gang, members=kept), index)
            if not isinstance(found, Refusal):
                return found
        return (yield from place(gang, index))


def _fewer(gang: GangRequest, needed: int) -> GangRequest | None:
    """What is tried next if not all members of a gang fit; None if all are needed."""
    fewest = gang.policy.fewest(gang, needed) if needed < len(gang.members) else needed
    return replace(gang, members=gang.members[:fewest]) if fewest < len(gang.members) else None
