"""The annotations that the programs share with each other and with MindCluster: keys and formats.

Keys and formats are those of MindCluster (docs/spec/node-report.md#node-annotations, docs/spec/hand-over.md;
docs/spec/scheduling.md#pod-annotations).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

import msgspec

from ascend.base_device_infos import ChipAddress
from ascend.chips import (
    ChipSet,
    chip_set,
    join_names,
    join_names_sorted,
)
from ascend.cores import Cut
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import RESOURCES, Vnpu

ALLOCATED = "huawei.com/Ascend910"
"""On a pod, by the allocator: its chips, in selection order."""

PREDICATE_TIME = "predicate-time"
"""On a pod, by the allocator: when it was decided, in Unix nanoseconds; the device plugin overwrites it by CLAIMED."""

REAL = "huawei.com/AscendReal"
"""On a pod, by the device plugin: the chips its containers were given."""

KUBELET_IDS = "huawei.com/kltDev"
"""On a pod, by the device plugin: the device ids that the kubelet has allocated to it."""

CONFIGURATION = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
"""On a pod, by the device plugin: addresses of its chips, for the builder of the rank table."""

REQUEUED = "ascend-affinity.io/requeued"
"""On a pending pod, by the allocator: when it last made the scheduler requeue the pod, in Unix nanoseconds."""

PLACEMENT_GATE = "ascend-affinity.io/placement"
"""In a pod's scheduling gates, by the allocator's webhook: removed once the pod's chips are reserved. A pod without any
other gate waits for chips; one with another gate is not there for the allocator."""

INDEPENDENT = "ascend-affinity.io/independent"
"""On a pod, its PodGroup or the object of its operator, by their author: with ``true`` the pods of the job don't
communicate collectively, whatever created them."""

MIXED_MODELS = "ascend-affinity.io/mixed-models"
"""On the same: with ``true`` a gang may be on chips of several models."""

NOMINATED = "ascend-affinity.io/nominated"
"""On a pending pod, by the allocator: the node that it wrote as ``status.nominatedNodeName``, in the same request."""

DISTRIBUTED = "distributed-job"
"""On a pod, by the allocator: whether its job has several pods that request chips, ``true`` or ``false``."""

RANK = "hccl/rankIndex"
"""On a pod, by its author, an operator or the allocator: its rank within its job."""

BACKUP_SOURCE = "backupSourcePodName"
"""On the backup pod of a hot switch: the name of the pod that it replaces."""

BLOCK = "super-pod-rank"
"""On a pod, by the allocator: the id of its block, for a job whose nodes form blocks."""

BLOCK_SUPER_POD = "super-pod-id"
"""On a pod, by the allocator: the id of the SuperPod of its block."""

SHARED_SWITCH, SWITCH_HEALTH, SHARED_SWITCH_IP = "isSharedTor", "isHealthy", "sharedTorIp"
"""On a pod, by the allocator: how its job uses its leaf switch, by version 2 of switch affinity."""

MIN_AVAILABLE = "huawei.com/schedule_minAvailable"
"""On a pod, by its author: how many pods of its job must be placed together, if no pod group sets it."""

FENCE = "ascend-affinity.io/allocator"
"""On a pod, by the allocator: which of several allocators bound it; admitted only while that allocator leads."""

POD_STATUS = "huawei.com/pod-status"
"""On a faulty pod that another program deletes, by the allocator: ``Unhealthy-`` and the kind of the fault."""


class Writer(StrEnum):
    """Who may write an annotation of a pod; an admission policy of the chart enforces it."""

    PROGRAMS = "the two programs"
    CREATOR = "who creates the pod, and the two programs"
    OTHERS = "the programs of other Ascend devices"


WRITERS: Mapping[str, Writer] = MappingProxyType(
    {
        # Chips, servers and leaf switches are counted by these, and jobs are placed and rescheduled by them.
        **dict.fromkeys(
            (ALLOCATED, RESOURCE_CORES, PREDICATE_TIME, REAL, KUBELET_IDS, CONFIGURATION, FENCE, REQUEUED, NOMINATED),
            Writer.PROGRAMS,
        ),
        **dict.fromkeys(
            (DISTRIBUTED, BLOCK, BLOCK_SUPER_POD, SHARED_SWITCH, SWITCH_HEALTH, SHARED_SWITCH_IP, POD_STATUS),
            Writer.PROGRAMS,
        ),
        # Operators create pods with their ranks, and so may a pod's author. Later it says where a pod is in its job.
        RANK: Writer.CREATOR,
        # As ALLOCATED, for devices that these programs do not serve: MindCluster's plugin and scheduler write them, and
        # containers may take ASCEND_VISIBLE_DEVICES from them.
        **dict.fromkeys(
            ("huawei.com/npu", "huawei.com/Ascend310", "huawei.com/Ascend310B", "huawei.com/Ascend310P"), Writer.OTHERS
        ),
    }
)
"""The annotations of pods that not everybody may write, without those of vNPUs (``ascend.vnpus.RESOURCES``), which only
the two programs write. All others are those of the pod's author."""

OURS = frozenset(key for key, writer in WRITERS.items() if writer is Writer.PROGRAMS)
"""On pods: written by the two programs only, besides the keys of vNPUs."""

SUPER_POD_ID = "superPodID"
SERVER_INDEX = "serverIndex"
RACK_ID = "rackID"
SERVER_TYPE = "serverType"

RESET_INFO = "ResetInfo"
"""On a node, by the device plugin: which chips people have to reset (docs/spec/faults.md#resetinfo)."""

