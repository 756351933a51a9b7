"""Reads what a node's agents report: its device plugin about the chips, NodeD about the node as a whole.

The device plugin writes the ConfigMap ``kube-system/mindx-dl-deviceinfo-<node>``, NodeD writes
``mindx-dl/mindx-dl-nodeinfo-<node>`` (docs/spec/scheduling.md#configmaps, docs/spec/scheduling.md#node-state;
docs/spec/rescheduling.md#fault-inputs). Both have a CheckCode, the SHA-256 of their content; a report with a wrong one
is rejected.
"""

import hashlib
import re
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from ascend.annotations import UNKNOWN
from ascend.chips import ChipSet, chip_ids, parse_chip_name, parse_chip_or_vnpu
from ascend.deviceinfo import DEVICE_INFO, OUR_PLUGIN, SWITCH_INFO, WRITTEN_BY, DeviceReport, decode_report
from ascend.errors import UNREADABLE, InvalidReport, InvalidValue, Refusal
from ascend.faults import FAULT_LIST, read_pre_separate
from ascend.kube.objects import ConfigMap
from ascend.reasons import Reason

NODE_INFO_PREFIX: Final = "mindx-dl-nodeinfo-"
NODE_INFO: Final = "NodeInfo"
HEALTH_ANNOTATION: Final = "NodeHealthyStatus"
"""A node annotation, written by its agent or an operator: the health of the node as a whole."""

_VNPU: Final = re.compile(r"Ascend910-[^-,\"]+-")
_SUB_HEALTH_FAULT = "SubHealthFault"
_UNKNOWN_LEVEL = "SeparateNPU"
"""With it, an entry without a code stands for a chip about which nothing is known."""


class NodeHealth(IntEnum):
    """The health of a node as a whole; a larger value is worse."""

    HEALTHY = 0
    SUB_HEALTHY = 1
    PRE_SEPARATE = 2
    UNHEALTHY = 3


_HEALTH = {
    "subhealthy": NodeHealth.SUB_HEALTHY,
    "preseparate": NodeHealth.PRE_SEPARATE,
    "unhealthy": NodeHealth.UNHEALTHY,
}


class NodeReport(msgspec.Struct, frozen=True, gc=False):
    """What a device plugin reports, as far as placement depends on it.

    Attributes:
        unhealthy: the chips that must not be used: unhealthy, being reset, or separated manually.
        network_unhealthy: the chips that distributed jobs can't use.
        updated_s: when it was written, Unix seconds; None if there is no report.
        health: the health of the node, from the state of its switches and from faults of level SubHealthFault.
        pre_separate: the chips with a fault of level PreSeparateNPU: a pod that holds one keeps it, no new pod gets it.
        faults: the chips in the list of unhealthy ones, with their fault codes. Not those about which the device plugin
            only knows nothing (docs/deviations.md).
        free: the chips that are healthy, whole, and held by nobody as far as it knows.
        listed: every chip in one of its lists; chips that pods hold may be missing.
        super_pod: the id of the node's SuperPod; negative if it is unknown, or the node is in none.
        server_index: the node's index within it.
        rack: the id of the node's rack; negative if it is unknown.
        agent: the health that the node's agent reports, as far as ClusterD says it.
        is_ours: whether this project's device plugin wrote it: that gives a pod nothing that is not written on it.
    """

    unhealthy: ChipSet
    network_unhealthy: ChipSet
    updated_s: int | None
    health: NodeHealth = NodeHealth.HEALTHY
    pre_separate: ChipSet = 0
    faults: dict[int, str] = {}
    free: ChipSet = 0
    listed: ChipSet = 0
    super_pod: int = UNKNOWN
    server_index: int = UNKNOWN
    rack: int = UNKNOWN
    agent: NodeHealth = NodeHealth.HEALTHY
    is_ours: bool = False


NO_REPORT: Final = NodeReport(0, 0, None)


class _NodeStatus(msgspec.Struct, frozen=True):
    NodeStatus: str = ""


class _DeviceInfo(msgspec.Struct, frozen=True):
    DeviceList: dict[str, str]


class _DeviceInfoCfg(msgspec.Struct, frozen=True):
    DeviceInfo: _DeviceInfo


class _NodeInfo(msgspec.Struct, frozen=True):
    NodeInfo: msgspec.Raw
    CheckCode: str = ""


def read_health(status: str) -> NodeHealth:
    """The health that a status of a node's agent stands for; an unknown status means healthy, as in the reference."""
    return _HEALTH.get(status.strip().lower(), NodeHealth.HEALTHY)


