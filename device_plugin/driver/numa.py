"""The NUMA node a chip is close to, from what the kernel says of CPUs and PCI devices (spec/node-agent.md §2.3)."""

import re
from pathlib import Path

SYSFS = Path("/sys")
_NODE = re.compile(r"node([0-9]+)")
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")


def node_of_cpus(cpus: str, sysfs: Path = SYSFS) -> int | None:
    """The node that has exactly these CPUs; None where none has.

    Args:
        cpus: as ``0-23``.
        sysfs: where sysfs is mounted.
    """
    if not cpus:
        return None
    for folder in sorted(sysfs.glob("devices/system/node/node*")):
        match = _NODE.fullmatch(folder.name)
        if match is not None and _read(folder / "cpulist") == cpus:
            return int(match[1])
    return None


def node_of_pci(address: str, sysfs: Path = SYSFS) -> int | None:
    """The node of a PCI device; None where the kernel knows none.

    Args:
        address: as ``0000:c1:00.0``.
        sysfs: where sysfs is mounted.
    """
    if _ADDRESS.fullmatch(address.lower()) is None:
        return None
    text = _read(sysfs / "bus/pci/devices" / address.lower() / "numa_node")
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
