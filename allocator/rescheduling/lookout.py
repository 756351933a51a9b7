"""The faults that rescheduling may act on, their extent, and the nodes seen not Ready."""

from collections.abc import AsyncIterator, Callable, Iterable

from msgspec.structs import replace

from allocator.metrics import AllocatorMetrics
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.decision import JobPod, member_of, switches_of, why_it_stays
from allocator.rescheduling.evidence import Evidence
from allocator.rescheduling.fault_watch import Extent, FaultWatch
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.reading import Reader
from allocator.rules.job import JobKey
from allocator.rules.rescheduling_labels import FaultLabels, Mode
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from allocator.state.job import Job
from ascend.errors import InvalidValue
from ascend.kube.objects import Pod
from ascend.turn import Turn


class Lookout:
    """Looks at the nodes, as the watches show them and as reads do.

    Args:
        cluster: nodes, reports, pods and jobs.
        reading: reads anew what deletions rest on.
        settings: what counts as lost, and as a wrong report.
        announcer: says how far faults reach.
        metrics: the same as metrics.
        monotonic: a clock that advances while the process or the machine is suspended, in seconds.

    Attributes:
        watch: the faults of nodes as the watches show them.
        evidence: what reads show.
        extent: how far faults reach.
    """

    def __init__(
        self,
        cluster: Cluster,
        reading: Reader,
        settings: Settings,
        *,
        announcer: Announcer,
        metrics: AllocatorMetrics,
        monotonic: Callable[[], float],
    ) -> None:
        self._cluster = cluster
        self._share = settings.reschedule_faulty_share
        self._announcer = announcer
        self._metrics = metrics
        self.watch = FaultWatch(cluster, settings.reschedule_not_ready_s, monotonic)
        self.evidence = Evidence(reading, cluster, settings.reschedule_not_ready_s, monotonic)
        self.extent = Extent()

    async def look(self, memory: Memory) -> None:
        """Take over what the watches show now."""
        await self.watch.look()
        before, self.extent = self.extent, await self.watch.extent(self._share)
        if memory.broken:
            why = f"what is remembered of faults can't be read, repair it or delete its ConfigMap: {memory.broken}"
            self.extent = replace(self.extent, stopped=why)
        self._metrics.rescheduling_stopped.set(self.extent.stopped is not None)
        self._metrics.dark_zones.set(len(self.extent.dark_zones))
        self._announcer.extent(before, self.extent)

    async def see(self, memory: Memory) -> bool:
        """Make sure that the API server answers, and read the nodes that may be lost.

        Returns:
            Whether there was no gap since the last time; otherwise all times have to begin anew.

        Raises:
            ApiError: the API server refuses.
            Unreachable: it does not answer.
        """
        if self.watch.is_quiet and not memory.is_followed:
            self.evidence.contact.rest()
            return True
        is_continued = await self.evidence.touch()
        if not is_continued:
            await self.watch.begin_anew()
        await self.evidence.see([name async for name in self._suspects(memory)])
        return is_continued

    async def jobs(self, memory: Memory) -> dict[Job, list[Pod]]:
        """The jobs to look at, with their bound pods that are not being deleted."""
        found: dict[JobKey, Job] = {}
        failed: dict[JobKey, list[Pod]] = {}
        turn = Turn()
        for pod in self.watch.pods():
            job = self._cluster.jobs.job_of(pod)
            found[job.key] = job
            if pod.uid not in job.pods and not pod.is_terminating:
                failed.setdefault(job.key, []).append(pod)
            await turn.share()
        for plan, recovery in memory.jobs.items():
            if not recovery.is_open:
                continue
            known = self._cluster.jobs.by_key.get(JobKey.of_plan(plan))
            if known is not None:
                found[known.key] = known
            if known is None or not any(_is_running(pod) for pod in known.pods.values()):
                recovery.has_left()
        return {
            job: [*failed.get(key, ()), *(pod for pod in job.pods.values() if _is_running(pod))]
            for key, job in sorted(found.items())
        }

    def judge(self, job: Job, pod: Pod, switches: FaultLabels) -> JobPod:
        """Judge a bound pod of a job; say why a faulty pod stays nevertheless."""
        node = pod.spec.node_name
        member = member_of(pod, self._cluster.nodes.get(node), self.watch.of(node), switches)
        why = why_it_stays(member, self.watch, self.extent)
        if why is None:
            return member
        self._announcer.hold(job, pod, why)
        return replace(member, fault=None)

    def why_stopped(self, nodes: Iterable[str]) -> str | None:
        """Return why no pod on one of the nodes is deleted now, a sentence; None if that is not so."""
        dark = (self.watch.why_dark(node, self.extent) for node in nodes)
        return self.extent.stopped or next(filter(None, dark), None)

    async def _suspects(self, memory: Memory) -> AsyncIterator[str]:
        """Yield the nodes that are not Ready, if pods would be deleted for that."""
        if self.extent.stopped is not None:
            return
        followed = {deleted.node for recovery in memory.jobs.values() for deleted in recovery.deleted.values()}
        turn = Turn()
        for name in {*self.watch.lost, *filter(self.watch.has_no_object, followed)}:
            await turn.share()
            record = self._cluster.nodes.get(name)
            pods = [self._cluster.pods.get(uid) for uid in record.holdings] if record is not None else []
            concerned = name in followed or any(pod is not None and self._is_rescheduled(pod) for pod in pods)
            if concerned and self.watch.why_dark(name, self.extent) is None:
                yield name

    def _is_rescheduled(self, pod: Pod) -> bool:
        try:
            return switches_of(self._cluster.jobs.job_of(pod), [pod]).mode is not Mode.OFF
        except InvalidValue:
            return False


def _is_running(pod: Pod) -> bool:
    return bool(pod.spec.node_name) and pod.is_live
