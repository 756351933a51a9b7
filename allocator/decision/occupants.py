"""The pods that may be preempted, with the work that ends with each of them. No I/O."""

from collections.abc import Iterable
from typing import Final

from allocator.rules.job import JobKey
from allocator.rules.victims import CHIP, Occupant, Work
from allocator.state.cluster import Cluster
from allocator.state.holding import Holding
from allocator.state.job import Job
from allocator.state.ledger import Ledger
from allocator.state.memo import Memo
from allocator.state.node import NodeRecord, Server
from allocator.state.plain_pods import PlainPod
from ascend.chips import ChipSet
from ascend.cores import Cut
from ascend.kube.objects import Pod
from ascend.vnpus import Vnpu

_CORES: Final = 32
"""The AI cores of a chip that an administrator has cut, by which its vNPUs are counted (910A)."""

_MOST_JOBS: Final = 4096


class Occupants:
    """Reads what pods hold.

    Args:
        cluster: nodes, pods and jobs.
        ledger: the reservations.
    """

    def __init__(self, cluster: Cluster, ledger: Ledger) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._works = Memo[JobKey, Work](_MOST_JOBS)

    def of(self, pod: Pod, record: NodeRecord, holding: Holding) -> Occupant:
        """A pod on a node, with its chips and parts of chips."""
        size = _size(record, holding.chips, holding.parts)
        return self._occupant(pod, size, holding.chips, holding.counted, holding.parts)

    def exists(self, uid: str) -> bool:
        """Whether a pod is known, and has not gone."""
        return uid in self._cluster.plain or uid in self._cluster.pods

    def without_chips(self, uids: Iterable[str]) -> list[Occupant]:
        """Pods, also those that request no chips."""
        return [
            self._occupant(pod, 0) if (pod := self._cluster.pods.get(uid)) is not None else self._plain(uid)
            for uid in uids
        ]

    def _plain(self, uid: str) -> Occupant:
        # Without priority and age: the informers have not seen it yet.
        plain = self._cluster.plain.get(uid) or PlainPod(0, "", terminating=False)
        work = Work(plain.priority, 0)
        return Occupant(uid, work, 0, plain.terminating, uid=uid, priority=plain.priority, since=plain.since)

    def _occupant(
        self, pod: Pod, size: int, chips: ChipSet = 0, counted: int = 0, parts: tuple[Vnpu | Cut, ...] = ()
    ) -> Occupant:
        job, since = self._cluster.jobs.job_of(pod), pod.metadata.creation_timestamp or ""
        is_of_gang = job.is_gang and bool(job.placed)
        group, work = (job.key.plan, self._work(job)) if is_of_gang else (pod.uid, Work(pod.priority, size))
        return Occupant(
            group, work, size, pod.is_terminating, chips, counted,
            uid=pod.uid, pod=pod.key, priority=pod.priority, since=since, vnpus=parts,
        )  # fmt: skip

    def _work(self, job: Job) -> Work:
        """The work of the placed pods of a gang."""
        if (known := self._works.recall(job.key, job.version)) is not None:
            return known
        members, nodes = job.pods, self._cluster.nodes
        pods = {uid: members[uid] for uid in job.placed}
        size = sum(self._size_of(uid, nodes.get(pod.spec.node_name)) for uid, pod in pods.items())
        spare = max(0, len(pods) + job.ended - job.needed)
        work = Work(max(pod.priority for pod in pods.values()), size, len(pods), spare)
        return self._works.keep(job.key, job.version, work)

    def _size_of(self, uid: str, record: NodeRecord | None) -> int:
        """The work of a placed pod, which is on this node unless it is only reserved."""
        holding = record.holdings.get(uid) if record is not None else None
        if record is not None and holding is not None:
            has_parts = holding.vnpus or holding.cuts  # a gang may have thousands of pods, and few have parts
            return _size(record, holding.chips, holding.parts if has_parts else ())
        held = self._ledger.get(uid)
        record = self._cluster.nodes.get(held.node) if held is not None else None
        if record is None or held is None:
            return 0
        part = held.take.vnpu or held.take.cut
        return _size(record, held.take.chip_set, (part,) if part is not None else ())


def _size(record: NodeRecord, chips: ChipSet, parts: Iterable[Vnpu | Cut]) -> int:
    whole = CHIP * chips.bit_count()
    if not parts:
        return whole
    kind = record.server.kind if isinstance(record.server, Server) else None
    cores = kind.cores if kind is not None else _CORES
    return whole + sum(CHIP * part.cores // cores for part in parts)
