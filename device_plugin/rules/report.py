"""What the node reports of its chips."""

from collections.abc import Iterator, Mapping

from ascend.chips import ChipSet
from ascend.deviceinfo import DeviceReport, Fault, FaultTime, chip_fault
from device_plugin.rules.snapshot import Chip, Snapshot

NETWORK_CODES = frozenset({"81078603", "81078607", "110000002", "110001024"})
"""Faults of a chip's network port; all others are the chip's own (spec/node-agent.md §4.1)."""


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
        faults=tuple(fault for chip in snapshot.chips for fault in _faults(chip)),
        super_pod_id=snapshot.super_pod_id,
        server_index=snapshot.server_index,
    )


def _faults(chip: Chip) -> Iterator[Fault]:
    """One entry per domain that has codes or is unhealthy, the network's first (spec/node-agent.md §5.2)."""
    network = {code: seen_ms for code, seen_ms in chip.faults.items() if code in NETWORK_CODES}
    own = {code: seen_ms for code, seen_ms in chip.faults.items() if code not in NETWORK_CODES}
    # What must not be used says so by its level; the codes of a healthy chip are there to be seen.
    if network or not chip.network_healthy:
        yield _fault(chip, network, "NotHandleFault" if chip.network_healthy else "PreSeparateNPU", network=True)
    if own or not chip.healthy:
        yield _fault(chip, own, "NotHandleFault" if chip.healthy else "SeparateNPU", network=False)


def _fault(chip: Chip, codes: Mapping[str, int], level: str, *, network: bool) -> Fault:
    times = {code: FaultTime(seen_ms, level) for code, seen_ms in codes.items()}
    return chip_fault(chip_id=chip.chip_id, level=level, codes=times, network=network)
