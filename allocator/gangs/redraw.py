"""Another plan for a gang whose scheduler has refused some of its pods beside others.

Why the scheduler refused them is unknown (CPU that two pods don't find on one node, for example), only which pods could
not be on a node together. So nodes are drawn at random for the pods, until a draw contains no such combination and the
policy finds chips for it. Each try of a gang that fails adds a combination, so the tries don't repeat.
"""

from collections import defaultdict
from collections.abc import Collection
from random import Random
from typing import Final

from msgspec.structs import replace

from allocator.gangs.policy import GangRequest
from allocator.state.index import NodeIndex
from allocator.state.reservation import Seat
from ascend.errors import Refusal
from ascend.takes import NOTHING
from ascend.turn import at_once

MOST_MEMBERS: Final = 32
"""For larger gangs a draw would hardly ever succeed."""
_DRAWS: Final = 200
_PLANS: Final = 20
"""The most draws for which chips are looked for."""


def conflicts_with(seats: Collection[Seat], conflicts: Collection[tuple[str, frozenset[str]]]) -> bool:
    """Whether a plan has pods on a node that could not be there together.

    Args:
        seats: the plan.
        conflicts: names of nodes, each with uids of pods that could not be there together.
    """
    there: defaultdict[str, set[str]] = defaultdict(set)
    for seat in seats:
        there[seat.node].add(seat.uid)
    return any(node in there and uids <= there[node] for node, uids in conflicts)


def redraw(
    gang: GangRequest,
    conflicts: Collection[tuple[str, frozenset[str]]],
    index: NodeIndex,
    random: Random,
) -> list[Seat] | None:
    """Draw a plan without conflicts; None if none was found.

    Args:
        gang: what is to be placed; each member has the names of its only nodes, and its policy has no blocks.
        conflicts: names of nodes, each with uids of pods that could not be there together.
        index: the nodes.
        random: draws.
    """
    choices = {member.uid: sorted(gang.allowed(member) or ()) for member in gang.members}
    if len(gang.members) > MOST_MEMBERS or not all(choices.values()):
        return None
    plans = 0
    for _ in range(_DRAWS):
        drawn = [Seat(each.uid, each.pod, random.choice(choices[each.uid]), NOTHING) for each in gang.members]
        if conflicts_with(drawn, conflicts):
            continue
        pairs = zip(gang.members, drawn, strict=True)
        members = tuple(replace(member, candidates=(seat.node,)) for member, seat in pairs)
        found = at_once(gang.policy.place(replace(gang, members=members), index))
        if not isinstance(found, Refusal):
            return found
        plans += 1
        if plans >= _PLANS:
            break
    return None
