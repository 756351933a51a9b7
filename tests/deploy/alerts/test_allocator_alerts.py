"""Each alert on an allocator fires during its fault, and neither before nor after it."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from allocator.metrics import AllocatorMetrics
from allocator.rescheduling.rescheduler import LOAD_AGAIN_S
from allocator.state.reservation import Stage
from ascend.base_device_infos import BASE_DEVICE_INFOS
from ascend.chips import RESOURCE
from ascend.daemon.validity import Validity
from deploy.monitoring.alerts import ALERTS
from protos.ascend.allocator.v1 import allocator_pb2 as pb
from sandbox.apiserver import ApiServer
from tests.allocator.builders import World, report
from tests.allocator.harness import Allocator, node_manifest, ref, running, until
from tests.allocator.rescheduling.scene import job, scene
from tests.allocator.rescheduling.test_unreadable import BROKEN
from tests.deploy.alerts.recording import ALLOCATOR, Recording, check

pytestmark = [pytest.mark.real]  # promtool comes with what the real cluster needs

NAMES: Final = [alert.name for alert in ALERTS]
NONE: Final = frozenset[str]()
HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S


class Site:
    """An allocator with two servers.

    Attributes:
        clock_s: how far its clock of durations is ahead.
        now_s: how far its clock of the time of day is.
    """

    allocator: Allocator
    clock_s = now_s = 0.0

    async def page(self) -> str:
        """What Prometheus reads now, once all changes so far are seen."""
        await self.allocator.app.gauges.measure()  # the background task does so every few seconds
        status, page = await self.allocator.get("/metrics")
        assert status == 200
        return page

    async def quiet_s(self) -> float:
        """For how long it has had no contact with the API server."""
        families = text_string_to_metric_families(await self.page())
        return next(f.samples[0].value for f in families if f.name == "ascend_allocator_snapshot_age_seconds")

    async def schedule(self, name: str, chips: int) -> None:
        """Have a pod bound as kube-scheduler does."""
        assert await self.allocator.schedule(await self.allocator.pod(name, chips), ["n1", "n2"])

    async def delete(self, name: str) -> None:
        """Delete a pod, and wait until that is seen."""
        uid = await self.allocator.delete(name)
        await until(lambda: uid not in self.allocator.app.cluster.pods)

    async def hold(self, name: str, node: str, *chips: int) -> None:
        """Have a pod bound with these chips."""
        pod = await self.allocator.pod(name, len(chips))
        given = {RESOURCE: ",".join(f"Ascend910-{chip}" for chip in chips), "predicate-time": "1"}
        await self.allocator.bind_as_another(name, pod["metadata"]["uid"], node, given)
        await until(lambda: self.allocator.app.cluster.pods[pod["metadata"]["uid"]].spec.node_name)


Fault = Callable[[Site], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def watches_are_silent(site: Site) -> AsyncIterator[None]:
    site.clock_s += 300.0
    yield
    site.allocator.server.drop_watches()  # they are begun anew
    while await site.quiet_s() > 60.0:  # noqa: ASYNC110 - a page has no events
        await asyncio.sleep(0.05)


@asynccontextmanager
async def no_scheduler_calls(site: Site) -> AsyncIterator[None]:
    pod = await site.allocator.pod("fits", 2)
    yield
    await site.allocator.schedule(pod, ["n1", "n2"])


@asynccontextmanager
async def a_pod_waits_for_chips(site: Site) -> AsyncIterator[None]:
    await site.hold("first", "n1", *range(8))
    await site.hold("second", "n2", *range(8))
    await site.allocator.pod("waits", 8)
    site.now_s += 2 * HOUR_S
    yield
    await site.delete("waits")


@asynccontextmanager
async def each_ring_has_a_small_pod(site: Site) -> AsyncIterator[None]:
    for node in ("n1", "n2"):
        for chip in (0, 4):
            await site.hold(f"{node}-{chip}", node, chip)
    await site.allocator.pod("waits", 4)
    yield
    await site.delete("waits")


@asynccontextmanager
async def a_scheduler_reserves_only(site: Site) -> AsyncIterator[None]:
    for number in range(4):
        pod = await site.allocator.pod(f"reserved-{number}", 1)
        await site.allocator.stub.Allocate(pb.AllocateRequest(pod=ref(pod), nodes=["n1"]))
    site.clock_s += 60.0
    await until(lambda: site.allocator.app.ledger.expired_total == 4)
    for number in range(4):
        await site.delete(f"reserved-{number}")
    yield


@asynccontextmanager
async def an_answer_to_a_binding_is_lost(site: Site) -> AsyncIterator[None]:
    pod = await site.allocator.pod("asked", 1)
    uid = pod["metadata"]["uid"]
    ledger = site.allocator.app.ledger
    site.allocator.app.engine.place(site.allocator.app.cluster.pods[uid])
    ledger.advance(uid, Stage.DOUBTFUL, predicate_time=8)
    yield
    ledger.withdraw(uid)
    await site.delete("asked")


def broken_node(allocatable: int = 8, infos: str | None = None) -> Fault:
    """A third node, of which the kubelet offers so many chips, or whose annotation is malformed."""

    @asynccontextmanager
    async def there(site: Site) -> AsyncIterator[None]:
        manifest = node_manifest("n3")
        manifest["status"]["allocatable"] = {RESOURCE: str(allocatable)}
        if infos is not None:
            manifest["metadata"]["annotations"][BASE_DEVICE_INFOS] = infos
        await site.allocator.server.create(manifest)
        await until(lambda: "n3" in site.allocator.app.cluster.nodes)
        yield
        await site.allocator.remove_node("n3")

    return there


FAULTS: Final[dict[str, tuple[Fault, AbstractSet[str]]]] = {
    "AscendAllocatorViewStale": (watches_are_silent, NONE),
    "AscendAllocatorNotCalled": (no_scheduler_calls, NONE),
    "AscendPodsWaitLong": (a_pod_waits_for_chips, NONE),
    "AscendChipsFragmented": (each_ring_has_a_small_pod, NONE),
    "AscendReservationsExpire": (a_scheduler_reserves_only, NONE),
    "AscendBindingsInDoubt": (an_answer_to_a_binding_is_lost, {"AscendAllocatorNotCalled"}),
    "AscendDevicePluginNotReady": (broken_node(allocatable=0), NONE),
    "AscendReportStale": (broken_node(infos="{"), NONE),
}
"""What makes an alert fire, and which others then do."""
TOLD: Final = {
    "AscendAllocatorNoLeader",
    "AscendCertificateExpired",
    "AscendCertificateExpires",
    "AscendNominationsStale",
    "AscendReschedulingForgets",
    "AscendReschedulingStopped",
}
"""Alerts that have tests of their own, below."""


@pytest.mark.parametrize("name", FAULTS)
async def test_an_alert_fires_during_its_fault_alone(name: str, tmp_path: Path, rules: Path) -> None:
    fault, beside = FAULTS[name]
    site = Site()
    recording = Recording(ALLOCATOR, time.time())

    def monotonic() -> float:
        return time.monotonic() + site.clock_s

    def now_ns() -> int:
        return time.time_ns() + int(site.now_s * 1e9)

    async with ApiServer() as server, running(server, tmp_path, monotonic=monotonic, now_ns=now_ns) as site.allocator:
        for node in ("n1", "n2"):
            await site.allocator.node(node)
        await site.schedule("runs", 1)
        await site.delete("runs")
        recording.take(await site.page())
        async with fault(site):
            recording.take(await site.page())
        recording.take(await site.page())
    check(rules, recording, [NONE, beside | {name}, NONE], NAMES)


async def test_rescheduling_that_is_stopped_and_can_not_read_its_memory_is_told(rules: Path) -> None:
    stage = scene(job(1))
    recording = Recording(ALLOCATOR, 0.0)
    recording.take(generate_latest(stage.metrics.registry).decode())
    stage.stored = BROKEN["cut off"]
    await stage.succeed()
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.look(60.0)
    recording.take(generate_latest(stage.metrics.registry).decode())
    stage.stored = {}
    await stage.look(LOAD_AGAIN_S)
    recording.take(generate_latest(stage.metrics.registry).decode())
    check(rules, recording, [NONE, {"AscendReschedulingStopped", "AscendReschedulingForgets"}, NONE], NAMES)


@pytest.mark.parametrize(("age_days", "name"), [(280, "AscendCertificateExpires"), (301, "AscendCertificateExpired")])
def test_a_certificate_is_told_from_its_renewal_on(age_days: int, name: str, rules: Path) -> None:
    lifetime = Validity(0.0, 0.0)
    world = World()
    metrics = AllocatorMetrics(world.ledger, lambda: 0.0, world.cluster.index, validities=lambda: {"server": lifetime})
    recording = Recording(ALLOCATOR, 0.0)
    for days in (100, age_days, 0):
        lifetime = Validity(-days * DAY_S, (300 - days) * DAY_S)
        recording.take(generate_latest(metrics.registry).decode())
    check(rules, recording, [NONE, {name}, NONE], NAMES)


def test_an_allocator_that_is_gone_or_a_standby_does_not_lead(rules: Path) -> None:
    world, leads = World(), True
    metrics = AllocatorMetrics(world.ledger, lambda: 0.0, world.cluster.index, leads=lambda: leads)
    recording = Recording(ALLOCATOR, 0.0)
    recording.take(generate_latest(metrics.registry).decode())
    recording.take("")
    recording.take(generate_latest(metrics.registry).decode())
    leads = False
    recording.take(generate_latest(metrics.registry).decode())
    alone = {"AscendAllocatorNoLeader"}
    check(rules, recording, [NONE, alone, NONE, alone], NAMES)


def test_nominations_that_are_in_vain_are_told(rules: Path) -> None:
    world = World()
    metrics = AllocatorMetrics(world.ledger, lambda: 0.0, world.cluster.index)
    recording = Recording(ALLOCATOR, 0.0)
    for elsewhere in (1, 80, 1):
        metrics.nominations.labels("written").inc(100)
        metrics.nominations.labels("elsewhere").inc(elsewhere)
        recording.take(generate_latest(metrics.registry).decode())
    check(rules, recording, [NONE, {"AscendNominationsStale"}, NONE], NAMES)
