"""The faults of the switches between a node's chips and the SuperPod: ``SwitchInfoCfg`` of the node's report.

See docs/spec/node-report.md#switchinfocfg.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from ascend.faults import FaultTime


class SwitchFault(msgspec.Struct, frozen=True, rename="pascal"):
    """A fault of a switch chip or of one of its ports; order and names are the wire's.

    Attributes:
        event_type: the kind of fault.
        assembled_fault_code: as the fault rules name it, such as ``[0x00f1fef5,155912,npu,na]``.
        peer_port_device: what the port is connected to: 0 a CPU, 1 a chip, 2 a switch of the second layer.
        peer_port_id: the port at that end.
        switch_chip_id: the switch chip.
        switch_port_id: its port.
        severity: from 0, a suggestion, to 3, critical.
        assertion: 0 recovered, 1 occurred, 2 of no duration.
        alarm_raised_time: Unix milliseconds.
    """

    event_type: int
    assembled_fault_code: str
    peer_port_device: int
    peer_port_id: int
    switch_chip_id: int
    switch_port_id: int
    severity: int
    assertion: int
    alarm_raised_time: int


@dataclass(frozen=True, slots=True)
class SwitchReport:
    """The state of a server's switches; without ``node_status`` it could not be read.

    Attributes:
        faults: those whose code the fault rules have.
        level: the most serious level of all faults; empty if there is none.
        node_status: what that means for the node.
        levels: the level of each code in ``faults``.
    """

    faults: tuple[SwitchFault, ...] = ()
    level: str = ""
    node_status: str = ""
    levels: Mapping[str, str] = field(default_factory=dict)


UNREADABLE_SWITCHES = SwitchReport()


class _SwitchInfoCfg(msgspec.Struct, frozen=True, rename="pascal"):
    fault_code: list[str] | None = None
    fault_level: str = ""
    update_time: int = 0
    node_status: str = ""
    fault_time_and_level_map: dict[str, FaultTime] | None = None


def switch_info(report: SwitchReport, update_time_s: int) -> msgspec.Struct:
    """Return the content of ``SwitchInfoCfg``, to be encoded as JSON.

    Args:
        report: the state of the switches.
        update_time_s: Unix seconds.
    """
    if not report.node_status:
        return _SwitchInfoCfg()
    times = {
        f"{fault.assembled_fault_code}_{fault.switch_chip_id}_{fault.switch_port_id}": FaultTime(
            fault.alarm_raised_time, report.levels[fault.assembled_fault_code]
        )
        for fault in report.faults
    }
    return _SwitchInfoCfg(
        [msgspec.json.encode(fault).decode() for fault in report.faults],
        report.level,
        update_time_s,
        report.node_status,
        dict(sorted(times.items())),
    )
