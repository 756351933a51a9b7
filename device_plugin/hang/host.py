"""Reads what the node knows of a chip's processes and of its network port."""

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from ascend.errors import DriverError
from device_plugin.driver.dcmi.file_permissions import resolve_protected

PROC = Path("/proc")
TOOL_DEADLINE_S = 10.0

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Places of the two times in ``/proc/<pid>/stat``, counted after the name, which may contain blanks."""
_COUNTERS = ("roce_tx_all_pkt_num", "roce_rx_all_pkt_num")


def cpu_time_s(processes: Iterable[int], proc: Path = PROC) -> float | None:
    """Return the CPU time of processes in seconds; None if one of them can't be seen, as without the node's processes.

    Args:
        processes: their ids on the node.
        proc: where procfs is mounted.
    """
    ticks = 0
    for process in processes:
        try:
            times = (proc / str(process) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(times[_USER]) + int(times[_SYSTEM])
        except (OSError, ValueError, IndexError):
            return None
    return ticks / _TICKS


def count_packets(tool: Path, phy_id: int) -> int | None:
    """Return how many packets a chip's network port has sent and received; None if the tool doesn't say.

    Args:
        tool: the driver's ``hccn_tool``; run only if no user but root and this one can change it.
        phy_id: the chip.
    """
    try:
        answer = subprocess.run(  # noqa: S603 - a protected program and a number
            [resolve_protected(tool), "-i", str(phy_id), "-stat", "-g"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=TOOL_DEADLINE_S,
        ).stdout
    except (OSError, subprocess.SubprocessError, DriverError):
        return None
    found = dict(line.strip().split(":", 1) for line in answer.splitlines() if ":" in line)
    try:
        return sum(int(found[name]) for name in _COUNTERS)
    except (KeyError, ValueError):
        return None