RESETS = "ascend-affinity.io/hot-resets"
"""On a node, by the device plugin: when each group of chips was reset within the last hour, so that a restart does not
forget the limit: by the lowest physical id of the group, Unix seconds."""

CLAIMED = (1 << 64) - 1
"""The predicate-time of a pod that has been handed its chips (docs/spec/affinity-rules.md#after-the-hand-over)."""

UNKNOWN = -2
"""A SuperPod id, server index or device id that the driver does not report (docs/spec/node-report.md#deviceinfocfg)."""

_MOST_DIGITS = 10


@dataclass(frozen=True, slots=True)
class Grant:
    """What the allocator wrote on a pod: chips in selection order and the time of the decision.

    Attributes:
        chips: physical ids in selection order.
        predicate_time: Unix nanoseconds; None if the annotation is missing or invalid, which sorts last;
            ``CLAIMED`` once the device plugin has handed the chips over.
        vnpu: the vNPU that was written instead of chips; None if there is none.
        cut: the vNPU to be cut that was written instead of chips; None if there is none.
        cores: the AI cores, if these were requested; else 0.
    """

    chips: tuple[int, ...]
    predicate_time: int | None
    vnpu: Vnpu | None = None
    cut: Cut | None = None
    cores: int = 0

    @classmethod
    def of(cls, take: Take, predicate_time: int | None) -> "Grant":
        """What is written on a pod that takes this."""
        return cls(take.chips, predicate_time, take.vnpu, take.cut, take.cores)

    @property
    def chip_set(self) -> ChipSet:
        """The chips as a set."""
        return chip_set(self.chips)

    @property
    def take(self) -> Take:
        """What the pod takes."""
        part = self.vnpu or self.cut
        return Take.whole(self.chips, cores=self.cores) if part is None else Take.part(part)

    def annotations(self) -> dict[str, str]:
        """The two annotations as written on the pod."""
        key, value = ALLOCATED, join_names(self.chips)
        if self.vnpu is not None:
            key, value = self.vnpu.resource, self.vnpu.name
        elif self.cut is not None or self.cores:
            key, value = RESOURCE_CORES, self.cut.name if self.cut is not None else ",".join(map(str, self.chips))
        return {key: value, PREDICATE_TIME: str(self.predicate_time)}


def is_ours(key: str) -> bool:
    """Whether an annotation of a pod is written by the two programs only: it is one of ``OURS``, or names a vNPU."""
    return key in OURS or key in RESOURCES


def read_predicate_time(annotations: Mapping[str, str]) -> int | None:
    """The time of the decision in Unix nanoseconds, or ``CLAIMED``; None if it is missing or invalid."""
    text = annotations.get(PREDICATE_TIME, "")
    # Check the length first: Python refuses to convert thousands of digits, and a pod's author may write any value.
    if len(text) > len(str(CLAIMED)) or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= CLAIMED else None


def read_block(annotations: Mapping[str, str]) -> int | None:
    """The id of a pod's block; None if it is missing or invalid."""
    text = annotations.get(BLOCK, "")
    return int(text) if len(text) <= _MOST_DIGITS and text.isascii() and text.isdigit() else None


def read_switch_use(annotations: Mapping[str, str]) -> tuple[int, bool]:
    """How a pod's job uses its leaf switch: 0 (free), 1 (shared) or 2 (exclusive), and whether that is healthy.

    What is missing or invalid counts as 0 and as healthy.
    """
    use = annotations.get(SHARED_SWITCH, "")
    return int(use) if use in ("0", "1", "2") else 0, annotations.get(SWITCH_HEALTH) != "1"


def write_configuration(
    *,
    pod_name: str,
    pod_uid: str,
    host_ip: str,
    devices: Mapping[int, ChipAddress],
    super_pod_id: int = UNKNOWN,
    server_index: int = UNKNOWN,
    virtual: bool = False,
) -> str:
    """The pod annotation ``ascend-910-configuration``: JSON, devices by ascending id.

    See docs/spec/hand-over.md#configuration. ``host_ip`` is the node's internal address, and ``server_index`` its index
    within the SuperPod; devices are by physical id. With ``virtual`` they are vNPUs, which have no id in a SuperPod.
    """
    # The order of the keys is that of the wire.
    configuration = {
        "pod_name": pod_name,
        "server_id": pod_uid,
        "host_ip": host_ip,
        "super_pod_id": super_pod_id,
        "devices": [_configured_device(*chip_address, virtual=virtual) for chip_address in sorted(devices.items())],
        "rack_id": 0,
        "server_index": str(server_index),
        "server_ip": host_ip,
    }
    return msgspec.json.encode(configuration).decode()


def _configured_device(chip_id: int, address: ChipAddress, *, virtual: bool) -> dict[str, str]:
    if virtual:
        return {"device_id": str(chip_id), "device_ip": address.ip}
    unsigned = address.super_device_id
    signed = unsigned - (1 << 32) if unsigned >= 1 << 31 else unsigned
    return {"device_id": str(chip_id), "device_ip": address.ip, "super_device_id": str(signed)}


def write_claim(*, chips: Iterable[int], kubelet_ids: Iterable[int], configuration: str) -> dict[str, str]:
    """The annotations the device plugin writes in one patch when it hands chips over.

    See docs/spec/hand-over.md#claim, docs/spec/hand-over.md#configuration. The ids are physical: those the containers
    were given, and those that the kubelet has allocated; the configuration is that of ``write_configuration``.
    """
    return {
        PREDICATE_TIME: str(CLAIMED),
        REAL: join_names_sorted(chips),
        KUBELET_IDS: join_names_sorted(kubelet_ids),
        CONFIGURATION: configuration,
    }
