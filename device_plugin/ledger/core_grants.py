"""What annotations of a pod say about its AI cores: which chip is cut by which template, or which whole chips it gets.

See docs/spec/vnpu.md#score-and-chip, docs/spec/vnpu.md#dynamic-vnpus-in-allocate.
"""

import re
from typing import Final, NamedTuple

from ascend.chips import MAX_CHIP_ID, NAME_PREFIX, parse_chip_name
from ascend.errors import InvalidValue
from ascend.templates import TEMPLATES
from ascend.vnpus import Vnpu, parse_vnpu

_PART: Final = re.compile(r"([0-9]{1,3})-([a-z0-9_]{1,32})")
_GROUP: Final = re.compile(r"_([0-9]{1,10})")
_MOST_CHIPS: Final = 64


class CoreGrant(NamedTuple):
    """What the allocator wrote on a pod.

    Attributes:
        chips: physical ids: of the chip that is to be cut, or of those that the pod gets as a whole.
        template: the driver's name of the template; empty for whole chips.
    """

    chips: tuple[int, ...]
    template: str = ""


def read_core_grant(text: str, field: str) -> CoreGrant:
    """Read ``0-vir05_1c_16g``, or ``0,1`` for whole chips.

    Raises:
        InvalidValue: the text is neither, or there is no such template.
    """
    if (part := _PART.fullmatch(text)) is not None and part[2] in TEMPLATES:
        return CoreGrant((_chip(part[1], field),), part[2])
    ids = text.split(",")
    if len(ids) > _MOST_CHIPS or not all(each.isascii() and each.isdigit() for each in ids):
        raise InvalidValue(f"{field}: {text[:60]!r} is neither <physical id>-<template> nor a list of physical ids")
    chips = tuple(_chip(each, field) for each in ids)
    if len(set(chips)) < len(chips):
        raise InvalidValue(f"{field}: {text[:60]!r} names a chip twice")
    return CoreGrant(chips)


def _chip(text: str, field: str) -> int:
    if len(text) > 3 or int(text) > MAX_CHIP_ID:  # noqa: PLR2004 - the largest id has three digits
        raise InvalidValue(f"{field}: {text[:10]} is not a physical id of a chip")
    return int(text)


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
    name, mark, _ = text.partition("_")
    vnpu = parse_vnpu(name)
    if mark and (group := _GROUP.fullmatch(text[len(name) :])) is not None:
        return Given((vnpu.chip,), vnpu, int(group[1]))
    raise InvalidValue(f"{text[:60]!r} does not end with the id of a group of vNPUs")
