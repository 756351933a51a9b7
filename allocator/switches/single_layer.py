"""Switch affinity where switches are not connected to each other: a job is below one of them, or nowhere.

docs/spec/switch-affinity.md#single-layer
"""

from collections.abc import Sequence
from typing import Final

from allocator.switches.rooms import NoFit, Room, ServerSet, not_below_one, smallest
from allocator.switches.v1 import usable_room

_WHY: Final = "there is one layer of switches"


def place_single_layer(rooms: Sequence[Room], width: int, pods: int) -> ServerSet | NoFit:
    """Find servers for all pods of a job.

    Args:
        rooms: what the job sees of each switch.
        width: how many servers a switch has.
        pods: how many pods the job has.
    """
    if pods > width:
        return NoFit(f"its {pods} pods must be below one switch ({_WHY}), and a switch has {width} servers")
    usable = [usable_room(room, pods, None) for room in rooms]
    room = smallest(usable, pods)
    return ServerSet(room.first(pods)) if room is not None else not_below_one(usable, pods, _WHY)
