"""What is reported of the nodes: by their device plugins, by NodeD, and by ClusterD; and which reports are too old."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime

from allocator.state.cluster_info import ClusterInfo
from allocator.state.node import NodeRecord
from allocator.state.report import NO_REPORT, NodeHealth, node_of_health, read_agent_health, read_report
from ascend.deviceinfo import node_name
from ascend.errors import Refusal
from ascend.kube.objects import ConfigMap
from ascend.reasons import Reason


class ReportAges:
    """Judges the age of the nodes' reports: a report that the device plugin does not renew is rejected.

    Args:
        clock: the clock, in seconds.
        max_age_s: the greatest age. It runs on ``clock`` from the last change seen of the report's UpdateTime, as the
            age of a lease does: the clock of a node may be wrong. So after a restart a report is believed once more for
            this time.
        reported_s: when a report was written that is seen for the first time, on ``clock``, from the node's name and
            the report's UpdateTime; now if not given.
    """

    def __init__(
        self, clock: Callable[[], float], max_age_s: float, reported_s: Callable[[str, int], float] | None
    ) -> None:
        self._clock = clock
        self.max_age_s = max_age_s
        self._reported_s = reported_s if reported_s is not None else lambda _node, _updated_s: clock()
        self._ageing: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def note(self, record: NodeRecord) -> None:
        """A report was read."""
        if record.updated_s is not None and (record.seen is None or record.seen[0] != record.updated_s):
            is_first = record.seen is None
            seen_s = self._reported_s(record.name, record.updated_s) if is_first else self._clock()
            record.seen = record.updated_s, seen_s
        self.judge(record)

    def judge(self, record: NodeRecord) -> None:
        """Judge whether the report of a node is too old."""
        record.stale = None
        if record.updated_s is None or record.seen is None:
            return
        _, seen_s = record.seen
        record.stale = judge_freshness(record.name, record.updated_s, self._clock() - seen_s, self.max_age_s)
        expires_s = seen_s + self.max_age_s
        # One entry per node: if its report was renewed, it is entered again when the entry comes up.
        if record.stale is None and expires_s < self._due.get(record.name, math.inf):
            heapq.heappush(self._ageing, (expires_s, record.name))
            self._due[record.name] = expires_s

    def overdue(self) -> Iterator[str]:
        """Yield the nodes whose reports may have become too old since the last call; the caller judges each of them."""
        now_s = self._clock()
        while self._ageing and self._ageing[0][0] < now_s:
            due_s, name = heapq.heappop(self._ageing)
            if self._due.get(name) == due_s:  # else replaced by an earlier entry
                del self._due[name]
                yield name


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


def judge_freshness(node: str, updated_s: int, age_s: float, max_age_s: float) -> Refusal | None:
    """Why a report is too old; None if it is not.

    Args:
        node: the node's name.
        updated_s: when the report was written by the node's clock, Unix seconds; a device plugin writes 0 when it ends.
        age_s: for how long it has not changed.
        max_age_s: the greatest allowed age; a device plugin writes its report every five minutes
            (docs/spec/node-report.md#freshness).
    """
    if updated_s == 0:
        return Refusal(
            Reason.STALE_REPORT, f"the device plugin of node {node} has ended: the health of its chips is unknown"
        )
    if age_s <= max_age_s:
        return None
    since = datetime.fromtimestamp(updated_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return Refusal(
        Reason.STALE_REPORT,
        f"the report of node {node} is too old, written {since} by its clock: its device plugin does not renew it",
    )
