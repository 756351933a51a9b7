"""Decides which is updated first after a change: the kubelet (ListAndWatch) or the report.

The report must never list more free chips than the kubelet offers: Volcano refuses such a node as "not stable"
(docs/spec/node-report.md#stable-device-count), and a scheduler that relies on the report would still allocate a faulty
chip. So:

1. A chip that becomes unhealthy goes into the report first, and into the kubelet's list after that.
2. A chip that becomes healthy goes into the kubelet's list first. The kubelet updates its Node every ten seconds by
   default; until the Node shows the chip, the report has it as recovering.
3. At the start the kubelet offers nothing. If all chips are healthy, the first report waits for the first list, so that
   it need not be written twice.

One side at most waits for the other at any time: with an unhealthy chip that is not reported it is the kubelet's list,
otherwise the report. The limits below only apply while the other side is away.
"""

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable, wait_until
from device_plugin.health.snapshot import Snapshot

REPORT_WAIT_S = 2.0
"""How long a list waits for the report at most: the API server may be away."""
KUBELET_WAIT_S = 1.0
"""How long the first report waits for the first list at most: the kubelet may be away."""


class PublishingOrder:
    """Lets the kubelet's list and the report wait for each other; see the rule above.

    Args:
        reported: the devices whose health the report has in any case: for vNPUs, which it does not list, all.
    """

    def __init__(self, *, reported: ChipSet = 0) -> None:
        self.advertised: Observable[ChipSet] = Observable(0)
        """The healthy chips in the last list the kubelet was sent; version 0 before the first list."""
        self.reported_unhealthy: Observable[ChipSet] = Observable(reported)
        """The chips that the last report that was written keeps from new pods."""
        self.unshown: Observable[ChipSet] = Observable(0)
        """The chips that became healthy in the kubelet's list, and that its Node may not show yet."""
        self._begun = False

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

    @property
    def withheld(self) -> ChipSet:
        """All chips that the kubelet does not offer, or its Node may not show yet; none before the first list."""
        return ~self.advertised.value | self.unshown.value if self._begun else 0

    def sent(self, healthy: ChipSet) -> None:
        """Take over that the kubelet was sent a list with these healthy chips.

        The first chips count as shown at once. That is right for a server that starts: nothing is placed on it before
        its Node shows chips. After a restart of the plugin the Node may show fewer chips than the report for up to the
        kubelet's status period (10 s by default).
        """
        new = healthy & ~self.advertised.value if self._begun else 0
        self._begun = self._begun or healthy != 0
        unshown = (self.unshown.value | new) & healthy
        if unshown != self.unshown.value:
            self.unshown.set(unshown)
        self.advertised.set(healthy)

    def shown(self, healthy: ChipSet) -> None:
        """Note the chips that the Node shows and that the kubelet was sent as healthy."""
        if self.unshown.value & healthy:
            self.unshown.set(self.unshown.value & ~healthy)

    def _is_ahead_of_report(self, snapshot: Snapshot) -> bool:
        return bool(snapshot.all_chips & ~snapshot.sent_healthy & ~self.reported_unhealthy.value)


class CoreOrder(PublishingOrder):
    """The order for lists of AI cores: the report is about their chips.

    The kubelet's list has no number of a chip, and schedulers don't compare the number of free AI cores with the report
    (docs/spec/vnpu.md#static-vnpus): that the Node shows a chip again is not waited for.

    Args:
        chips: the node's chips.
        order: that of the chips.
    """

    def __init__(self, chips: Observable[Snapshot | None], order: PublishingOrder) -> None:
        super().__init__(reported=-1)
        self._chips = chips
        self._order = order

    async def wait_before_list(self, snapshot: Snapshot, ending: Observable[bool]) -> None:
        """Wait until the report has the unhealthy chips."""
        await self._order.wait_before_list(self._chips.value or snapshot, ending)

    def sent(self, healthy: ChipSet) -> None:  # noqa: ARG002 - numbers of cores
        """Take over that the kubelet was sent a list."""
        if (chips := self._chips.value) is not None:
            self._order.sent(chips.sent_healthy)
            self._order.shown(chips.sent_healthy)
