"""Finds out when the Node shows chips that became healthy, so that the report may list them as free.

The kubelet updates its Node every ten seconds by default (``nodeStatusUpdateFrequency``). Until then Volcano calls a
node "not stable" that reports more chips, and kube-scheduler does not know of the chips
(docs/spec/node-report.md#stable-device-count).
"""

import structlog

from ascend.chips import chip_ids, join_names
from ascend.daemon.observable import Observable, wait_until
from device_plugin.publish.node_object import OwnNode
from device_plugin.publish.order import PublishingOrder

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LIMIT_S = 60.0
"""After this time the chips count as shown: something else may keep the number on the Node low."""


class ShownChips:
    """Compares the Node with the kubelet's list while the Node may not show some chips yet.

    Args:
        node: the Node as last seen.
        order: has the chips, and is told which are shown.
        limit_s: the longest time that chips are waited for, in seconds.
    """

    def __init__(self, node: Observable[OwnNode], order: PublishingOrder, *, limit_s: float = LIMIT_S) -> None:
        self._node = node
        self._order = order
        self._limit_s = limit_s

    async def run(self) -> None:
        """Compare until cancelled."""
        order = self._order
        while True:
            await wait_until(lambda: order.unshown.value != 0, (order.unshown,))
            sources = (order.unshown, order.advertised, self._node)
            if not await wait_until(lambda: not order.unshown.value or self._shows_all(), sources, self._limit_s):
                names = join_names(chip_ids(order.unshown.value))
                log.warning("the Node does not show chips that are healthy", chips=names)
            order.shown(order.advertised.value)

    def _shows_all(self) -> bool:
        """Whether the Node has at least as many allocatable chips as the kubelet was sent healthy ones."""
        return (self._node.value.allocatable_chips or 0) >= self._order.advertised.value.bit_count()
