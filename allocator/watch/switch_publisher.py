"""Publishes how jobs use the leaf switches, in the ConfigMap that MindCluster's scheduler writes with version 2."""

import asyncio
from collections import defaultdict
from typing import Final

import structlog

from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.ledger import Ledger
from allocator.switches import publication
from allocator.switches.demand import Version
from allocator.switches.table import SwitchTable
from allocator.watch.pod_group_queue import Leads
from ascend.errors import ApiError, Unreachable
from ascend.kube import config_maps
from ascend.kube.client import KubeClient
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 5.0


class SwitchPublisher:
    """Writes the ConfigMap whenever its content has changed. A write that fails is logged, and tried again.

    Args:
        client: the API server.
        cluster: the switches, nodes and jobs.
        ledger: the reservations.
        settings: whether to.
        leadership: only the leader publishes.
        period_s: seconds between two looks.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        settings: Settings,
        leadership: Leads,
        *,
        period_s: float = PERIOD_S,
    ) -> None:
        self._client = client
        self._cluster = cluster
        self._ledger = ledger
        self._is_on = settings.publish_switches and Version(settings.nslb_version) is Version.V2
        self._leadership = leadership
        self._period_s = period_s
        self._written: dict[str, str] | None = None

    async def run(self) -> None:
        """Publish until cancelled, if the settings say so."""
        if not self._is_on:
            return
        await self._leadership.opened()
        while True:
            table = self._cluster.switches.table
            if isinstance(table, SwitchTable) and self._leadership.leads():
                await self._publish(await self._content(table))
            await asyncio.sleep(self._period_s)

    async def _content(self, table: SwitchTable) -> dict[str, str]:
        turn, jobs = Turn(), defaultdict[str, set[str]](set)
        for job in list(self._cluster.jobs):
            for uid in job.placed:
                held = self._ledger.get(uid)
                jobs[held.node if held is not None else job.pods[uid].spec.node_name].add(str(job.key))
            await turn.share()
        records = self._cluster.nodes.items()
        nodes = {record.node.internal_ip: name for name, record in records if record.node is not None}
        states = {number: use.state for number, use in self._cluster.switches.uses().items()}
        return publication.publication(table, states, nodes, jobs)

    async def _publish(self, content: dict[str, str]) -> None:
        if content == self._written:
            return
        try:
            await config_maps.store(self._client, publication.NAMESPACE, publication.NAME, content)
        except (ApiError, Unreachable) as error:
            where = f"{publication.NAMESPACE}/{publication.NAME}"
            log.warning("can't publish how jobs use the leaf switches", config_map=where, error=str(error))
        else:
            self._written = content
