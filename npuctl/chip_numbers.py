"""Chips as people write and read them: ``0-3,5``."""

import re
from collections.abc import Sequence
from typing import Final

from ascend.chips import MAX_CHIP_ID, NAME_PREFIX, ChipSet
from ascend.errors import InvalidValue
from ascend.printable import shown

_RANGE: Final = re.compile(rf"(?:{NAME_PREFIX})?([0-9]{{1,3}})(?:-([0-9]{{1,3}}))?")


def numbers(chips: Sequence[str]) -> str:
    """Return the numbers of chips, as in ``0-3,5``; for a vNPU its size, vdev id and chip: ``2c-100-1``."""
    parts: list[str] = []
    first = last = -1
    for name in chips:
        number = name.removeprefix(NAME_PREFIX)
        if number.isdecimal() and int(number) == last + 1 and parts:
            last += 1
            parts[-1] = f"{first}-{last}"
            continue
        parts.append(number)
        first = last = int(number) if number.isdecimal() else -len(NAME_PREFIX)
    return ",".join(parts)


def read_numbers(text: str) -> ChipSet:
    """Read what ``numbers`` prints of chips; a chip may also be named, as in ``Ascend910-2``.

    Raises:
        InvalidValue: it is nothing of that kind; the message begins with the part that is wrong.
    """
    chips = 0
    for part in text.split(","):
        found = _RANGE.fullmatch(part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found is not None else (1, 0)
        if not first <= last <= MAX_CHIP_ID:
            raise InvalidValue(f"{shown(part)} is no chip; write chips as in 0-3,5 or {NAME_PREFIX}2")
        chips |= (1 << last + 1) - (1 << first)
    return chips
