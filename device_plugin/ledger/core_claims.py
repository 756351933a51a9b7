"""The vNPU or the whole chips of a pod with AI cores, by AscendReal.

See docs/spec/vnpu.md#dynamic-vnpus-in-allocate.
"""

from typing import NamedTuple

from ascend.annotations import MAX_LIST_ENTRIES
from ascend.chips import NAME_PREFIX, parse_chip_name
from ascend.cores import split_group
from ascend.errors import InvalidValue
from ascend.vnpus import Vnpu, parse_vnpu


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
        if text.count(",") >= MAX_LIST_ENTRIES:
            raise InvalidValue(f"more than {MAX_LIST_ENTRIES} chips")
        return Given(tuple(map(parse_chip_name, text.split(","))))
    name, group = split_group(text)
    vnpu = parse_vnpu(name)
    return Given((vnpu.chip,), vnpu, group)
