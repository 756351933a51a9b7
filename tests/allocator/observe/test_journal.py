"""The log of refused pods is limited by namespace, and says what was left out."""

from msgspec.structs import replace
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from allocator.metrics import AllocatorMetrics
from allocator.observe.journal import Journal
from allocator.observe.refusal_events import RefusalEvents
from ascend.errors import Refusal
from ascend.kube.events import Regarding
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, pod

REFUSAL = Refusal(Reason.NO_NODE_FITS, "no room")


def of(namespace: str, name: str) -> Pod:
    made = pod(name)
    return replace(made, metadata=replace(made.metadata, namespace=namespace, uid=f"{namespace}-{name}"))


def publish(regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
    return bool(regarding.name and reason and note and action)


def test_refused_pods_of_one_namespace_leave_lines_for_those_of_others() -> None:
    world, now_s = World(), 0.0
    metrics = AllocatorMetrics(world.ledger, lambda: None, world.cluster.index)
    journal = Journal(metrics, RefusalEvents(publish, lambda: now_s), lambda: now_s)
    with capture_logs() as logs:
        for number in range(5_000):
            for tenant in ("busy-1", "busy-2", "busy-3"):
                journal.on_refusal(of(tenant, f"p{number}"), REFUSAL)
                journal.preempts(of(tenant, f"p{number}"), None)
        assert len(logs) < 500
        journal.on_refusal(of("quiet", "mine"), REFUSAL)
        assert logs[-1]["pod"] == "quiet/mine"
        now_s = 60.0
        journal.on_refusal(of("busy-1", "last"), REFUSAL)
    busy = sum(each["pod"].startswith("busy-1/") for each in logs)
    assert logs[-1]["left_out"] == 10_000 + 1 - busy
    counted = metrics.decisions.labels("refused", Reason.NO_NODE_FITS)
    assert isinstance(metrics.registry, CollectorRegistry)
    assert counted._value.get() == 15_002  # all are counted
