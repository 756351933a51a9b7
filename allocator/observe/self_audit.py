"""Compares the allocator's state with the API server's objects periodically, and counts the differences.

The cluster changes while the objects are read, so a difference may be a change in between: it counts if a second
comparison finds it again. Objects are read, and states compared, in parts of some milliseconds each.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from allocator.state.audit import Difference, compare_by_parts
from allocator.state.cluster import Cluster
from allocator.state.kinds import fill, watched_kinds
from allocator.state.ledger import Ledger
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube.client import KubeClient

log = structlog.get_logger()

SECOND_COMPARISON_S = 10.0
_LOGGED = 20


class SelfAudit:
    """Audits an allocator.

    Args:
        client: the API server.
        cluster: what is compared.
        ledger: its reservations.
        health_namespace: the setting ``node_health_namespace``.
        show: called with the number of differences after every comparison.
        period_s: time between comparisons; 0 for none.
        second_comparison_s: time before a difference is compared again.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        *,
        health_namespace: str = "",
        show: Callable[[int], None],
        period_s: float,
        second_comparison_s: float = SECOND_COMPARISON_S,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._health_namespace = health_namespace
        self._show = show
        self._period_s = period_s
        self._second_comparison_s = second_comparison_s

    async def run(self, synced: Callable[[], Awaitable[None]]) -> None:
        """Audit until cancelled, once the informers have synced."""
        if not self._period_s:
            return
        await synced()
        while True:
            await asyncio.sleep(self._period_s)
            try:
                found = await self.compare()
            except (ApiError, Unreachable) as error:
                log.info("can't compare the state with the API server", error=str(error))
                continue
            self._show(len(found))
            for difference in found[:_LOGGED]:
                log.error(
                    "the state differs from the API server's objects",
                    about=difference.object,
                    field=difference.field,
                    kept=difference.kept,
                    rebuilt=difference.rebuilt,
                )

    async def compare(self) -> list[Difference]:
        """The differences that two comparisons in a row find.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer, or its answer can't be decoded.
        """
        first = set(await self._differences())
        if not first:
            return []
        await asyncio.sleep(self._second_comparison_s)
        return [each for each in await self._differences() if each in first]

    async def _differences(self) -> list[Difference]:
        twin = self._cluster.twin()
        for kind in watched_kinds(self._health_namespace):
            if kind.is_optional and kind.name not in self._cluster.jobs.watched_kinds:
                continue
            try:
                namespace = kind.namespace(self._health_namespace)
                async for page in self._client.pages(kind.resource, namespace, label_selector=kind.label_selector):
                    fill(twin, {kind.name: page})
            except NotFound:
                if not kind.is_optional:
                    raise
                # No longer served; its informer notices that when it checks again.
        found: list[Difference] = []
        for part in compare_by_parts(self._cluster, self._ledger, twin):
            found += part
            await asyncio.sleep(0)
        return sorted(found)
