"""What a job sees of a leaf switch, and what a rule answers."""

from collections.abc import Mapping, Sequence
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

from ascend.leaf_switches import Spot

FILLER_BELOW: Final = 4
"""A job of the large-model schema with fewer pods is a filler: it must not span switches."""

FILLER: Final = f"a filler job, with fewer than {FILLER_BELOW} pods"
"""Why a filler is below one switch."""

SINGLE_LAYER: Final = "there is one layer of switches"
"""Why every job is below one switch."""


class Schema(StrEnum):
    """The values of the label ``tor-affinity`` that ask for switch affinity."""

    LARGE = "large-model-schema"
    NORMAL = "normal-schema"


class Use(IntEnum):
    """How spanning jobs use a switch; the numbers are those of the annotation ``isSharedTor``."""

    FREE = 0
    SHARED = 1
    EXCLUSIVE = 2


class SwitchState(msgspec.Struct, frozen=True, gc=False):
    """The state of a switch in version 2.

    Attributes:
        use: how spanning jobs use it.
        is_healthy: False if a job on it uses more shared switches than it should.
    """

    use: Use = Use.FREE
    is_healthy: bool = True


UNUSED: Final = SwitchState()


class Room(msgspec.Struct, frozen=True, gc=False):
    """What one job sees of a switch.

    Attributes:
        switch: its number.
        slots: the slots of the servers that the job can use, ascending; one server each.
        state: how other jobs use it.
        spanning: the schemas of other jobs on it that span switches; a job without the label counts as normal.
    """

    switch: int
    slots: tuple[int, ...]
    state: SwitchState = UNUSED
    spanning: frozenset[Schema] = frozenset()

    @property
    def size(self) -> int:
        """How many servers the job can use."""
        return len(self.slots)

    def first(self, servers: int) -> "list[Spot]":
        """The spots of its first servers."""
        return [Spot(self.switch, slot) for slot in self.slots[:servers]]


class ServerSet(msgspec.Struct, frozen=True):
    """The servers of a job.

    Attributes:
        spots: one for each pod, in the order of the ranks.
        states: the states of the job's switches by number, as version 2 writes them on its pods; none if the job spans
            no switches, and in the other versions.
    """

    spots: Sequence[Spot]
    states: Mapping[int, SwitchState] = {}


class NoFit(msgspec.Struct, frozen=True):
    """Why there is no placement.

    Attributes:
        sentence: a part of a sentence, as in ``its 3 pods must be below one switch; the largest has 2 servers``.
    """

    sentence: str


def smallest(rooms: Sequence[Room], pods: int) -> Room | None:
    """The smallest room with enough servers, the first by number of equal ones; None if there is none."""
    return min((room for room in rooms if room.size >= pods), key=lambda room: (room.size, room.switch), default=None)


def descending(rooms: Sequence[Room]) -> list[Room]:
    """Rooms with servers, the largest first, by number among equals."""
    return sorted((room for room in rooms if room.slots), key=lambda room: (-room.size, room.switch))


def ascending(rooms: Sequence[Room]) -> list[Room]:
    """Rooms with servers, the smallest first, by number among equals."""
    return sorted((room for room in rooms if room.slots), key=lambda room: (room.size, room.switch))


def is_filler(schema: Schema, pods: int) -> bool:
    """Whether a job is a filler."""
    return schema is Schema.LARGE and pods < FILLER_BELOW


def not_below_one(rooms: Sequence[Room], pods: int, why: str) -> NoFit:
    """That a job must be below one switch, and none has room."""
    largest = max((room.size for room in rooms), default=0)
    return NoFit(
        f"its {pods} pods must be below one switch ({why}); the most servers that it can use below one: {largest}"
    )
