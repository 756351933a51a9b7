"""Whose a process of the node is, by its control group and its namespace of process ids."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

PROC: Final = Path("/proc")

_POD: Final = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
"""systemd's names of control groups have underscores; the uid of a static pod is a hash."""
_CONTAINER: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a process is.

    Attributes:
        kind: of a pod, of a container that is no pod's, of the node itself, or unknown: it has ended, or the node's
            processes can't be seen.
        uid: of the pod.
    """

    kind: Literal["pod", "container", "node", "unknown"]
    uid: str = ""


UNKNOWN: Final = Owner("unknown")


def owner_of(process: int, proc: Path = PROC) -> Owner:
    """Return whose a process is.

    Args:
        process: its id on the node.
        proc: where procfs is mounted.
    """
    try:
        text = (proc / str(process) / "cgroup").read_text(errors="replace")
    except OSError:
        return UNKNOWN
    if (pod := _POD.search(text)) is not None:
        return Owner("pod", pod[1].replace("_", "-"))
    return Owner("container" if _CONTAINER.search(text) or _has_ids_of_its_own(proc / str(process)) else "node")


def _has_ids_of_its_own(process: Path) -> bool:
    """Return whether a process has another id for itself than on the node: people name the containers of ``ctr``."""
    try:
        text = (process / "status").read_text(errors="replace")
    except OSError:
        return False
    return any(len(line.split()) > 2 for line in text.splitlines() if line.startswith("NSpid:"))  # noqa: PLR2004 - the name and one id


def sees_node(proc: Path = PROC) -> bool:
    """Return whether process ids here are those of the node: its second process is the kernel's."""
    try:
        return (proc / "2" / "comm").read_text().strip() == "kthreadd"
    except OSError:
        return False
