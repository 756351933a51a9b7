"""CPU and memory of processes, from /proc."""

import os
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.processes import Process

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_s(process: Process) -> float:
    """User and system time of a program's threads; 0 if it does not run."""
    return cpu_of_pid(process.pid) if process.alive else 0.0


def cpu_of(processes: Mapping[str, Process]) -> dict[str, float]:
    """Return the same for several programs, by name."""
    return {name: cpu_s(process) for name, process in processes.items()}


def cpu_of_pid(pid: int) -> float:
    """User and system time of a process's threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    return _mib(pid, "VmRSS")


def peak_mib(pid: int) -> float:
    """Return the peak resident memory of a process."""
    return _mib(pid, "VmHWM")


def _mib(pid: int, name: str) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{name}:")) / 1024
