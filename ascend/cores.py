"""What pods have of nodes whose chips are cut while pods run, as annotations name it: a vNPU, or whole chips.

The allocator writes ``huawei.com/npu-core``: ``0-vir05_1c_16g``, the chip and the template, or ``0,1`` for whole chips.
The device plugin lists what it has made of it in AscendReal, a vNPU with the suffix of its group,
``Ascend910-5c.1cpu.16g-100-0_1`` (docs/spec/vnpu.md#dynamic-vnpus-in-allocate). Both programs read both with these
functions: what one accepts and the other refuses would close the node or fail the pod.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from ascend.chips import MAX_CHIP_ID
from ascend.errors import InvalidValue
from ascend.templates import RESOURCE_CORES, TEMPLATES, Divisible, VnpuTemplate, divisible
from ascend.vnpus import parse_vnpu

_ID: Final = r"(0|1?[1-9]?[0-9]|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
"""A physical id up to ``MAX_CHIP_ID``."""
_CUT: Final = re.compile(rf"{_ID}-(vir[0-9a-z_]{{1,30}})")
_GROUP: Final = re.compile(r"_(0|[1-9][0-9]{0,9})\Z")
"""The driver's id of a group has 32 bits."""
_CHIP: Final = re.compile(r"0|[1-9][0-9]{0,2}")
_MOST_DIGITS: Final = 4
_MOST_CHIPS: Final = 100
_BY_SUFFIX: Final = {template.suffix: template for template in TEMPLATES.values()}

CUT_PATTERN: Final = rf"^{_ID}-({'|'.join(TEMPLATES)})\Z"
"""What the names of vNPUs to be cut match."""


SERVER_TYPE: Final = "servertype"
CHIP_MEMORY: Final = "mind-cluster/npu-chip-memory"
"""Labels of nodes, by the device plugin: the type of the chips with their AI cores (``Ascend910B-20``), and the memory
of each (``64G``)."""


def read_kind(labels: Mapping[str, str]) -> Divisible | None:
    """The kind of the chips of a node according to its labels; None if they can't be cut while pods run."""
    chip_type, _, cores = labels.get(SERVER_TYPE, "").rpartition("-")
    memory = labels.get(CHIP_MEMORY, "").removesuffix("G")
    numbers = cores, memory
    if not all(number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS for number in numbers):
        return None
    return divisible(chip_type, int(cores), int(memory))


class Cut(msgspec.Struct, frozen=True, order=True, gc=False):
    """A vNPU that is cut out of a chip for a pod; the driver assigns an id only when cutting.

    Attributes:
        chip: the physical id of the chip.
        template: the name of the template, one of ``TEMPLATES``.
    """

    chip: int
    template: str

    @property
    def name(self) -> str:
        """As the annotation has it: ``0-vir05_1c_16g``."""
        return f"{self.chip}-{self.template}"

    @property
    def cores(self) -> int:
        """Its AI cores."""
        return self.size.cores

    @property
    def size(self) -> VnpuTemplate:
        """What it takes of the chip."""
        return TEMPLATES[self.template]


def parse_cut(text: str) -> Cut:
    """The vNPU that a name stands for.

    Raises:
        InvalidValue: it is malformed, or names an unknown template.
    """
    match = _CUT.fullmatch(text)
    if match is None:
        raise InvalidValue(f"{text[:60]!r} is not a chip and a template (as in 0-vir05_1c_16g)")
    if match[2] not in TEMPLATES:
        raise InvalidValue(f"{text!r} names an unknown template")
    return Cut(int(match[1]), match[2])


def parse_cores(text: str) -> tuple[tuple[int, ...], Cut | None]:
    """The whole chips, in selection order, or the vNPU that the annotation of the allocator names.

    Raises:
        InvalidValue: it is malformed.
    """
    if "-" in text:
        try:
            return (), parse_cut(text)
        except InvalidValue as error:
            raise InvalidValue(f"annotation {RESOURCE_CORES}: {error}") from None
    names = text.split(",")
    if len(names) > _MOST_CHIPS or not all(map(_CHIP.fullmatch, names)) or max(map(int, names)) > MAX_CHIP_ID:
        raise InvalidValue(f"annotation {RESOURCE_CORES}: {text[:60]!r} names neither chips (0,1) nor a vNPU")
    chips = tuple(map(int, names))
    if len(set(chips)) != len(chips):
        raise InvalidValue(f"annotation {RESOURCE_CORES}: {text!r} names a chip twice")
    return chips, None


def is_made(name: str) -> bool:
    """Whether a name in AscendReal has the suffix of a group, as vNPUs have that were cut for a pod."""
    return _GROUP.search(name) is not None


def split_group(name: str) -> tuple[str, int]:
    """The name of a vNPU without the suffix of its group, and the driver's id of the group.

    Raises:
        InvalidValue: it has no such suffix.
    """
    match = _GROUP.search(name)
    if match is None:
        raise InvalidValue(f"{name[:60]!r} does not end with the id of a group of vNPUs (as in _0)")
    return name[: match.start()], int(match[1])


def parse_made(name: str) -> Cut:
    """The vNPU that a name in AscendReal stands for.

    Raises:
        InvalidValue: it is malformed, or no template is of that size.
    """
    vnpu = parse_vnpu(_GROUP.sub("", name))
    template = _BY_SUFFIX.get(vnpu.suffix)
    if template is None:
        raise InvalidValue(f"no template is of the size of {name!r}")
    return Cut(vnpu.chip, template.name)
