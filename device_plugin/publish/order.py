"""Decides which is updated first after a change: the kubelet (ListAndWatch) or the report.

The report must never list more free chips than the kubelet offers: Volcano refuses such a node as "not stable"
(docs/spec/node-report.md#stable-device-count), and a scheduler that relies on the report would still allocate a faulty
chip. So:

1. A chip that becomes unhealthy goes into the report first, and into the kubelet's list after that.
2. A chip that becomes healthy goes into the kubelet's list first, and the report lists it as free once the kubelet has
   had ``NODE_UPDATE_S`` to update its Node.
3. At the start the kubelet offers nothing. If all chips are healthy, the first report waits for the first list, so that
   it need not be written twice.

One side at most waits for the other at any time: with an unhealthy chip that is not reported it is the kubelet's list,
otherwise the report. The limits below only apply while the other side is away.
"""

import math

from ascend.chips import ChipSet, chip_ids, chip_set
from ascend.daemon.observable import Observable, wait_until
from device_plugin.health.snapshot import Snapshot

REPORT_WAIT_S = 2.0
"""How long a list waits for the report at most: the API server may be away."""
KUBELET_WAIT_S = 1.0
"""How long the first report waits for the first list at most: the kubelet may be away."""
NODE_UPDATE_S = 1.5
"""How long the kubelet may take to show a chip on its Node that became healthy."""


class PublishingOrder:
    """Lets the kubelet's list and the report wait for each other; see the rule above."""

    def __init__(self) -> None:
        self.advertised: Observable[ChipSet] = Observable(0)
        """The healthy chips in the last list the kubelet was sent; version 0 before the first list."""
        self.reported_unhealthy: Observable[ChipSet] = Observable(0)
        """The unhealthy chips in the last report that was written."""
        self.due_s = math.inf
        """When the report may list the next chip as free, on the clock of ``offered``; infinite if there is none."""
        self._begun = False
        self._since_s: dict[int, float] = {}  # by advertised chip: since when

    async def wait_before_list(self, snapshot: Snapshot, ending: Observable[bool]) -> None:
        """Wait until the report has the snapshot's unhealthy chips, the stream is to end, or the limit is reached."""
        await wait_until(
            lambda: not self._is_ahead_of_report(snapshot) or ending.value,
            (self.reported_unhealthy, ending),
            REPORT_WAIT_S,
        )

    async def wait_before_first_report(self, snapshots: Observable[Snapshot | None]) -> None:
        """Wait until the first list is sent, a chip is unhealthy, or the limit is reached."""

        def may_report() -> bool:
            snapshot = snapshots.value
            return self.advertised.version > 0 or (snapshot is not None and self._is_ahead_of_report(snapshot))

        await wait_until(may_report, (self.advertised, snapshots), KUBELET_WAIT_S)

    def offered(self, now_s: float) -> ChipSet:
        """Return the chips that the report may list as free: the kubelet has had time to show them on its Node.

        A chip that becomes healthy counts after ``NODE_UPDATE_S``; one that becomes unhealthy stops counting at once.
        """
        advertised = self.advertised.value
        # At the start no reader relies on the node yet, so its first chips count at once.
        since_s = now_s if self._begun else -math.inf
        self._begun = self._begun or advertised != 0
        self._since_s = {chip: self._since_s.get(chip, since_s) for chip in chip_ids(advertised)}
        counts_s = {chip: since + NODE_UPDATE_S for chip, since in self._since_s.items()}
        self.due_s = min((due_s for due_s in counts_s.values() if due_s > now_s), default=math.inf)
        return chip_set(chip for chip, due_s in counts_s.items() if due_s <= now_s)

    def _is_ahead_of_report(self, snapshot: Snapshot) -> bool:
        return bool(snapshot.unhealthy & ~self.reported_unhealthy.value)
