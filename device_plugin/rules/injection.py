"""What a container is given so that it sees its chips, and no others.

``runtime``: environment for ascend-docker-runtime, which mounts the chips itself; ``devices``: plain device nodes, for
any runtime; ``both``: both, which is harmless under either (spec/node-agent.md §3.6, §6.6).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Injection = Literal["runtime", "devices", "both"]

VISIBLE_DEVICES = "ASCEND_VISIBLE_DEVICES"
RUNTIME_OPTIONS = "ASCEND_RUNTIME_OPTIONS"

MANAGER_NODE = "davinci_manager"
"""Every container with chips needs it."""

OPTIONAL_NODES = ("hisi_hdc", "devmm_svm", "dvpp_cmdlist")
"""Given where the node has them."""


@dataclass(frozen=True, slots=True)
class ContainerGift:
    """What the kubelet is to put into a container.

    Attributes:
        envs: environment variables.
        devices: device nodes: path in the container to path on the node, both with read and write access.
    """

    envs: dict[str, str]
    devices: dict[str, str]


def gift(
    chips: Sequence[int], injection: Injection, device_root: Path, exists: Callable[[Path], bool]
) -> ContainerGift:
    """What a container with these chips is given.

    Args:
        chips: physical ids in the order written on the pod; it is the order in the environment.
        injection: which way.
        device_root: the folder of the device nodes on the node, normally ``/dev``.
        exists: whether the node has a path.
    """
    envs, devices = {}, {}
    if injection in {"runtime", "both"}:
        envs = {VISIBLE_DEVICES: ",".join(map(str, chips)), RUNTIME_OPTIONS: ""}
    if injection in {"devices", "both"}:
        shared = [MANAGER_NODE, *(node for node in OPTIONAL_NODES if exists(device_root / node))]
        nodes = [*shared, *(f"davinci{chip_id}" for chip_id in chips)]
        devices = {f"/dev/{node}": str(device_root / node) for node in nodes}
    return ContainerGift(envs, devices)
