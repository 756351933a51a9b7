"""Reads MindCluster ClusterD's reports on nodes, and combines them with the reports of the nodes' own agents.

ClusterD collects the reports of all nodes, adds faults that others tell it, and leaves out those that a job's processes
are repairing (docs/spec/scheduling.md#configmaps, docs/spec/rescheduling.md#fault-inputs).
"""

from collections.abc import Callable
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from allocator.state.report import (
    NO_REPORT,
    NODE_INFO_PREFIX,
    NodeHealth,
    NodeReport,
    node_report,
    read_health,
)
from ascend.deviceinfo import NAME_PREFIX, read_device_list
from ascend.errors import UNREADABLE, InvalidReport, InvalidValue, Refusal
from ascend.kube.objects import ConfigMap

LABELS: Final = {"mx-consumer-volcano": "true"}
_DEVICES, _NODES, _SWITCHES = "cluster-info-device-", "cluster-info-node-cm", "cluster-info-switch-"
_SWITCH_INFO_PREFIX: Final = "mindx-dl-switchinfo-"

LAG_S: Final = 600
"""ClusterD follows within a second, and a node's report is renewed every 300 s. What ClusterD says of a node does not
count if the node's report is so much newer: ClusterD has ended, or does not see the node."""


class _Devices(msgspec.Struct, frozen=True):
    DeviceList: dict[str, str]
    UpdateTime: Annotated[int, msgspec.Meta(ge=0)]
    SuperPodID: int = -1
    ServerIndex: int = -1
    RackID: int = -1


class _Status(msgspec.Struct, frozen=True):
    NodeStatus: str = ""


class ClusterInfo:
    """What ClusterD says of each node.

    Attributes:
        unreadable: called with a sentence on what can't be read, and is ignored.
    """

    def __init__(self) -> None:
        self.unreadable: Callable[[str], None] = lambda _sentence: None
        # By the entry's key, such as mindx-dl-deviceinfo-<node>: the ConfigMap that has it, and its text.
        self._texts: dict[str, tuple[str, bytes]] = {}
        self._reports: dict[str, NodeReport] = {}
        self._healths: dict[str, NodeHealth] = {}

    def apply(self, config_map: ConfigMap) -> set[str]:
        """Take over a ConfigMap; return the nodes about which it says something else than before."""
        prefix = _prefix(config_map.name)
        return set() if prefix is None else self._take(config_map, prefix, self._split(config_map))

    def delete(self, config_map: ConfigMap) -> set[str]:
        """Forget a ConfigMap; return the nodes that it was about."""
        prefix = _prefix(config_map.name)
        return set() if prefix is None else self._take(config_map, prefix, {})

    def sources(self, node: str) -> set[str]:
        """Return the names of the ConfigMaps that say something of a node."""
        keys = (prefix + node for prefix in (NAME_PREFIX, NODE_INFO_PREFIX, _SWITCH_INFO_PREFIX))
        return {self._texts[key][0] for key in keys if key in self._texts}

    def combine(self, node: str, own: NodeReport | Refusal) -> NodeReport | Refusal:
        """Return the report of a node's device plugin with what ClusterD says of the node.

        A chip that either of them reports as unhealthy is not given. Whether a pod is faulty depends on ClusterD, as
        far as it has seen the report: it leaves out faults that are being repaired.
        """
        said = self._reports.get(f"{NAME_PREFIX}{node}")
        if said is None or isinstance(own, Refusal) or own is NO_REPORT:
            return own
        own_s, said_s = own.updated_s or 0, said.updated_s or 0
        if said_s + LAG_S < own_s:
            return own
        switches = self._healths.get(f"{_SWITCH_INFO_PREFIX}{node}", NodeHealth.HEALTHY)
        return replace(
            own,
            unhealthy=own.unhealthy | said.unhealthy,
            network_unhealthy=own.network_unhealthy | said.network_unhealthy,
            pre_separate=own.pre_separate | said.pre_separate,
            health=max(own.health, said.health, switches),
            agent=self._healths.get(f"{NODE_INFO_PREFIX}{node}", NodeHealth.HEALTHY),
            faults=said.faults if said_s >= own_s else own.faults,
            super_pod=own.super_pod if own.super_pod >= 0 else said.super_pod,
            server_index=own.server_index if own.server_index >= 0 else said.server_index,
            rack=own.rack if own.rack >= 0 else said.rack,
        )

    def _split(self, config_map: ConfigMap) -> dict[str, bytes]:
        """The texts of the entries by key; none if the whole can't be read."""
        try:
            entries = msgspec.json.decode(config_map.data.get(config_map.name) or "{}", type=dict[str, msgspec.Raw])
        except UNREADABLE as error:
            self.unreadable(f"ConfigMap {config_map.key}: {error}")
            return {}
        return {key: bytes(raw) for key, raw in entries.items()}

    def _take(self, config_map: ConfigMap, prefix: str, texts: dict[str, bytes]) -> set[str]:
        changed = set()
        for key, text in texts.items():
            if key.startswith(prefix) and self._texts.get(key, ("", b""))[1] != text:
                self._read(config_map, key, text)
                changed.add(key.removeprefix(prefix))
        # A node may have moved to another ConfigMap before this one was changed.
        mine = [key for key, (name, _) in self._texts.items() if name == config_map.name and key not in texts]
        for key in mine:
            del self._texts[key]
            self._forget(key)
            changed.add(key.removeprefix(prefix))
        self._texts |= {key: (config_map.name, text) for key, text in texts.items() if key.startswith(prefix)}
        return changed

    def _forget(self, key: str) -> None:
        self._reports.pop(key, None)
        self._healths.pop(key, None)

    def _read(self, config_map: ConfigMap, key: str, text: bytes) -> None:
        self._forget(key)
        try:
            if key.startswith(NAME_PREFIX):
                said = msgspec.json.decode(text, type=_Devices)
                listed = read_device_list(said.DeviceList, said.UpdateTime, said.SuperPodID, said.ServerIndex)
                self._reports[key] = replace(node_report(listed), rack=said.RackID)
            else:
                self._healths[key] = read_health(msgspec.json.decode(text, type=_Status).NodeStatus)
        except (InvalidReport, InvalidValue, *UNREADABLE) as error:
            self.unreadable(f"ConfigMap {config_map.key}: {key}: {error}")


def is_cluster_info(config_map: str) -> bool:
    """Whether a ConfigMap of this name is one of ClusterD's."""
    return _prefix(config_map) is not None


def _prefix(name: str) -> str | None:
    """The prefix of the keys in a ConfigMap of this name, before the name of the node; None for other ConfigMaps."""
    if name == _NODES:
        return NODE_INFO_PREFIX
    if name.startswith(_DEVICES):
        return NAME_PREFIX
    return _SWITCH_INFO_PREFIX if name.startswith(_SWITCHES) else None
