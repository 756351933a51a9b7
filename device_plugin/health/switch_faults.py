"""The levels of switch faults, and what they mean for the node (docs/spec/faults.md#switch-faults)."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from ascend.fabric_switches import SwitchFault, SwitchReport

_L2 = 2
_ALL_L2_PORTS = 16
"""With so many ports to the second layer down, a switch chip has lost its connection to the other servers."""
_RECOVERED = 0

_CODE = re.compile(r"\[0x([0-9A-Fa-f]{8}),(na|[0-9]{1,10}),(cpu|npu|L2|na),na\]")


class SwitchLevel(IntEnum):
    """How serious a switch fault is; a larger value is worse."""

    NOT_HANDLE = 0
    SUB_HEALTH = 1
    RESTART_REQUEST = 2
    PRE_SEPARATE = 3
    SEPARATE = 4


_WIRE = {
    SwitchLevel.NOT_HANDLE: ("NotHandle", "Healthy"),
    SwitchLevel.SUB_HEALTH: ("SubHealthFault", "SubHealthy"),
    SwitchLevel.RESTART_REQUEST: ("RestartRequest", "UnHealthy"),
    SwitchLevel.PRE_SEPARATE: ("PreSeparate", "PreSeparate"),
    SwitchLevel.SEPARATE: ("Separate", "UnHealthy"),
}
"""The level's name and the node's status in reports."""

_LISTS = {
    "NotHandleFaultCodes": SwitchLevel.NOT_HANDLE,
    "SubHealthFaultCodes": SwitchLevel.SUB_HEALTH,
    "RestartRequestFaultCodes": SwitchLevel.RESTART_REQUEST,
    "PreSeparateFaultCodes": SwitchLevel.PRE_SEPARATE,
    "ResetFaultCodes": SwitchLevel.SEPARATE,
    "SeparateFaultCodes": SwitchLevel.SEPARATE,
}


def read_switch_levels(
    lists: Mapping[str, Any], default: Mapping[str, SwitchLevel], refused: list[str]
) -> dict[str, SwitchLevel]:
    """Read the lists of ``SwitchFaultCode.json``; a code in several gets the most serious level.

    Args:
        lists: the file's content.
        default: the levels that apply in place of an entry that is not a list.
        refused: receives a sentence for each entry that is not used.
    """
    levels: dict[str, SwitchLevel] = {}
    refused += [f"{str(name)[:60]!r} is not a list of switch faults" for name in lists if name not in _LISTS]
    for name, level in _LISTS.items():
        codes = lists.get(name, [])
        if not isinstance(codes, list):
            refused.append(f"{name} is {str(codes)[:60]!r}, not a list; the default applies")
            codes = [code for code, usual in default.items() if usual is level]
        for text in codes:
            match = _CODE.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                refused.append(f"{name}: {str(text)[:60]!r} is not of the form [0x00f1fef5,155912,npu,na]")
                continue
            alarm, fault, peer = match.groups()
            code = f"[0x{alarm.lower()},{fault},{peer},na]"
            levels[code] = max(level, levels.get(code, level))
    return levels


def assess(faults: Iterable[SwitchFault], levels: Mapping[str, SwitchLevel]) -> SwitchReport:
    """Return what to report about the present faults of a server's switches.

    Faults without a level are not reported, as in the reference (docs/spec/faults.md#switch-faults).
    """
    present = tuple(faults)
    if not present:
        return SwitchReport(node_status="Healthy")
    known = tuple(fault for fault in present if fault.assembled_fault_code in levels)
    worst = max((levels[fault.assembled_fault_code] for fault in known), default=SwitchLevel.NOT_HANDLE)
    if _has_lost_second_layer(present):
        worst = SwitchLevel.SEPARATE
    level, status = _WIRE[worst]
    return SwitchReport(
        known, level, status, {code: _WIRE[levels[code]][0] for code in {fault.assembled_fault_code for fault in known}}
    )


def _has_lost_second_layer(faults: Iterable[SwitchFault]) -> bool:
    ports: dict[int, set[int]] = defaultdict(set)
    for fault in faults:
        if fault.peer_port_device == _L2 and fault.assertion != _RECOVERED:
            ports[fault.switch_chip_id].add(fault.switch_port_id)
    return any(len(down) >= _ALL_L2_PORTS for down in ports.values())
