"""What is reported of the nodes: by their device plugins, by NodeD, and by ClusterD."""

from collections.abc import Callable, Iterable, Mapping

from allocator.state.cluster_info import ClusterInfo
from allocator.state.node import NodeRecord
from allocator.state.report import NO_REPORT, NodeHealth, node_of_health, read_agent_health, read_report
from allocator.state.report_ages import ReportAges
from ascend.deviceinfo import node_name
from ascend.kube.objects import ConfigMap


class NodeReports:
    """Keeps the reports in the records of the nodes.

    Args:
        records: the records by name of the node.
        ages: judges how old reports are.
        record: returns the record of a node, made if there is none.
        changed: called with the name of a node after its record was changed.
        removed: the same after something was removed from the record.

    Attributes:
        info: what ClusterD says of the nodes.
    """

    def __init__(
        self,
        records: Mapping[str, NodeRecord],
        ages: ReportAges,
        *,
        record: Callable[[str], NodeRecord],
        changed: Callable[[str], None],
        removed: Callable[[str], None],
    ) -> None:
        self._records = records
        self._ages = ages
        self._record = record
        self._changed = changed
        self._removed = removed
        self.info = ClusterInfo()

    def apply(self, config_map: ConfigMap) -> None:
        """Add or update a node's device report; other ConfigMaps are ignored."""
        name = node_name(config_map.name)
        if name is not None:
            record = self._record(name)
            record.own_report = read_report(config_map)
            record.report = self.info.combine(name, record.own_report)
            self._ages.note(record)
            self._changed(name)

    def delete(self, config_map: ConfigMap) -> None:
        """Remove a node's device report; then only the node's annotation counts, if it has one."""
        name = node_name(config_map.name)
        if name is not None:
            record = self._record(name)
            record.own_report = record.report = NO_REPORT
            record.stale, record.seen = None, None
            self._removed(name)

    def health_applied(self, config_map: ConfigMap) -> None:
        """Add or update the health that a node's agent reports; other ConfigMaps are ignored."""
        name = node_of_health(config_map.name)
        if name is not None:
            self._record(name).health = read_agent_health(config_map)
            self._changed(name)

    def health_deleted(self, config_map: ConfigMap) -> None:
        """Remove the health that a node's agent reports."""
        name = node_of_health(config_map.name)
        if name is not None:
            self._record(name).health = NodeHealth.HEALTHY
            self._removed(name)

    def info_applied(self, config_map: ConfigMap) -> None:
        """Add or update what ClusterD says of nodes; other ConfigMaps are ignored."""
        self._combine(self.info.apply(config_map))

    def info_deleted(self, config_map: ConfigMap) -> None:
        """Remove what ClusterD says of nodes."""
        self._combine(self.info.delete(config_map))

    def age(self) -> list[str]:
        """Reject reports that have become too old; returns the names of their nodes. Call it periodically."""
        aged: list[str] = []
        for name in self._ages.overdue():
            record = self._records.get(name)
            if record is not None and record.stale is None and record.updated_s is not None:
                self._ages.judge(record)
                if record.stale is not None:
                    self._changed(record.name)
                    aged.append(record.name)
        return aged

    def _combine(self, names: Iterable[str]) -> None:
        for name in names:
            record = self._records.get(name)
            if record is not None and (report := self.info.combine(name, record.own_report)) != record.report:
                record.report = report
                self._changed(name)
