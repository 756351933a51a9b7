"""Version 2 of switch affinity: a controller computes the paths, and a job shares few switches with others.

docs/spec/switch-affinity.md#version-2. A switch that a spanning job uses is *exclusive* to it or *shared*; a job should
use at most one or two shared ones. A shared switch on which a job breaks that rule is *unhealthy*: large jobs avoid it.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from allocator.switches.rooms import (
    FILLER,
    NoFit,
    Room,
    Schema,
    ServerSet,
    SwitchState,
    Use,
    ascending,
    descending,
    is_filler,
    not_below_one,
    smallest,
)
from ascend.leaf_switches import Spot

_EXCLUSIVE: Final = SwitchState(Use.EXCLUSIVE)
_SHARED: Final = SwitchState(Use.SHARED)
_OVERUSED: Final = SwitchState(Use.SHARED, is_healthy=False)
_OF_ONE: Final[tuple[Callable[[SwitchState], bool], ...]] = (
    lambda state: state.use is Use.EXCLUSIVE,
    lambda state: state == _OVERUSED,
    lambda state: state == _SHARED,
    lambda state: state.use is Use.FREE,
)
"""The switches for a job below one switch: those of the first kind that has room."""


def place_v2(
    rooms: Sequence[Room], width: int, pods: int, schema: Schema, most_shared: int, *, job_pods: int = 0
) -> ServerSet | NoFit:
    """Find servers for the first pods of a job, which may be all of them, and the states of its switches.

    Args:
        rooms: what the job sees of each switch.
        width: how many servers a switch has.
        pods: how many pods are to be placed.
        schema: the schema of the job.
        most_shared: how many shared switches a job should use at most, 1 or 2.
        job_pods: how many pods the job has, if they are more.
    """
    must_be_below_one = is_filler(schema, max(pods, job_pods))
    if pods < width or must_be_below_one:
        for suits in _OF_ONE:
            if (room := smallest([room for room in rooms if suits(room.state)], pods)) is not None:
                return ServerSet(room.first(pods))
        if must_be_below_one:
            return not_below_one(rooms, pods, FILLER)
    found = share_switches(rooms, pods, schema, most_shared)
    return found if isinstance(found, NoFit) or len(found.states) > 1 else ServerSet(found.spots)


def share_switches(rooms: Sequence[Room], pods: int, schema: Schema, most_shared: int) -> ServerSet | NoFit:
    """Find servers below several switches; the states are those of all switches that are used.

    Args:
        rooms: what the job sees of each switch.
        pods: how many pods are to be placed.
        schema: the schema of the job.
        most_shared: how many of these switches should be shared at most.
    """
    free = [room for room in rooms if room.state.use is Use.FREE]
    shared = ascending([room for room in rooms if room.state == _SHARED]) if most_shared else []
    capacity = sum(room.size for room in free) + sum(room.size for room in shared[-most_shared:])
    if pods <= capacity:
        return _placement(_sharing_few(free, shared, pods, most_shared))
    if schema is Schema.LARGE:
        return NoFit(
            f"its {pods} pods must be below free switches and at most {most_shared} healthy shared ones, which have "
            f"{capacity} servers that it can use"
        )
    return _anywhere(rooms, free, pods)


_Shares: TypeAlias = list[tuple[Room, int, SwitchState]]


def _sharing_few(free: Sequence[Room], shared: Sequence[Room], pods: int, most_shared: int) -> _Shares:
    """Whole free switches as far as possible, and the rest on few shared ones, or on a free one that becomes shared."""
    chosen: _Shares = []
    left = descending(free)
    while left and left[0].size <= pods:
        room = left.pop(0)
        chosen.append((room, room.size, _EXCLUSIVE))
        pods -= room.size
    if not pods:
        return chosen
    if most_shared > 1:
        for one, other in pairwise(shared):
            if one.size + other.size >= pods:
                first = min(one.size, pods)
                return [*chosen, (one, first, _SHARED), *([(other, pods - first, _SHARED)] if pods > first else [])]
    last = smallest(shared, pods) or smallest(left, pods)
    assert last is not None  # noqa: S101 - else the pods would be more than the capacity
    return [*chosen, (last, pods, _SHARED if most_shared else _EXCLUSIVE)]


def _anywhere(rooms: Sequence[Room], free: Sequence[Room], pods: int) -> ServerSet | NoFit:
    """For a normal job that needs more: free switches, then switches that large jobs avoid or don't use."""
    without_large = [room for room in rooms if Schema.LARGE not in room.spanning]
    order = [
        *((room, _EXCLUSIVE) for room in descending(free)),
        *((room, _OVERUSED) for room in ascending([room for room in rooms if room.state == _OVERUSED])),
        *((room, _OVERUSED) for room in ascending([room for room in without_large if room.state == _SHARED])),
        *((room, _OVERUSED) for room in ascending([r for r in without_large if r.state.use is Use.EXCLUSIVE])),
    ]
    chosen: _Shares = []
    missing = pods
    for room, state in order:
        if missing and room.slots:
            taken = min(missing, room.size)
            chosen.append((room, taken, state))
            missing -= taken
    if missing:
        return NoFit(
            f"its {pods} pods need as many servers below switches that it may use; these have {pods - missing} for it"
        )
    return _placement(chosen)


def _placement(chosen: _Shares) -> ServerSet:
    spots: list[Spot] = [spot for room, taken, _ in chosen for spot in room.first(taken)]
    return ServerSet(spots, {room.switch: state for room, _, state in chosen})
