"""Switch affinity for some pods of a job whose others stay: below the switches that the job uses already.

docs/spec/switch-affinity.md#partial-restart, as the makers' documents promise it: after a fault, pods on healthy nodes
return there, and the others get servers below switches of the job first. While the pods were gone, other jobs may have
begun to use their switches: then some may not return.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import chain, islice

import msgspec

from allocator.switches.rooms import (
    FILLER,
    SINGLE_LAYER,
    UNUSED,
    NoFit,
    Room,
    Schema,
    ServerSet,
    SwitchState,
    Use,
    is_filler,
)
from allocator.switches.v1 import may_span, usable_room
from allocator.switches.v2 import share_switches
from ascend.leaf_switches import Spot


class Staying(msgspec.Struct, frozen=True):
    """The pods of a job that stay.

    Attributes:
        spots: where they are.
        states: how the job uses its switches, as written on its pods; one whose other pods are not there yet may use
            a single switch as one of several.
        job_pods: how many pods the job has, also those that are neither here nor to be placed now.
    """

    spots: Collection[Spot]
    states: Mapping[int, SwitchState] = {}
    job_pods: int = 0

    @property
    def switches(self) -> Counter[int]:
        """How many of them each switch has."""
        return Counter(spot.switch for spot in self.spots)

    def is_of_filler(self, missing: int, schema: Schema) -> bool:
        """Whether their job is a filler, also if only some of its pods are here, or to be placed now."""
        return is_filler(schema, max(self.job_pods, len(self.spots) + missing))


def replace_single_layer(rooms: Sequence[Room], missing: int, staying: Staying) -> ServerSet | NoFit:
    """Find servers for the missing pods, below the one switch of the job.

    Args:
        rooms: what the job sees of each switch; also of its own ones without free servers.
        missing: how many pods are to be placed.
        staying: the others.
    """
    return _below_own(rooms, missing, staying, SINGLE_LAYER)


def replace_v1(rooms: Sequence[Room], missing: int, staying: Staying, schema: Schema) -> ServerSet | NoFit:
    """The same for version 1: below other switches, in the slots that the job uses least."""
    own = _own_rooms(rooms, staying)
    if staying.is_of_filler(missing, schema):
        return _below_own(rooms, missing, staying, FILLER)
    spots = list(islice(chain.from_iterable(room.first(missing) for room in own), missing))
    is_spanned = any(room.switch in staying.switches and not may_span(room, schema) for room in rooms)
    if len(spots) < missing and len(staying.switches) == 1 and is_spanned:
        return _below_own(rooms, missing, staying, "another job spans it")
    used = Counter(spot.slot for spot in chain(staying.spots, spots))
    others = [room for room in rooms if room.switch not in staying.switches and may_span(room, schema)]
    left = sorted(
        chain.from_iterable(room.first(room.size) for room in others), key=lambda spot: (used[spot.slot], spot)
    )
    while len(spots) < missing and left:
        spot = left.pop(0)
        spots.append(spot)
        used[spot.slot] += 1
        left.sort(key=lambda other: (used[other.slot], other.switch != spot.switch, other))
    if len(spots) < missing:
        return NoFit(_short(missing, len(spots), "its switches, and others that no other job spans"))
    return ServerSet(spots)


def replace_v2(
    rooms: Sequence[Room], missing: int, staying: Staying, schema: Schema, most_shared: int
) -> ServerSet | NoFit:
    """The same for version 2: below exclusive switches of the job, then its shared ones, then others.

    Args:
        rooms: what the job sees of each switch.
        missing: how many pods are to be placed.
        staying: the others.
        schema: the schema of the job.
        most_shared: how many shared switches a job should use at most.
    """
    own, states = _own_rooms(rooms, staying), dict(staying.states)
    spots = list(islice(chain.from_iterable(room.first(missing) for room in own), missing))
    is_below_one = len(staying.switches) == 1 and not any(state.use for state in states.values())
    if len(spots) == missing:
        return ServerSet(spots, {} if is_below_one else states)
    if staying.is_of_filler(missing, schema):
        return _below_own(rooms, missing, staying, FILLER)
    if is_below_one:
        return _below_own(rooms, missing, staying, "the job was placed below one switch")
    quota = max(0, most_shared - sum(state.use is Use.SHARED for state in states.values()))
    others = [room for room in rooms if room.switch not in staying.switches]
    found = share_switches(others, missing - len(spots), schema, quota)
    if isinstance(found, NoFit):
        return NoFit(_short(missing, len(spots), "its switches") + f"; of the others, {found.sentence}")
    return ServerSet([*spots, *found.spots], states | dict(found.states))


def _own_rooms(rooms: Sequence[Room], staying: Staying) -> list[Room]:
    """The switches of a job with room: exclusive ones first, then those with the most of its pods."""
    pods, states = staying.switches, staying.states
    return sorted(
        (room for room in rooms if room.switch in pods and room.slots),
        key=lambda room: (-states.get(room.switch, UNUSED).use, -pods[room.switch], room.switch),
    )


def _below_own(rooms: Sequence[Room], missing: int, staying: Staying, why: str) -> ServerSet | NoFit:
    (own,) = staying.switches if len(staying.switches) == 1 else (None,)
    room = next((room for room in rooms if room.switch == own), None)
    if room is not None and room.size >= missing:
        return ServerSet(room.first(missing))
    return NoFit(_short(missing, room.size if room is not None else 0, f"the switch of its other pods ({why})"))


def _short(missing: int, found: int, where: str) -> str:
    return f"{missing} of its pods must be placed below {where}, with {found} servers that they can use"


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
