"""Publishes how jobs use the leaf switches, in the ConfigMap that MindCluster's scheduler writes with version 2."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from allocator.rules.job import job_of_owner
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.switches import publication
from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.config_maps import MOST_BYTES, ConfigMapWriter
from ascend.leaf_switches import SwitchTable
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 5.0
_WHERE: Final = f"{publication.NAMESPACE}/{publication.NAME}"


class SwitchPublisher:
    """Writes the ConfigMap when the content has changed. A failed write is tried again, and logged once.

    Args:
        client: the API server.
        cluster: the switches, nodes and jobs.
        ledger: the reservations.
        leads: whether this process is the leader: only that one publishes.
        monotonic: a clock, in seconds.
    """

    def __init__(
        self,
        client: KubeClient,
        cluster: Cluster,
        ledger: Ledger,
        leads: Callable[[], bool],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._leads = leads
        self._writer = ConfigMapWriter(
            client, publication.NAMESPACE, publication.NAME, monotonic, absent=publication.NOTHING
        )
        self._was_too_large = self._warned = False

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.publish()
            await asyncio.sleep(PERIOD_S)

    async def publish(self) -> None:
        """Publish once, if this process leads; nothing of switches that are unknown."""
        table = self._cluster.switches.table
        if not self._leads():
            self._writer.forget()
            return
        content = await self._content(table) if isinstance(table, SwitchTable) else publication.NOTHING
        if self._is_too_large(content):
            content = publication.NOTHING
        if not self._leads():  # it may have taken a while
            return
        try:
            await self._writer.write(content)
            self._warned = False
        except (ApiError, Unreachable) as error:
            if not self._warned:
                log.warning("can't publish how jobs use the leaf switches", config_map=_WHERE, error=str(error))
            self._warned = True

    async def _content(self, table: SwitchTable) -> dict[str, str]:
        turn, jobs = Turn(), defaultdict[str, set[str]](set)
        for job in list(self._cluster.jobs):
            for uid in job.placed:
                held, pod = self._ledger.get(uid), job.pods.get(uid)
                node = held.node if held is not None else pod.spec.node_name if pod is not None else ""
                jobs[node].add(_name(job))
            await turn.share()
        nodes: dict[str, str] = {}
        for name, record in list(self._cluster.nodes.items()):
            if record.node is not None:
                nodes[record.node.internal_ip] = name
            await turn.share()
        states = {number: use.state for number, use in self._cluster.switches.uses().items()}
        return await turn.share_between(publication.publication(table, states, nodes, jobs))

    def _is_too_large(self, content: Mapping[str, str]) -> bool:
        """Whether the API server would not accept it; said once."""
        size = sum(len(text.encode()) for text in content.values())
        was, self._was_too_large = self._was_too_large, size > MOST_BYTES
        if self._was_too_large and not was:
            sentence = "how jobs use the leaf switches is not published: a ConfigMap can't be that large"
            log.warning(sentence, config_map=_WHERE, bytes=size, most=MOST_BYTES)
        return self._was_too_large


def _name(job: Job) -> str:
    """The name of what owns its pods, without a namespace."""
    pod = next(iter(job.pods.values()), None)
    owner = job_of_owner(pod) if pod is not None else None
    return (owner or job.key).name
