"""Reads what the node knows of a chip's processes."""

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")

_TICKS = os.sysconf("SC_CLK_TCK")
_USER, _SYSTEM = 11, 12
"""Places of the two times in ``/proc/<pid>/stat``, counted after the name, which may contain blanks."""


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
