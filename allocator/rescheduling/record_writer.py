"""Writes what other programs of MindCluster read of rescheduling, in their own ConfigMaps."""

from collections.abc import Callable
from typing import Final

import structlog

from allocator.rescheduling import records
from allocator.rescheduling.decision import PodChoice
from allocator.rescheduling.memory import Memory
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.errors import ApiError, NotFound, Unreachable
from ascend.kube import config_maps
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS
from ascend.turn import Turn

log = structlog.get_logger()

PERIOD_S: Final = 5.0
"""How often the retries that jobs have left are counted: soon enough for a job to have an entry before a pod fails."""


class RecordWriter:
    """Writes the records. A failed write delays nothing: it is logged, and tried again with the next record.

    Args:
        client: the API server.
        cluster: the jobs.
        monotonic: a clock, in seconds.
    """

    def __init__(self, client: KubeClient, cluster: Cluster, monotonic: Callable[[], float]) -> None:
        self._client = client
        self._cluster = cluster
        self._monotonic = monotonic
        self._retries = config_maps.ConfigMapWriter(
            client, records.RETRIES_NAMESPACE, records.RETRIES_NAME, monotonic, absent=records.retries_left({})
        )
        self._due_s = 0.0

    async def record(self, job: Job, choice: PodChoice, now_s: float) -> None:
        """Record that pods of a job were deleted at a time in Unix seconds."""
        name = records.job_id(job, (member.pod for member in choice.pods))
        try:
            try:
                found = await self._client.get(CONFIG_MAPS, records.REASONS_NAME, records.REASONS_NAMESPACE)
                data = dict(found.data)
            except NotFound:
                data = {}
            written = records.with_record(data, name, choice, now_s)
            await config_maps.store(self._client, records.REASONS_NAMESPACE, records.REASONS_NAME, written)
        except (ApiError, Unreachable) as error:
            log.warning("can't record that a job was rescheduled", job=str(job.key), error=str(error))

    async def count_retries(self, memory: Memory) -> None:
        """Write how many retries each job has left, if that has changed; call it with each look."""
        if self._monotonic() < self._due_s:
            return
        self._due_s = self._monotonic() + PERIOD_S
        turn, left = Turn(), dict[str, int]()
        for job in self._cluster.jobs:
            if retries := records.stated_retries(job):
                recovery = memory.jobs.get(job.key.plan)
                used = recovery.retries if recovery is not None else 0
                left[records.job_id(job, job.pods.values())] = max(retries - used, 0)
            await turn.share()
        try:
            await self._retries.write(records.retries_left(left))
        except (ApiError, Unreachable) as error:
            log.warning("can't write how many retries jobs have left", error=str(error))
