"""Finds out when the Node shows chips that became healthy, so that the report may list them as free.

The kubelet updates its Node every ten seconds by default (``nodeStatusUpdateFrequency``). Until then Volcano calls a
node "not stable" that reports more chips, and kube-scheduler does not know of the chips
(docs/spec/node-report.md#stable-device-count).
"""

import asyncio

import structlog

from ascend.chips import chip_ids, join_names
from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import NODES
from device_plugin.publish.order import PublishingOrder

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

POLL_S = 1.0
LIMIT_S = 60.0
"""After this time the chips count as shown: something else may keep the number on the Node low."""


class ShownChips:
    """Polls the Node, only while the kubelet may not have shown some chips there yet.

    Args:
        client: the API server.
        node: the node's name.
        order: has the chips, and is told which are shown.
        poll_s: seconds between two looks.
        limit_s: the longest time that chips are waited for, in seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        node: str,
        order: PublishingOrder,
        *,
        poll_s: float = POLL_S,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._client = client
        self._node = node
        self._order = order
        self._poll_s = poll_s
        self._limit_s = limit_s

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        since_s: float | None = None
        while True:
            version, sent = self._order.unshown.version, self._order.advertised.value
            if not (unshown := self._order.unshown.value):
                since_s = None
                await self._order.unshown.newer_than(version)
                continue
            since_s = loop.time() if since_s is None else since_s
            await asyncio.sleep(self._poll_s)
            if await self._shows(sent.bit_count()):
                self._order.shown(sent)
            elif loop.time() >= since_s + self._limit_s:
                log.warning("the Node does not show chips that are healthy", chips=join_names(chip_ids(unshown)))
                self._order.shown(sent)

    async def _shows(self, count: int) -> bool:
        """Whether the Node has at least so many allocatable chips."""
        try:
            node = await self._client.get(NODES, self._node)
        except (ApiError, Unreachable) as error:
            log.info("the Node can't be read", error=str(error))
            return False
        return (node.allocatable_chips or 0) >= count
