"""The kind of a chip, from its board and its name (spec/node-agent.md §3.3)."""

import re

from device_plugin.driver import ChipType

_A3_BOARDS = frozenset({0xB0, 0xB1, 0xB2, 0xB3, 0xB4, 0x81, 0x83, 0xD1, 0xD3})
_B = re.compile(r"910B\d|A2G\d")
_A = re.compile(r"910")


def chip_type(board_id: int, chip_name: str) -> ChipType | None:
    """The kind of a chip; None where it is not of the 910 family.

    Args:
        board_id: 0 where unknown.
        chip_name: as ``910B3``; empty where unknown.
    """
    if board_id in _A3_BOARDS:
        return "Ascend910A3"
    name = chip_name.removeprefix("Ascend")
    if _B.match(name):
        return "Ascend910B"
    return "Ascend910" if _A.match(name) else None
