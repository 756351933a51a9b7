"""What the node reports of its chips."""

from ascend.chips import ChipSet
from ascend.deviceinfo import DeviceReport, Fault, FaultTime, chip_fault
from device_plugin.state.snapshot import Chip, Snapshot


def make_report(snapshot: Snapshot, used: ChipSet, update_time_s: int) -> DeviceReport:
    """The report: free is healthy and not used (seed 002, step 1; spec/node-agent.md §5.2).

    Args:
        snapshot: the node's chips.
        used: chips that pods hold.
        update_time_s: Unix seconds.
    """
    return DeviceReport(
        free=snapshot.healthy & ~used,
        unhealthy=snapshot.all_chips & ~snapshot.healthy,
        network_unhealthy=snapshot.network_unhealthy,
        update_time_s=update_time_s,
        faults=tuple(_fault(chip) for chip in snapshot.chips if chip.faults or not chip.healthy),
        super_pod_id=snapshot.super_pod_id,
        server_index=snapshot.server_index,
    )


def _fault(chip: Chip) -> Fault:
    # An unhealthy chip must not be used: the level says so; a healthy one's codes are there to be seen.
    level = "NotHandleFault" if chip.healthy else "SeparateNPU"
    codes = {code: FaultTime(seen_ms, level) for code, seen_ms in chip.faults.items()}
    return chip_fault(chip_id=chip.chip_id, level=level, codes=codes)
