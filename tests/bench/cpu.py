"""How much CPU processes have used, from /proc."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.processes import Process

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(process: Process) -> float:
    """User and system time of a program so far, all its threads; 0 if it does not run."""
    if not process.alive:
        return 0.0
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def cpu_of(processes: Mapping[str, Process]) -> dict[str, float]:
    """The same of several programs, by name."""
    return {name: cpu_s(process) for name, process in processes.items()}
