"""What a node's object tells of its chips: labels people select on, annotations other programs read.

All but ``servertype`` are facts of the driver (spec/node-agent.md §5.8). A label is only ever set, never removed:
pods that select on it would be killed when their kubelet restarts (spec/kubernetes.md §1.13).
"""

import re

from ascend.annotations import (
    BASE_DEVICE_INFOS,
    SERVER_INDEX,
    SERVER_TYPE,
    SUPER_POD_ID,
    write_base_device_infos,
)
from device_plugin.driver import Inventory
from device_plugin.rules.snapshot import Snapshot

ACCELERATOR = "accelerator"
ACCELERATOR_TYPE = "accelerator-type"
CHIP_NAME = "node.kubernetes.io/npu.chip.name"
CHIP_MEMORY = "mind-cluster/npu-chip-memory"
DRIVER_VERSION = "huawei.com/driver.version"
SERVER_TYPE_LABEL = "servertype"
SUPER_POD_LABEL = "huawei.com/topotree.superpodid"

_ACCELERATOR = "huawei-Ascend910"
_INFERENCE_BOARDS = frozenset({0x28, 0x29})
_INFERENCE_CARD = "card-910b-infer"
_MB_PER_GB = 1024
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def node_labels(server: Inventory) -> tuple[dict[str, str], list[str]]:
    """The labels, and a sentence for each whose value the API server would refuse; what is unknown is left out."""
    first = server.chips[0] if server.chips else None
    wanted = {
        ACCELERATOR: _ACCELERATOR,
        ACCELERATOR_TYPE: _INFERENCE_CARD if server.board_id in _INFERENCE_BOARDS else "",
        CHIP_NAME: first.chip_name if first is not None else "",
        CHIP_MEMORY: f"{first.hbm_mb // _MB_PER_GB}G" if first is not None and first.hbm_mb else "",
        DRIVER_VERSION: server.driver_version,
        SERVER_TYPE_LABEL: f"{server.chip_type}-{server.ai_cores}" if server.ai_cores else "",
        SUPER_POD_LABEL: (
            str(server.super_pod_id) if server.chip_type == "Ascend910A3" and server.super_pod_id >= 0 else ""
        ),
    }
    labels, problems = {}, []
    for key, value in wanted.items():
        if value and _LABEL_VALUE.fullmatch(value) is None:
            problems.append(f"label {key}: {value!r} is not a label value")
        elif value:
            labels[key] = value
    return labels, problems


def node_annotations(snapshot: Snapshot) -> dict[str, str]:
    """The annotations (spec/node-agent.md §0.2, §5.8)."""
    return {
        BASE_DEVICE_INFOS: write_base_device_infos({chip.chip_id: chip.address for chip in snapshot.chips}),
        SUPER_POD_ID: str(snapshot.server.super_pod_id),
        SERVER_INDEX: str(snapshot.server.server_index),
        SERVER_TYPE: "A3" if snapshot.server.chip_type == "Ascend910A3" else "",
    }
