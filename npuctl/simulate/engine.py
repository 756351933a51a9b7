"""The allocator's own engine as the scheduler of a simulation: its settings and decisions, on a virtual clock."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace as with_fields
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

from allocator.decision.earmarks import LOANS
from allocator.settings import Settings
from allocator.state.ranking import Bucket
from ascend.annotations import MIN_AVAILABLE, Grant
from ascend.chips import RESOURCE, chip_ids
from ascend.deviceinfo import LABELS, NAMESPACE, DeviceReport, config_map_name, encode_report
from ascend.errors import Refusal
from ascend.jobs.pod_groups import VOLCANO_ANNOTATIONS
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import ConfigMap, Metadata, Pod, PodSpec, PodStatus
from npuctl.offline_allocator import OfflineAllocator
from npuctl.reading.objects import ClusterObjects
from npuctl.simulate.jobs import SimulatedJob
from npuctl.simulate.servers import Fleet, PodPlace
from npuctl.simulate.simulation import VirtualScheduler

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NO_END_S: Final = 1e12
"""An age that no report has: in a simulation nobody writes them anew."""


def in_simulation(settings: Settings) -> Settings:
    """The settings, but for the age of reports: their plugins do not run here."""
    return with_fields(settings, max_report_age_s=_NO_END_S)


class Engine(VirtualScheduler):
    """Starts and ends jobs in an allocator.

    Args:
        objects: the nodes, and what is on them.
        settings: the allocator's.
        now_ns: the time at which the simulation begins, Unix nanoseconds.
        elapsed_s: the seconds since then.
        servers: the chips in use; kept up to date here as well.

    Attributes:
        allocator: the allocator.
    """

    def __init__(
        self,
        objects: ClusterObjects,
        settings: Settings,
        now_ns: int,
        elapsed_s: Callable[[], float],
        servers: Fleet,
    ) -> None:
        self.allocator = OfflineAllocator(objects, in_simulation(settings), now_ns, elapsed_s=elapsed_s, loans=LOANS)
        self._begins = _EPOCH + timedelta(microseconds=now_ns // 1000)
        self._begins_s = now_ns // 10**9
        self._elapsed_s = elapsed_s
        self._servers = servers
        self._waiting: dict[SimulatedJob, list[Pod]] = {}
        self._running: dict[SimulatedJob, list[Pod]] = {}
        self._submitted = 0
        reported = objects.reports
        for name in servers:
            if name in reported or servers.state(name).broken:
                self.set_health(name)

    def submit(self, job: SimulatedJob) -> None:
        """Create the pods of a job."""
        self._submitted += 1
        name = f"job-{self._submitted:07}"
        since = (self._begins + timedelta(seconds=self._elapsed_s())).isoformat()
        marks = {VOLCANO_ANNOTATIONS[0]: name, MIN_AVAILABLE: str(job.pods)} if job.pods > 1 else {}
        self._waiting[job] = [
            Pod(
                metadata=Metadata(
                    name=f"{name}-{rank:04}",
                    namespace=job.namespace,
                    uid=f"{name}-{rank:04}",
                    creation_timestamp=since,
                    annotations=marks,
                ),
                spec=PodSpec(
                    scheduler_name="default-scheduler",
                    priority=job.priority,
                    containers=(Container("main", Resources(limits={RESOURCE: str(job.chips)})),),
                ),
                status=PodStatus(phase="Pending"),
            )
            for rank in range(job.pods)
        ]
        for pod in self._waiting[job]:
            self.allocator.cluster.pod_applied(pod)

    def start(self, job: SimulatedJob, candidates: Collection[str] | None = None) -> Sequence[PodPlace] | None:
        """Bind all pods of a job, or none."""
        engine, cluster, pods, places = self.allocator.engine, self.allocator.cluster, list[Pod](), list[PodPlace]()
        for pod in self._waiting[job]:
            engine.gangs.obstacles.on_request(pod)
        for pod in self._waiting[job]:
            try:
                held = engine.place(pod, candidates)
            except Refusal:
                if pods:
                    raise
                return None
            place = PodPlace(held.node, held.take.chips)
            metadata = replace(
                pod.metadata, annotations={**pod.metadata.annotations, **Grant(place.chips, 1).annotations()}
            )
            running = replace(
                pod,
                metadata=metadata,
                spec=replace(pod.spec, node_name=place.node),
                status=replace(pod.status, phase="Running"),
            )
            cluster.pod_applied(running)
            self._servers.take(place)
            pods.append(running)
            places.append(place)
        del self._waiting[job]
        self._running[job] = pods
        return places

    def end(self, job: SimulatedJob) -> None:
        """Delete the pods of a job that runs."""
        for pod in self._running.pop(job):
            self.allocator.cluster.pod_deleted(pod)

    def end_pod(self, uid: str) -> None:
        """Delete a pod that ran from the beginning on."""
        self.allocator.cluster.pod_deleted(self.allocator.cluster.pods[uid])

    def set_health(self, name: str) -> None:
        """Report the broken chips of a node, and let its kubelet offer the others."""
        product, broken, _ = self._servers.state(name)
        healthy, cluster = product.all_chips & ~broken, self.allocator.cluster
        if (node := cluster.nodes[name].node) is not None:
            offered = node.status.allocatable | {RESOURCE: str(healthy.bit_count())}
            cluster.node_applied(replace(node, status=replace(node.status, allocatable=offered)))
        # What pods hold is known from the pods.
        report = DeviceReport(free=healthy, unhealthy=broken, network_unhealthy=0, update_time_s=self._begins_s)
        metadata = Metadata(name=config_map_name(name), namespace=NAMESPACE, labels=dict(LABELS))
        cluster.reports.apply(ConfigMap(metadata=metadata, data=encode_report(report)))

    @property
    def kept(self) -> int:
        """The number of free chips that are kept for a job that waits."""
        if not self.allocator.ledger.promises:
            return 0
        buckets = self.allocator.cluster.index.buckets
        return sum(bucket.vacancy.kept.bit_count() * len(bucket) for bucket in buckets)


def servers_of(allocator: OfflineAllocator) -> Fleet:
    """Return the usable servers of a cluster, with the chips in use by their pods."""
    servers, cluster = Fleet(), allocator.cluster
    for name, entry in sorted(cluster.index.entries.items()):
        if isinstance(entry, Bucket) and entry.vacancy.cores is None:
            vacancy, product = entry.vacancy, entry.vacancy.product
            held = 0
            for holding in cluster.nodes[name].holdings.values():
                held |= holding.chips
            servers.add(name, product, vacancy.free, product.all_chips & ~vacancy.free & ~held)
    return servers


def residents_of(allocator: OfflineAllocator, servers: Fleet) -> dict[str, PodPlace]:
    """Return what the pods on these servers hold, by their uid."""
    nodes = allocator.cluster.nodes
    return {
        uid: PodPlace(name, chip_ids(holding.chips))
        for name in servers
        for uid, holding in nodes[name].holdings.items()
        if holding.chips
    }
