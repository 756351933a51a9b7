"""What a pod takes from a node: whole chips, or one vNPU."""

from collections.abc import Iterable
from typing import Final

import msgspec

from ascend.chips import ChipSet, chip_name, chip_set
from ascend.cores import Cut
from ascend.vnpus import Vnpu


class Take(msgspec.Struct, frozen=True, order=True, gc=False):
    """What a pod takes from a node.

    Attributes:
        chips: the whole chips, in selection order; none for a vNPU.
        chip_set: the same as a set.
        vnpu: the vNPU that was cut beforehand; None for anything else.
        cut: the vNPU that is cut when the pod starts; None for anything else.
        cores: the AI cores, if the pod requests these instead of chips; else 0.
    """

    chips: tuple[int, ...] = ()
    chip_set: ChipSet = 0
    vnpu: Vnpu | None = None
    cut: Cut | None = None
    cores: int = 0

    @classmethod
    def whole(cls, chips: Iterable[int], *, cores: int = 0) -> "Take":
        """Whole chips, in selection order; with the AI cores if these were requested."""
        ordered = tuple(chips)
        return cls(ordered, chip_set(ordered), cores=cores)

    @classmethod
    def part(cls, vnpu: Vnpu | Cut) -> "Take":
        """One vNPU."""
        return cls(vnpu=vnpu) if isinstance(vnpu, Vnpu) else cls(cut=vnpu, cores=vnpu.size.cores)

    @property
    def is_whole(self) -> bool:
        """Whether it is whole chips."""
        return self.vnpu is None and self.cut is None

    @property
    def occupied(self) -> ChipSet:
        """The chips that are held whole or in part."""
        part = self.vnpu or self.cut
        return self.chip_set if part is None else 1 << part.chip

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its devices, in selection order."""
        part = self.vnpu or self.cut
        return tuple(map(chip_name, self.chips)) if part is None else (part.name,)

    @property
    def vnpus(self) -> tuple[str, ...]:
        """The name of its vNPU; nothing for whole chips."""
        return () if self.is_whole else self.names


NOTHING: Final = Take()
"""What a pod takes that requests neither chips nor vNPUs."""