def read_report(config_map: ConfigMap) -> NodeReport | Refusal:
    """Read the report of a node's device plugin; a refusal if it is invalid."""
    try:
        decoded = decode_report(config_map.data)
        switches = msgspec.json.decode(config_map.data.get(SWITCH_INFO) or "{}", type=_NodeStatus)
        is_ours = config_map.metadata.annotations.get(WRITTEN_BY) == OUR_PLUGIN
        read = node_report(decoded, read_health(switches.NodeStatus), is_ours=is_ours)
        text = config_map.data[DEVICE_INFO]
        if _VNPU.search(text) is None:
            return read
        # A chip of which only a vNPU is listed is cut: it must not count as a whole one.
        lists = msgspec.json.decode(text, type=_DeviceInfoCfg).DeviceInfo.DeviceList
        return msgspec.structs.replace(read, listed=_named_whole(lists))
    except (InvalidReport, *UNREADABLE) as error:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: {error}")


def _named_whole(lists: Mapping[str, str]) -> ChipSet:
    """The chips that lists name as a whole, not only as a vNPU's."""
    chips: ChipSet = 0
    for key, text in lists.items():
        for name in text.split(",") if key != FAULT_LIST else ():
            try:
                chips |= 1 << parse_chip_name(name.strip())
            except InvalidValue:
                continue  # a vNPU
    return chips


def node_report(
    decoded: DeviceReport, switches: NodeHealth = NodeHealth.HEALTHY, *, is_ours: bool = False
) -> NodeReport:
    """Return what counts of a report, with the health of the node's switches, and whether our device plugin wrote it.

    Raises:
        InvalidReport: its list of faults names something else than chips.
    """
    pre_separate = read_pre_separate(decoded.faults)
    is_degraded = any(fault.fault_handling == _SUB_HEALTH_FAULT for fault in decoded.faults)
    return NodeReport(
        decoded.unhealthy | decoded.recovering | decoded.manually_separated,
        decoded.network_unhealthy,
        decoded.update_time_s,
        max(switches, NodeHealth.SUB_HEALTHY if is_degraded else NodeHealth.HEALTHY),
        pre_separate,
        _faults(decoded),
        decoded.free,
        decoded.free | decoded.unhealthy | decoded.network_unhealthy | decoded.recovering | pre_separate,
        decoded.super_pod_id,
        decoded.server_index,
        decoded.rack_id,
        is_ours=is_ours,
    )


def _faults(report: DeviceReport) -> dict[int, str]:
    """The unhealthy chips with their fault codes, without those about which nothing is known.

    This project's device plugin lists a chip that is silent or recovers with the level SeparateNPU and no code.
    """
    if not report.unhealthy:
        return {}
    codes: dict[int, list[str]] = {}
    unknown = 0
    for fault in report.faults:
        try:
            chip = parse_chip_or_vnpu(fault.npu_name)
        except InvalidValue:
            continue  # the list of unhealthy chips counts
        if fault.of_network:
            continue
        if fault.fault_code or fault.fault_level != _UNKNOWN_LEVEL:
            codes.setdefault(chip, []).append(fault.fault_code or fault.fault_level)
        else:
            unknown |= 1 << chip
    return {
        chip: ",".join(codes.get(chip, ()))
        for chip in chip_ids(report.unhealthy)
        if chip in codes or not unknown >> chip & 1
    }


def node_of_health(config_map: str) -> str | None:
    """The node whose health a ConfigMap of this name reports; None for other ConfigMaps."""
    return config_map.removeprefix(NODE_INFO_PREFIX) if config_map.startswith(NODE_INFO_PREFIX) else None


def read_agent_health(config_map: ConfigMap) -> NodeHealth | Refusal:
    """Read the health that a node's agent reports; a refusal if the report is invalid."""
    text = config_map.data.get(NODE_INFO)
    if text is None:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: the key {NODE_INFO} is missing")
    try:
        info = msgspec.json.decode(text, type=_NodeInfo)
        # Over the bytes that NodeD wrote: its fields differ between its versions.
        expected = hashlib.sha256(info.NodeInfo).hexdigest()
        if info.CheckCode != expected:
            raise InvalidReport(f"CheckCode is {info.CheckCode!r}, expected {expected!r}")
        return read_health(msgspec.json.decode(info.NodeInfo, type=_NodeStatus).NodeStatus)
    except (InvalidReport, *UNREADABLE) as error:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: {NODE_INFO}: {error}")
