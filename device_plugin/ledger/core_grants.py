"""What annotations of a pod say about its AI cores: which chip is cut by which template, or which whole chips it gets.

See docs/spec/vnpu.md#score-and-chip, docs/spec/vnpu.md#dynamic-vnpus-in-allocate.
"""

from typing import NamedTuple

from ascend.chips import NAME_PREFIX, parse_chip_name
from ascend.cores import parse_cores, split_group
from ascend.vnpus import Vnpu, parse_vnpu


class CoreGrant(NamedTuple):
    """What the allocator wrote on a pod.

    Attributes:
        chips: physical ids: of the chip that is to be cut, or of those that the pod gets as a whole.
        template: the driver's name of the template; empty for whole chips.
    """

    chips: tuple[int, ...]
    template: str = ""


def read_core_grant(text: str) -> CoreGrant:
    """Read ``0-vir05_1c_16g``, or ``0,1`` for whole chips.

    Raises:
        InvalidValue: the text is neither, or there is no such template.
    """
    chips, cut = parse_cores(text)
    return CoreGrant(chips) if cut is None else CoreGrant((cut.chip,), cut.template)


class Given(NamedTuple):
    """What the device plugin wrote on a pod.

    Attributes:
        chips: physical ids.
        vnpu: the vNPU; None for whole chips.
        group: the driver's id of its group of vNPUs.
    """

    chips: tuple[int, ...]
    vnpu: Vnpu | None = None
    group: int = 0


def read_given(text: str) -> Given:
    """Read ``Ascend910-5c.1cpu.16g-100-0_1``, or the names of whole chips.

    Raises:
        InvalidValue: the text is neither.
    """
    if "-" not in text.removeprefix(NAME_PREFIX) or "," in text:
        return Given(tuple(map(parse_chip_name, text.split(","))))
    name, group = split_group(text)
    vnpu = parse_vnpu(name)
    return Given((vnpu.chip,), vnpu, group)
