"""Version 1 of switch affinity: no two flows of a job meet on a downlink of a spine switch; and a single layer.

docs/spec/switch-affinity.md#version-1. A job is below one switch, or it takes whole switches, or *logical rows*: one
server of each slot, whatever the switches; servers of different slots do not meet on a downlink.
Where switches are not connected to each other (#single-layer), a job is below one of them, or nowhere.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, islice

from msgspec.structs import replace

from allocator.switches.rooms import (
    FILLER,
    SINGLE_LAYER,
    NoFit,
    Room,
    Schema,
    ServerSet,
    descending,
    is_filler,
    not_below_one,
    smallest,
)
from ascend.leaf_switches import Spot


def place_v1(rooms: Sequence[Room], width: int, pods: int, schema: Schema, *, job_pods: int = 0) -> ServerSet | NoFit:
    """Find servers for the first pods of a job, which may be all of them.

    Args:
        rooms: what the job sees of each switch.
        width: how many servers a switch has.
        pods: how many pods are to be placed.
        schema: the schema of the job.
        job_pods: how many pods the job has, if they are more.
    """
    must_be_below_one = is_filler(schema, max(pods, job_pods))
    usable = [usable_room(room, pods, schema) for room in rooms]
    if (pods < width or must_be_below_one) and (room := smallest(usable, pods)) is not None:
        return ServerSet(room.first(pods))
    if must_be_below_one:
        return not_below_one(usable, pods, FILLER)
    switches = descending(usable)
    spots = _whole_switches(switches, width, pods) or _logical_rows(switches, width, pods)
    if spots is not None:
        return ServerSet(spots)
    total = sum(room.size for room in switches)
    if total < pods:
        return NoFit(f"its {pods} pods need as many servers below switches; it can use {total}")
    if schema is Schema.LARGE:
        return NoFit(
            f"its {pods} pods would meet on downlinks of spine switches: it can use {total} servers, but neither whole "
            f"switches of {width}, nor one server of each slot"
        )
    return ServerSet(list(islice(chain.from_iterable(room.first(pods) for room in switches), pods)))


def usable_room(room: Room, pods: int, schema: Schema | None) -> Room:
    """What is left of a switch beside the spanning jobs of others.

    Args:
        room: the switch.
        pods: how many pods the job has.
        schema: its schema; None if no spanning job is put up with.
    """
    return room if pods <= room.size or may_span(room, schema) else replace(room, slots=())


def may_span(room: Room, schema: Schema | None) -> bool:
    """Whether a job may use a switch as one of several.

    Args:
        room: the switch.
        schema: the schema of the job; None if no other spanning job is put up with.
    """
    return not room.spanning or (schema is Schema.NORMAL and Schema.LARGE not in room.spanning)


def _whole_switches(switches: Sequence[Room], width: int, pods: int) -> list[Spot] | None:
    """Servers of full switches, the last one of which may be used in part."""
    full, needed = [room for room in switches if room.size == width], -(-pods // width)
    if needed > len(full):
        return None
    return list(islice(chain.from_iterable(room.first(width) for room in full[:needed]), pods))


def _logical_rows(switches: Sequence[Room], width: int, pods: int) -> list[Spot] | None:
    """One server of each slot for each row; the last row may be used in part."""
    by_slot: defaultdict[int, list[int]] = defaultdict(list)
    for room in switches:
        for slot in room.slots:
            by_slot[slot].append(room.switch)
    slots = sorted(by_slot, key=lambda slot: (-len(by_slot[slot]), slot))
    whole, last = (pods - 1) // width, (pods - 1) % width + 1
    if len(slots) < last or len(by_slot[slots[last - 1]]) <= whole:
        return None
    if whole and (len(slots) < width or len(by_slot[slots[width - 1]]) < whole):
        return None

    def row(number: int, servers: int) -> list[Spot]:
        return sorted(
            (Spot(by_slot[slot][number], slot) for slot in slots[:servers]), key=lambda spot: (spot.slot, spot.switch)
        )

    if not whole and last < width:  # the smallest row that fits
        lengths = [sum(len(by_slot[slot]) > number for slot in slots) for number in range(len(by_slot[slots[0]]))]
        number = max(number for number, length in enumerate(lengths) if length >= last)
        return row(number, last)
    return [spot for number in range(whole) for spot in row(number, width)] + row(whole, last)


def place_single_layer(rooms: Sequence[Room], width: int, pods: int) -> ServerSet | NoFit:
    """Find servers for all pods of a job.

    Args:
        rooms: what the job sees of each switch.
        width: how many servers a switch has.
        pods: how many pods the job has.
    """
    if pods > width:
        return NoFit(f"its {pods} pods must be below one switch ({SINGLE_LAYER}), and a switch has {width} servers")
    usable = [usable_room(room, pods, None) for room in rooms]
    room = smallest(usable, pods)
    return ServerSet(room.first(pods)) if room is not None else not_below_one(usable, pods, SINGLE_LAYER)
