"""Switch affinity for pods that return to the servers of their predecessors: the switches allowed.

docs/spec/switch-affinity.md#partial-restart. While the pods were gone, other jobs may have begun to use their switches.
"""

from collections.abc import Mapping, Sequence

from allocator.switches.replacing import Staying
from allocator.switches.rooms import Room, Schema, Use
from allocator.switches.v1 import may_span, usable_room


def return_single_layer(
    rooms: Sequence[Room], missing: int, staying: Staying, homes: Mapping[int, int]
) -> frozenset[int]:
    """The switches to which a job's pods may return: of the pods that stay, and others as the rule allows.

    Args:
        rooms: what the job sees of each switch; the servers to which its pods would return are among those free.
        missing: how many pods are to be placed, whether they return or not.
        staying: the other pods.
        homes: how many would return to each switch.
    """
    own = frozenset(staying.switches)
    if len(own.union(homes)) > 1:
        return own
    return own.union(room.switch for room in rooms if room.switch in homes and usable_room(room, missing, None).slots)


def return_v1(
    rooms: Sequence[Room], missing: int, staying: Staying, homes: Mapping[int, int], schema: Schema
) -> frozenset[int]:
    """The same for version 1: not to one that another job spans."""
    own = frozenset(staying.switches)
    spans = len(own.union(homes)) > 1
    if spans and staying.is_of_filler(missing, schema):
        return own
    return own.union(
        room.switch
        for room in rooms
        if room.switch in homes and (may_span(room, schema) or (not spans and missing <= room.size))
    )


def return_v2(
    rooms: Sequence[Room],
    missing: int,
    staying: Staying,
    homes: Mapping[int, int],
    schema: Schema,
    *,
    most_shared: int,
) -> frozenset[int]:
    """The same for version 2: to free ones, and to healthy shared ones as far as the job may share more."""
    own = frozenset(staying.switches)
    if len(own.union(homes)) <= 1:
        return own.union(homes)
    if staying.is_of_filler(missing, schema):
        return own
    others = [room for room in rooms if room.switch in homes and room.switch not in own]
    free = [room.switch for room in others if room.state.use is Use.FREE]
    shared = [room.switch for room in others if room.state.use is Use.SHARED and room.state.is_healthy]
    shared.sort(key=lambda switch: (-homes[switch], switch))
    quota = most_shared - sum(state.use is Use.SHARED for state in staying.states.values())
    return own.union(free, shared[: max(0, quota)])
