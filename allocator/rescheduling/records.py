"""What other programs of MindCluster read of rescheduling: docs/spec/rescheduling.md#stored-state.

The ascend-operator reads how many retries a job has left, and without an entry lets the job fail with its first pod;
MindCluster's fault diagnosis reads how often and why jobs were rescheduled.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
import structlog

from allocator.rescheduling.decision import PodChoice
from allocator.rescheduling.memory import Memory
from allocator.rules.job import is_group
from allocator.rules.rescheduling_labels import RETRY_TIMES, read_retries
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.annotations import RANK
from ascend.errors import UNREADABLE, ApiError, NotFound, Unreachable
from ascend.kube import config_maps
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, Pod
from ascend.turn import Turn

log = structlog.get_logger()

REASONS_NAMESPACE: Final = "mindx-dl"
REASONS_NAME: Final = "job-reschedule-reason"
REASONS_KEY: Final = "recent-reschedule-records"
RETRIES_NAMESPACE: Final = "volcano-system"
RETRIES_NAME: Final = "vcjob-fault-npu-cm"
RETRIES_KEY: Final = "remain-retry-times"
MAX_BYTES: Final = 950 * 1024
PERIOD_S: Final = 5.0
"""How often the retries that jobs have left are counted: soon enough for a job to have an entry before a pod fails."""
_KEPT: Final = 10
"""Records of a job, and pods in a record."""


class PodReason(msgspec.Struct, rename="pascal", frozen=True):
    """Why a pod was rescheduled; order and names are the wire's."""

    reschedule_reason: str
    pod_name: str
    node_name: str
    node_rank_index: str


class Record(msgspec.Struct, rename="pascal", frozen=True):
    """One time that pods of a job were rescheduled."""

    log_file_format_time: str
    reschedule_time_stamp: int
    reason_of_task: tuple[PodReason, ...] = ()


class JobRecords(msgspec.Struct, frozen=True):
    """The times that pods of a job were rescheduled, the last one first."""

    job_id: str = msgspec.field(name="JobID")
    total: int = msgspec.field(name="TotalRescheduleTimes", default=0)
    records: tuple[Record, ...] = msgspec.field(name="RescheduleRecords", default=())


class RetryTimes(msgspec.Struct, frozen=True):
    """The retries that a job has left."""

    uuid: str = msgspec.field(name="UUID")
    times: int = msgspec.field(name="Times")


def job_id(job: Job, pods: Iterable[Pod]) -> str:
    """Return the id of a job: of its PodGroup in Volcano, or of the PodGroup that an operator would make.

    MindCluster's operator names the PodGroup of an AscendJob ``<name>-<uid>``, and looks for that id if there is none.
    """
    if is_group(job.key):
        return str(job.key)
    owner = next((pod.metadata.controller for pod in pods if pod.metadata.controller is not None), None)
    return f"{job.key}-{owner.uid}" if owner is not None else str(job.key)


def with_record(data: Mapping[str, str], name: str, choice: PodChoice, now_s: float) -> dict[str, str]:
    """Return the data of ``job-reschedule-reason`` with one more record; what can't be read is replaced.

    Args:
        data: the present data.
        name: the id of the job.
        choice: what was deleted.
        now_s: the time, Unix seconds.
    """
    try:
        known = msgspec.json.decode(data.get(REASONS_KEY) or "{}", type=dict[str, JobRecords])
    except UNREADABLE:
        known = {}
    when = datetime.fromtimestamp(now_s, UTC)
    reasons = tuple(
        PodReason(
            str(peer.fault.kind), peer.pod.name, peer.pod.spec.node_name, peer.pod.metadata.annotations.get(RANK, "")
        )
        for peer in choice.pods
        if peer.fault is not None
    )
    record = Record(when.strftime("I%m%d %H:%M:%S"), int(now_s), reasons[:_KEPT])
    old = known.pop(name, JobRecords(name))
    known[name] = JobRecords(name, old.total + 1, (record, *old.records)[:_KEPT])
    while len(text := msgspec.json.encode(known)) > MAX_BYTES and len(known) > 1:
        for oldest in list(known)[: max(1, len(known) // 20)]:  # those that were rescheduled longest ago
            del known[oldest]
    return {REASONS_KEY: text.decode()}


def stated_retries(job: Job) -> int:
    """Return how often failed pods of a job are replaced, by the label of its PodGroup, object or a pod."""
    for facts in filter(None, job.facts):
        if RETRY_TIMES in facts.labels:
            return read_retries(facts.labels[RETRY_TIMES])
    pod = next(iter(job.pods.values()), None)
    return read_retries(pod.metadata.labels.get(RETRY_TIMES, "0")) if pod is not None else 0


def retries_left(left: Mapping[str, int]) -> dict[str, str]:
    """Return the data of ``vcjob-fault-npu-cm`` that programs read: the retries left by id of the job."""
    entries = {name: RetryTimes(name, times) for name, times in sorted(left.items())}
    return {RETRIES_KEY: msgspec.json.encode(entries).decode()}


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
            client, RETRIES_NAMESPACE, RETRIES_NAME, monotonic, absent=retries_left({})
        )
        self._due_s = 0.0

    async def record(self, job: Job, choice: PodChoice, now_s: float) -> None:
        """Record that pods of a job were deleted at a time in Unix seconds."""
        name = job_id(job, (member.pod for member in choice.pods))
        try:
            try:
                found = await self._client.get(CONFIG_MAPS, REASONS_NAME, REASONS_NAMESPACE)
                data = dict(found.data)
            except NotFound:
                data = {}
            written = with_record(data, name, choice, now_s)
            await config_maps.store(self._client, REASONS_NAMESPACE, REASONS_NAME, written)
        except (ApiError, Unreachable) as error:
            log.warning("can't record that a job was rescheduled", job=str(job.key), error=str(error))

    async def count_retries(self, memory: Memory) -> None:
        """Write how many retries each job has left, if that has changed; call it with each look."""
        if self._monotonic() < self._due_s:
            return
        self._due_s = self._monotonic() + PERIOD_S
        turn, left = Turn(), dict[str, int]()
        for job in self._cluster.jobs:
            if retries := stated_retries(job):
                recovery = memory.jobs.get(job.key.plan)
                used = recovery.retries if recovery is not None else 0
                left[job_id(job, job.pods.values())] = max(retries - used, 0)
            await turn.share()
        try:
            await self._retries.write(retries_left(left))
        except (ApiError, Unreachable) as error:
            log.warning("can't write how many retries jobs have left", error=str(error))
