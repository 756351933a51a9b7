"""The evidence for deletions, read anew right before them: docs/rescheduling.md#what-counts-is-what-is-true-now."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Final

import structlog

from allocator.rescheduling.decision import JobPod
from allocator.rescheduling.fault_watch import why_lost
from allocator.rescheduling.faults import FaultKind, NodeFaults, fault_of, read_node
from allocator.rescheduling.reading import Reader
from allocator.rescheduling.sightings import Contact, Sightings
from allocator.rules.rescheduling_labels import FaultLabels
from allocator.state.cluster import Cluster
from allocator.state.holding import read_holding
from allocator.state.job import Job
from ascend.errors import ApiError, Unreachable
from ascend.kube.objects import Pod

log = structlog.get_logger()

FRESH_S: Final = 2.0
"""So old may be what was read when the first pod of a decision is deleted, after what was decided has been stored."""
AT_ONCE: Final = 16
"""Reads at the same time."""
_OF_NODES: Final = (FaultKind.NODE, FaultKind.CHIP, FaultKind.SUB_HEALTH)


class Evidence:
    """Reads what deletions rest on.

    Each method that reads raises ``ApiError`` if the API server refuses, and ``Unreachable`` if it does not answer.

    Args:
        reading: reads from the API server.
        cluster: the nodes.
        not_ready_s: how long a node may be missing or not Ready before its pods are faulty.
        monotonic: a clock that advances while the process or the machine is suspended, in seconds.

    Attributes:
        contact: whether the API server has answered all the time.
        sightings: for how long nodes have been seen not Ready.
    """

    def __init__(self, reading: Reader, cluster: Cluster, not_ready_s: float, monotonic: Callable[[], float]) -> None:
        self._reading = reading
        self._cluster = cluster
        self._not_ready_s = not_ready_s
        self._monotonic = monotonic
        self.contact = Contact()
        self.sightings = Sightings()

    async def touch(self) -> bool:
        """Ask the API server for anything; return whether it has answered without a gap since the last time."""
        sent_s = self._monotonic()
        await self._reading.anything()
        return self.contact.on_answer(sent_s, self._monotonic())

    async def see(self, nodes: Collection[str]) -> None:
        """Read the nodes that may be lost, and forget others; an unreadable node is not seen."""
        self.sightings.keep(nodes)
        await self._see_all(nodes)

    async def see_more(self, nodes: Collection[str]) -> None:
        """Read further nodes, unless they were read just now; an unreadable node is not seen."""
        now_s = self._monotonic()
        await self._see_all([name for name in nodes if not self.sightings.is_recent(name, now_s, FRESH_S)])

    async def is_lost(self, node: str) -> bool:
        """Whether the kubelet of a node can't confirm that a pod has ended, by a read of now."""
        if not self.sightings.is_recent(node, self._monotonic(), FRESH_S):
            await self._see(node)
        return self.sightings.lost_for_s(node, self._monotonic()) >= 0

    def is_lost_for_long(self, node: str) -> bool:
        """Whether a node has been seen not Ready for longer than it may be."""
        return self.sightings.lost_for_s(node, self._monotonic()) >= self._not_ready_s

    def is_ready(self, node: str) -> bool:
        """Whether a node was Ready when it was read lately."""
        return self.sightings.is_ready(node, self._monotonic())

    def is_gone(self, node: str) -> bool:
        """Whether a node had no object when it was read lately."""
        return self.sightings.is_gone(node, self._monotonic())

    def is_due(self, members: Sequence[JobPod]) -> bool:
        """Whether no pod goes because of a node that has not been seen not Ready for as long as it may be.

        A node that was Ready when it was read lately is due: the watch of nodes shows something else, which is said.
        """
        nodes = {peer.pod.spec.node_name for peer in members if peer.fault and peer.fault.kind is FaultKind.NODE}
        lost = [node for node in nodes if why_lost(self._cluster.nodes.get(node), node) is not None]
        return all(self.is_ready(node) or self.is_lost_for_long(node) for node in lost)

    async def why_not(self, job: Job, members: Sequence[JobPod], switches: FaultLabels) -> str | None:
        """Return why a fault, or that a successor waits, is not believed, a sentence; None if all is so now.

        Args:
            job: the job.
            members: the pods that go.
            switches: what the job says.
        """
        faulty = [peer for peer in members if peer.fault is not None]
        if not faulty:
            return await self._why_nothing_waits(job)
        nodes = sorted({peer.pod.spec.node_name for peer in faulty if peer.fault and peer.fault.kind in _OF_NODES})
        limit = asyncio.Semaphore(AT_ONCE)

        async def faults(name: str) -> NodeFaults:
            async with limit:
                return await self._faults(name)

        async def pod(member: JobPod) -> Pod | None:
            async with limit:
                return await self._reading.pod(member.pod)

        found = dict(zip(nodes, await asyncio.gather(*map(faults, nodes)), strict=True))
        pods = await asyncio.gather(*map(pod, faulty))
        for member, read in zip(faulty, pods, strict=True):
            now = read if read is not None else member.pod  # gone meanwhile: the others go only if its fault was one
            if now.metadata.labels != member.pod.metadata.labels:
                return f"the labels of pod {now.key} have changed"
            held = read_holding(now)
            node = found.get(now.spec.node_name, NodeFaults())
            if fault_of(now, held.occupied if held is not None else 0, node, switches) is None:
                why = member.fault.sentence if member.fault is not None else ""
                return f"the API server does not confirm that {why}"
        return None

    async def _why_nothing_waits(self, job: Job) -> str | None:
        for pod in [peer for peer in job.pods.values() if peer.waits_for_chips]:
            found = await self._reading.pod(pod)
            if found is not None and found.waits_for_chips:
                return None
        return f"no pod of job {job.key} waits for chips"

    async def _faults(self, name: str) -> NodeFaults:
        sent_s = self._monotonic()
        record = await self._reading.record(name)
        self.sightings.saw(name, record.node, sent_s, self._monotonic())
        lost = why_lost(record, name)
        if lost is not None and not self.is_lost_for_long(name):
            return NodeFaults()
        return read_node(record, name, lost or "")

    async def _see_all(self, nodes: Collection[str]) -> None:
        limit = asyncio.Semaphore(AT_ONCE)

        async def see(name: str) -> None:
            async with limit:
                try:
                    await self._see(name)
                except (ApiError, Unreachable) as error:
                    log.warning("can't read a node that may be lost", node=name, error=str(error))

        await asyncio.gather(*map(see, nodes))

    async def _see(self, name: str) -> None:
        sent_s = self._monotonic()
        self.sightings.saw(name, await self._reading.node(name), sent_s, self._monotonic())


class Proof:
    """The evidence for deleting the pods of a decision; read again if old before the first pod goes.

    Args:
        evidence: reads it.
        job: the job.
        members: the pods that go.
        switches: what the job says.
        is_begun: whether others of the decision have gone already, so that these have to follow.
        monotonic: the clock, in seconds.
    """

    def __init__(
        self,
        evidence: Evidence,
        job: Job,
        members: Sequence[JobPod],
        switches: FaultLabels,
        *,
        is_begun: bool,
        monotonic: Callable[[], float],
    ) -> None:
        self._evidence = evidence
        self._of = job, members, switches
        self._is_begun = is_begun
        self._monotonic = monotonic
        self._read_s = float("-inf")
        self._lock = asyncio.Lock()

    def on_deletion(self) -> None:
        """Note that a pod has gone: the others follow, whatever is found."""
        self._is_begun = True

    async def why_not(self) -> str | None:
        """Return why nothing may be deleted now, a sentence; None if that is proved.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        async with self._lock:
            if self._is_begun or self._monotonic() - self._read_s <= FRESH_S:
                return None
            sent_s = self._monotonic()
            why = await self._evidence.why_not(*self._of)
            if why is None:
                self._read_s = sent_s
            return why
