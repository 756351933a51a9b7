"""What a node's agents report of it: its device plugin of the chips, NodeD of the node as a whole.

The device plugin writes the ConfigMap ``kube-system/mindx-dl-deviceinfo-<node>``, NodeD writes
``mindx-dl/mindx-dl-nodeinfo-<node>`` (spec/scheduling.md §2.1, §2.3; spec/superpod.md §2.1). Both carry a CheckCode,
the SHA-256 of what is told; where it is wrong, nothing of it is believed.
"""

import hashlib
from enum import IntEnum
from typing import Final

import msgspec

from ascend.chips import ChipSet
from ascend.deviceinfo import SWITCH_INFO, decode_report
from ascend.errors import UNREADABLE, InvalidReport, Refusal
from ascend.faults import read_separating
from ascend.kube.objects import ConfigMap
from ascend.reasons import Reason

NODE_INFO_PREFIX: Final = "mindx-dl-nodeinfo-"
NODE_INFO: Final = "NodeInfo"
HEALTH_ANNOTATION: Final = "NodeHealthyStatus"
"""On a node, by its agent or an operator: how the node is as a whole."""

_SUB_HEALTH_FAULT = "SubHealthFault"


class NodeHealth(IntEnum):
    """How a node is as a whole; the larger, the worse."""

    HEALTHY = 0
    SUB_HEALTHY = 1
    SEPARATING = 2
    UNHEALTHY = 3


_HEALTH = {
    "subhealthy": NodeHealth.SUB_HEALTHY,
    "preseparate": NodeHealth.SEPARATING,
    "unhealthy": NodeHealth.UNHEALTHY,
}


class NodeReport(msgspec.Struct, frozen=True):
    """What a device plugin reports, as far as placing pods depends on it.

    Attributes:
        unhealthy: the chips not to be used: unhealthy, being reset, or taken out.
        network_unhealthy: those no good for distributed jobs.
        updated_s: when it was made, Unix seconds; None for no report.
        health: what the server's switches and faults that only slow a chip down make of the node.
        separating: the chips that the pods which hold them may keep, and no other may have.
        named: every chip it names: all but some of those that pods hold.
    """

    unhealthy: ChipSet
    network_unhealthy: ChipSet
    updated_s: int | None
    health: NodeHealth = NodeHealth.HEALTHY
    separating: ChipSet = 0
    named: ChipSet = 0


NO_REPORT: Final = NodeReport(0, 0, None)


class _Switches(msgspec.Struct, frozen=True):
    NodeStatus: str = ""


class _NodeStatus(msgspec.Struct, frozen=True):
    NodeStatus: str = ""


class _NodeInfo(msgspec.Struct, frozen=True):
    NodeInfo: msgspec.Raw
    CheckCode: str = ""


def read_health(status: str) -> NodeHealth:
    """How a node is, in the words of its agents; an unknown word says nothing, as in the reference."""
    return _HEALTH.get(status.strip().lower(), NodeHealth.HEALTHY)


def read_report(config_map: ConfigMap) -> NodeReport | Refusal:
    """What a node's device plugin reports, or why it can't be trusted."""
    try:
        decoded = decode_report(config_map.data)
        separating = read_separating(decoded.faults)
        switches = msgspec.json.decode(config_map.data.get(SWITCH_INFO) or "{}", type=_Switches)
    except (InvalidReport, *UNREADABLE) as error:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: {error}")
    slowed = any(fault.fault_handling == _SUB_HEALTH_FAULT for fault in decoded.faults)
    return NodeReport(
        decoded.unhealthy | decoded.recovering | decoded.manually_separated,
        decoded.network_unhealthy,
        decoded.update_time_s,
        max(read_health(switches.NodeStatus), NodeHealth.SUB_HEALTHY if slowed else NodeHealth.HEALTHY),
        separating,
        decoded.free | decoded.unhealthy | decoded.network_unhealthy | decoded.recovering | separating,
    )


def node_of_health(config_map: str) -> str | None:
    """The node a ConfigMap of this name tells the health of, or None if it is another ConfigMap."""
    return config_map.removeprefix(NODE_INFO_PREFIX) if config_map.startswith(NODE_INFO_PREFIX) else None


def read_agent_health(config_map: ConfigMap) -> NodeHealth | Refusal:
    """What a node's agent says of the node, or why it can't be read."""
    text = config_map.data.get(NODE_INFO)
    if text is None:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: the key {NODE_INFO} is missing")
    try:
        told = msgspec.json.decode(text, type=_NodeInfo)
        # Over the very bytes NodeD wrote: what it tells of a node differs between its versions.
        expected = hashlib.sha256(told.NodeInfo).hexdigest()
        if told.CheckCode != expected:
            raise InvalidReport(f"CheckCode is {told.CheckCode!r}, its content gives {expected!r}")
        return read_health(msgspec.json.decode(told.NodeInfo, type=_NodeStatus).NodeStatus)
    except (InvalidReport, *UNREADABLE) as error:
        return Refusal(Reason.INVALID_REPORT, f"ConfigMap {config_map.key}: {NODE_INFO}: {error}")
