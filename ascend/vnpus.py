"""The vNPUs that an administrator has cut out of chips beforehand: their sizes, resources and names.

See docs/spec/vnpu.md#names-and-templates.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ascend.chips import NAME_PREFIX, RESOURCE
from ascend.errors import InvalidValue

SUFFIXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "vir16": "16c",
        "vir08": "8c",
        "vir04": "4c",
        "vir02": "2c",
        "vir01": "1c",
        "vir03_1c_8g": "3c.1cpu.8g",
        "vir05_1c_8g": "5c.1cpu.8g",
        "vir05_1c_16g": "5c.1cpu.16g",
        "vir06_1c_16g": "6c.1cpu.16g",
        "vir10_3c_16g": "10c.3cpu.16g",
        "vir10_3c_16g_nm": "10c.3cpu.16g.ndvpp",
        "vir10_3c_32g": "10c.3cpu.32g",
        "vir10_4c_16g_m": "10c.4cpu.16g.dvpp",
        "vir12_3c_32g": "12c.3cpu.32g",
    }
)
"""By the driver's name of a template: how resources and vNPUs of that size are named."""

_SUFFIX: Final = r"[1-9][0-9]?c(?:\.[1-9][0-9]?cpu)?(?:\.[1-9][0-9]{0,2}g)?(?:\.n?dvpp)?"
_RESOURCE: Final = re.compile(rf"{re.escape(RESOURCE)}-({_SUFFIX})")
_ID: Final = r"(0|1?[1-9]?[0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
"""A physical id up to ``MAX_CHIP_ID``."""

VNPU_PATTERN: Final = rf"^{NAME_PREFIX}({_SUFFIX})-([1-9][0-9]{{0,4}})-{_ID}\Z"
"""What the names of vNPUs match."""

_NAME: Final = re.compile(VNPU_PATTERN)


class Vnpu(msgspec.Struct, frozen=True, order=True, gc=False):
    """A vNPU.

    Attributes:
        suffix: its size as its resource has it, such as ``2c``.
        chip: the physical id of the chip that it is a part of.
        vdev_id: the driver's id of it, unique on the node.
    """

    suffix: str
    chip: int
    vdev_id: int

    @property
    def resource(self) -> str:
        """The name of the extended resource by which pods request a vNPU of this size."""
        return resource_of(self.suffix)

    @property
    def cores(self) -> int:
        """Its AI cores."""
        return int(self.suffix.partition("c")[0])

    @property
    def name(self) -> str:
        """Its name on the wire: ``Ascend910-2c-100-1``."""
        return f"{NAME_PREFIX}{self.suffix}-{self.vdev_id}-{self.chip}"


def device_type(suffix: str) -> str:
    """What vNPUs of a size are called: ``Ascend910-2c``."""
    return f"{NAME_PREFIX}{suffix}"


def resource_of(suffix: str) -> str:
    """The resource of the vNPUs of a size: ``huawei.com/Ascend910-2c``."""
    return f"{RESOURCE}-{suffix}"


RESOURCES: Final = tuple(resource_of(suffix) for suffix in SUFFIXES.values())
"""The resources of vNPUs. On a pod each is also the key of the annotation that names its vNPU; others name none."""


def suffix_of(resource: str) -> str | None:
    """The size of the vNPUs that a resource stands for; None if it stands for something else."""
    match = _RESOURCE.fullmatch(resource)
    return match[1] if match is not None else None


def parse_vnpu(name: str) -> Vnpu:
    """The vNPU with a name.

    Raises:
        InvalidValue: the text is not a name of a vNPU.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise InvalidValue(f"{name!r} is not a vNPU name (expected {NAME_PREFIX}<size>-<vdev id>-<physical id>)")
    return Vnpu(match[1], int(match[3]), int(match[2]))
