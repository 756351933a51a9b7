"""Judges the age of the nodes' reports: a report that the device plugin does not renew is rejected."""

import heapq
import math
from collections.abc import Callable, Iterator

from allocator.state.node import NodeRecord, judge_freshness


class ReportAges:
    """Follows the ages of reports.

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
