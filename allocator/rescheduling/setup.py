"""Puts rescheduling together, as the settings say."""

from collections.abc import Callable

from allocator.metrics import AllocatorMetrics
from allocator.observe.refusal_events import Publish
from allocator.rescheduling.actions import Actions
from allocator.rescheduling.announcer import Announcer
from allocator.rescheduling.reading import Reader
from allocator.rescheduling.records import RecordWriter
from allocator.rescheduling.rescheduler import Rescheduler
from allocator.rescheduling.reset_config import ResetConfigs
from allocator.settings import Settings
from allocator.state.cluster import Cluster
from ascend.kube.client import KubeClient


def steady(now_ns: Callable[[], int], monotonic: Callable[[], float]) -> Callable[[], float]:
    """Return a clock, Unix seconds, that goes on evenly when the wall clock is set.

    Otherwise a clock that is set forward would let a job that waits for chips for a second lose all of its pods, and
    one that is set back would stop rescheduling for as long.

    Args:
        now_ns: the wall clock, Unix nanoseconds.
        monotonic: a clock that is not set, in seconds.
    """
    start_s = now_ns() / 1e9 - monotonic()
    return lambda: start_s + monotonic()


def make_rescheduler(
    settings: Settings,
    client: KubeClient,
    cluster: Cluster,
    *,
    publish: Publish,
    metrics: AllocatorMetrics,
    leads: Callable[[], bool],
    now_ns: Callable[[], int],
    boot_s: Callable[[], float],
) -> Rescheduler | None:
    """Make the rescheduler; None if the settings say that nothing is rescheduled.

    Args:
        settings: whether pods are rescheduled, how, and within which limits.
        client: the API server.
        cluster: nodes, reports, pods and jobs.
        publish: posts an Event soon.
        metrics: counts deletions and what is held back.
        leads: whether this allocator leads.
        now_ns: the wall clock, Unix nanoseconds.
        boot_s: a clock that is not set, and advances while the process or the machine is suspended, in seconds.
    """
    if settings.reschedule == "off":
        return None
    evicts, stored = settings.reschedule_by == "evict", f"{settings.lease_name}-faults"
    return Rescheduler(
        cluster,
        Actions(client, settings.lease_namespace, stored, evicts=evicts, shortened=metrics.rescheduling_shortened.set),
        Reader(client, cluster, settings.node_health_namespace),
        settings,
        announcer=Announcer(publish),
        records=RecordWriter(client, cluster, boot_s) if settings.reschedule_records else None,
        reset_configs=ResetConfigs(client) if settings.reschedule_reset_config else None,
        metrics=metrics,
        leads=leads,
        now_s=steady(now_ns, boot_s),
        monotonic=boot_s,
    )
