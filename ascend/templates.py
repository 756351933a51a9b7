"""The templates by which a chip is cut into vNPUs when a pod starts, and which chips can be cut so.

See docs/spec/vnpu.md#dynamic-vnpus. 910A chips can't be cut while pods run; 310P chips are no product of this project.
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

import msgspec

from ascend.vnpus import SUFFIXES

RESOURCE_CORES: Final = "huawei.com/npu-core"
"""The extended resource of AI cores: on nodes with dynamic vNPUs, instead of whole chips."""


class Media(StrEnum):
    """How much of the media units (DVPP) of a chip a vNPU has, as the label ``vnpu-dvpp`` says it."""

    ALL = "yes"
    SHARED = "null"
    NONE = "no"


class VnpuTemplate(msgspec.Struct, frozen=True, gc=False):
    """A template.

    Attributes:
        name: the driver's name: ``vir05_1c_16g``.
        cores: AI cores.
        cpus: AI CPUs.
        memory_gb: memory in GB.
        media: how much of the media units.
    """

    name: str
    cores: int
    cpus: int
    memory_gb: int
    media: Media = Media.SHARED

    @property
    def suffix(self) -> str:
        """The size as names of vNPUs have it: ``5c.1cpu.16g``."""
        return SUFFIXES[self.name]


_05_8, _05_16, _06_16 = (
    VnpuTemplate("vir05_1c_8g", 5, 1, 8),
    VnpuTemplate("vir05_1c_16g", 5, 1, 16),
    VnpuTemplate("vir06_1c_16g", 6, 1, 16),
)
_10_16, _10_32, _12_32 = (
    VnpuTemplate("vir10_3c_16g", 10, 3, 16),
    VnpuTemplate("vir10_3c_32g", 10, 3, 32),
    VnpuTemplate("vir12_3c_32g", 12, 3, 32),
)
_10_16_NONE = VnpuTemplate("vir10_3c_16g_nm", 10, 3, 16, Media.NONE)
_10_16_ALL = VnpuTemplate("vir10_4c_16g_m", 10, 4, 16, Media.ALL)

TEMPLATES: Final[Mapping[str, VnpuTemplate]] = MappingProxyType(
    {template.name: template for template in (_05_8, _05_16, _06_16, _10_16, _10_32, _12_32, _10_16_NONE, _10_16_ALL)}
)
"""By the driver's name."""


class Divisible(msgspec.Struct, frozen=True, gc=False):
    """A kind of chip that can be cut.

    Attributes:
        cores: its AI cores.
        cpus: its AI CPUs.
        memory_gb: its memory in GB.
        templates: the templates that a pod can get.
    """

    cores: int
    cpus: int
    memory_gb: int
    templates: tuple[VnpuTemplate, ...]

    def whole_chips(self, cores: int) -> int:
        """How many whole chips a request for AI cores stands for; 0 if for a part of one, or for none."""
        return 0 if cores % self.cores else cores // self.cores

    def template(self, cores: int, media: Media = Media.SHARED) -> VnpuTemplate | None:
        """The template for a request of a part of a chip; None if there is none."""
        return next((size for size in self.templates if size.cores == cores and size.media is media), None)

    @property
    def parts(self) -> tuple[int, ...]:
        """The numbers of AI cores less than a chip that a pod may request, ascending."""
        return tuple(sorted({template.cores for template in self.templates}))


_CPUS: Final = 6
_DIVISIBLE: Final[Mapping[tuple[str, int, int], Divisible]] = MappingProxyType(
    {
        ("Ascend910B", 25, 64): Divisible(25, _CPUS, 64, (_06_16, _12_32)),
        ("Ascend910B", 24, 64): Divisible(24, _CPUS, 64, (_06_16, _12_32)),
        ("Ascend910B", 20, 64): Divisible(20, _CPUS, 64, (_05_16, _10_32)),
        ("Ascend910B", 20, 32): Divisible(20, _CPUS, 32, (_05_8, _10_16, _10_16_NONE, _10_16_ALL)),
        ("Ascend910A3", 24, 64): Divisible(24, _CPUS, 64, (_06_16, _12_32)),
        ("Ascend910A3", 20, 64): Divisible(20, _CPUS, 64, (_05_16, _10_32)),
    }
)


def divisible_kinds() -> tuple[Divisible, ...]:
    """Every kind of chip that can be cut while pods run."""
    return tuple(_DIVISIBLE.values())


def divisible_types() -> frozenset[str]:
    """The types of chips (``Ascend910B``) of which some kind can be cut while pods run."""
    return frozenset(chip_type for chip_type, _, _ in _DIVISIBLE)


def divisible(chip_type: str, cores: int, memory_gb: int) -> Divisible | None:
    """The kind of a chip; None if it can't be cut while pods run.

    Args:
        chip_type: the first half of the label ``servertype``, such as ``Ascend910B``.
        cores: the AI cores of a chip, its second half.
        memory_gb: the memory of a chip, from the label ``mind-cluster/npu-chip-memory``.
    """
    return _DIVISIBLE.get((chip_type, cores, memory_gb))
