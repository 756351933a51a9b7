"""Sets of chips as integer bitmasks, and the names of chips on the wire.

Bit ``n`` stands for the chip with physical id ``n``; a server's 8 chips make 256 sets, so a rule over sets can be a
table. Names are ``Ascend910-<physical id>`` for every product of the 910 family (docs/spec/hand-over.md#names).
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import TypeAlias

from ascend.errors import InvalidValue

ChipSet: TypeAlias = int
"""Bit n set: the chip with physical id n is in the set."""

RESOURCE = "huawei.com/Ascend910"
"""The extended resource that pods request."""

NAME_PREFIX = "Ascend910-"

MAX_CHIP_ID = 255
"""The largest physical id that the driver can report (docs/spec/dcmi.md#functions)."""

_NAME = re.compile(r"Ascend910-(0|[1-9][0-9]{0,2})")
_VNPU_NAME = re.compile(r"Ascend910-[^-]+-[0-9]+-(0|[1-9][0-9]{0,2})")
"""``<device type>-<vdev id>-<physical id>`` (docs/spec/vnpu.md#names-and-templates)."""


def chip_set(ids: Iterable[int]) -> ChipSet:
    """The set of these physical ids."""
    chips = 0
    for chip_id in ids:
        chips |= 1 << chip_id
    return chips


def chip_ids(chips: ChipSet) -> tuple[int, ...]:
    """The physical ids of a set, ascending."""
    ids = []
    while chips:
        lowest = chips & -chips
        ids.append(lowest.bit_length() - 1)
        chips ^= lowest
    return tuple(ids)


def chip_name(chip_id: int) -> str:
    """The name of a chip on the wire: ``Ascend910-3``."""
    return f"{NAME_PREFIX}{chip_id}"


@lru_cache(1024)  # an allocator reads those of a few chips for every node
def parse_chip_name(name: str) -> int:
    """The physical id in a name.

    Raises:
        InvalidValue: the text is not a name of a physical chip; virtual chips (``Ascend910-2c-100-1``) are not.
    """
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > MAX_CHIP_ID:
        raise InvalidValue(f"{name!r} is not a chip name (expected {NAME_PREFIX}<0..{MAX_CHIP_ID}>)")
    return int(match[1])


def chip_of_vnpu(name: str) -> int | None:
    """The physical id of the chip that a vNPU is a part of; None if the text is not the name of a vNPU."""
    match = _VNPU_NAME.fullmatch(name)
    return int(match[1]) if match is not None and int(match[1]) <= MAX_CHIP_ID else None


def parse_chip_or_vnpu(name: str) -> int:
    """The physical id of a chip by the chip's name or the name of one of the chip's vNPUs.

    Raises:
        InvalidValue: the text is neither.
    """
    chip = chip_of_vnpu(name)
    return parse_chip_name(name) if chip is None else chip


def count_chips(count: int) -> str:
    """Return the number with its noun: ``1 chip``, ``2 chips``."""
    return f"{count} chip" if count == 1 else f"{count} chips"


def join_names(ids: Iterable[int]) -> str:
    """A comma-joined list of names in the order given: the pod annotation's selection order."""
    return ",".join(chip_name(chip_id) for chip_id in ids)


def join_names_sorted(ids: Iterable[int]) -> str:
    """A comma-joined list of names in string order (``-10`` before ``-2``).

    The lists in the device-info ConfigMap, ``huawei.com/AscendReal`` and ``huawei.com/kltDev`` have this order
    (docs/spec/node-report.md#device-list, docs/spec/hand-over.md#annotations-of-a-pod-with-chips).
    """
    return ",".join(sorted(map(chip_name, ids)))


def parse_names(text: str, field: str = "chip list") -> tuple[int, ...]:
    """The physical ids of a comma-joined list of names, in its order; the empty text is the empty list.

    Raises:
        InvalidValue: an element is not a chip name, or a chip is named twice.
    """
    if not text:
        return ()
    try:
        ids = tuple(map(parse_chip_name, text.split(",")))
    except InvalidValue as error:
        raise InvalidValue(f"{field}: {error}") from None
    if len(set(ids)) != len(ids):
        raise InvalidValue(f"{field}: {text!r} names a chip twice")
    return ids
