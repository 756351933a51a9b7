"""What a pod takes from a node: whole chips, or one vNPU."""

from collections.abc import Iterable
from typing import Final

import msgspec

from ascend.chips import ChipSet, chip_name, chip_set
from ascend.vnpus import Vnpu


class Take(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a pod takes from a node.

    Attributes:
        chips: the whole chips, in selection order; none for a vNPU.
        chip_set: the same as a set.
        vnpu: the vNPU; None for whole chips.
    """

    chips: tuple[int, ...] = ()
    chip_set: ChipSet = 0
    vnpu: Vnpu | None = None

    @classmethod
    def whole(cls, chips: Iterable[int]) -> "Take":
        """Whole chips, in selection order."""
        ordered = tuple(chips)
        return cls(ordered, chip_set(ordered))

    @classmethod
    def part(cls, vnpu: Vnpu) -> "Take":
        """One vNPU."""
        return cls(vnpu=vnpu)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its devices on the wire, in selection order."""
        return tuple(map(chip_name, self.chips)) if self.vnpu is None else (self.vnpu.name,)


NOTHING: Final = Take()
"""What a pod takes that requests neither chips nor vNPUs."""
