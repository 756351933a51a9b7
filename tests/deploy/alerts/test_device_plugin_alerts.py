"""Each alert on a device plugin fires during its fault, and neither before nor after it."""

import tempfile
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest
from prometheus_client import generate_latest

from ascend.chips import RESOURCE
from ascend.kube.objects import PODS
from deploy.monitoring.alerts import ALERTS
from device_plugin.app import Plugin
from device_plugin.metrics import Metrics
from sandbox.cluster import pod_manifest
from tests.deploy.alerts import test_allocator_alerts as allocators
from tests.deploy.alerts.recording import PLUGIN, Recording, check
from tests.device_plugin.api import NODE, until
from tests.device_plugin.whole import Whole, whole_node

pytestmark = [pytest.mark.real]  # promtool comes with what the real cluster needs

NONE: Final = frozenset[str]()
# Without an allocator's series, none leads.
NAMES: Final = [alert.name for alert in ALERTS if alert.name != "AscendAllocatorNoLeader"]

Fault = Callable[[Whole, Plugin], AbstractAsyncContextManager[None]]


def value(plugin: Plugin, name: str, **labels: str) -> float:
    return plugin.metrics.registry.get_sample_value(f"ascend_dp_{name}", labels) or 0.0


def unhealthy(plugin: Plugin) -> float:
    """The number of chips that are unhealthy, for whatever reason."""
    (family,) = plugin.metrics.devices.collect()
    return sum(sample.value for sample in family.samples if sample.labels["state"] == "unhealthy")


@asynccontextmanager
async def a_free_chip_fails(whole: Whole, plugin: Plugin) -> AsyncIterator[None]:
    whole.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
    await until(lambda: unhealthy(plugin) == 1)
    yield
    whole.node.edit_chip(5, health="Healthy", fault_codes=[])
    await until(lambda: unhealthy(plugin) == 0)


@asynccontextmanager
async def a_chip_in_use_fails(whole: Whole, plugin: Plugin) -> AsyncIterator[None]:
    await whole.bind("works", 5)
    await whole.claimed("works")
    whole.node.edit_chip(5, health="Unhealthy", fault_codes=["80E18402"])
    await until(lambda: value(plugin, "used_unhealthy_chips") == 1)
    yield
    whole.node.edit_chip(5, health="Healthy", fault_codes=[])
    await until(lambda: unhealthy(plugin) == 0 and value(plugin, "used_unhealthy_chips") == 0)


@asynccontextmanager
async def the_driver_is_silent(whole: Whole, plugin: Plugin) -> AsyncIterator[None]:
    whole.node.edit_server(error="dcmi_init: -8005")
    await until(lambda: value(plugin, "devices", state="unhealthy", reason="DriverSilent") == 8)
    yield
    whole.node.edit_server(error="")
    await until(lambda: unhealthy(plugin) == 0)


@asynccontextmanager
async def a_pod_is_bound_without_chips(whole: Whole, _plugin: Plugin) -> AsyncIterator[None]:
    pod = await whole.client.create(PODS, pod_manifest("stray", 1), "default")
    await whole.client.bind(namespace="default", name="stray", uid=pod.uid, node=NODE, annotations={})
    await whole.failure("stray")
    yield


@asynccontextmanager
async def two_pods_have_one_chip_written(whole: Whole, _plugin: Plugin) -> AsyncIterator[None]:
    await whole.bind("first", 0)
    await whole.claimed("first")
    await whole.bind("second", 0)
    await whole.failure("second")
    yield


FAULTS: Final[dict[str, tuple[Fault, AbstractSet[str]]]] = {
    "AscendChipsUnhealthy": (a_free_chip_fails, NONE),
    "AscendPodsOnBrokenChips": (a_chip_in_use_fails, {"AscendChipsUnhealthy"}),
    "AscendDriverSilent": (the_driver_is_silent, {"AscendPodsOnBrokenChips"}),
}
PASSING: Final[dict[str, Fault]] = {
    "AscendSchedulerNotConnected": a_pod_is_bound_without_chips,
    "AscendAllocationsRefused": two_pods_have_one_chip_written,
}
"""Faults that are over as soon as they have happened: their alerts fire for a while."""


async def page(plugin: Plugin) -> str:
    """Its metrics, once no claim is under way: the annotations of a pod are written before the gauge says it."""
    await until(lambda: plugin.metrics.registry.get_sample_value("ascend_dp_claims_pending") == 0)
    return generate_latest(plugin.metrics.registry).decode()


async def recorded(fault: Fault) -> Recording:
    """The series of a device plugin before a fault, during it, and after it."""
    recording = Recording(PLUGIN, time.time())
    with tempfile.TemporaryDirectory(prefix="aa-") as folder:  # those of pytest are too long for sockets
        async with (
            whole_node(Path(folder)) as whole,
            whole.plugin(recovery_hold_s=0.1, stale_s=1.0) as plugin,
        ):
            await whole.bind("runs", 1)
            await whole.claimed("runs")
            recording.take(await page(plugin))
            async with fault(whole, plugin):
                recording.take(await page(plugin))
            recording.take(await page(plugin))
    return recording


@pytest.mark.parametrize("name", FAULTS)
async def test_an_alert_fires_during_its_fault_alone(name: str, rules: Path) -> None:
    fault, beside = FAULTS[name]
    check(rules, await recorded(fault), [NONE, beside | {name}, NONE], NAMES)


@pytest.mark.parametrize("name", PASSING)
async def test_an_alert_on_a_refusal_fires_for_a_while(name: str, rules: Path) -> None:
    check(rules, await recorded(PASSING[name]), [NONE, NONE, NONE], NAMES, first={name})


GAUGES: Final[dict[str, Callable[[Metrics, int], None]]] = {
    "AscendChipsAwaitReset": lambda metrics, number: metrics.manual_resets.set(number),
    "AscendPodsWithoutChips": lambda metrics, number: metrics.count_without(RESOURCE, number),
    "AscendForeignProcesses": lambda metrics, number: metrics.foreign_processes.labels(chip="Ascend910-0").set(number),
    "AscendClaimsPending": lambda metrics, number: metrics.claims_pending.set(number),
    "AscendBooksDisagree": lambda metrics, number: metrics.mismatches.inc(number),
}
"""Metrics of the device plugin, which other tests have it set."""


@pytest.mark.parametrize("name", GAUGES)
def test_an_alert_on_a_metric_fires_while_it_is_not_zero(name: str, rules: Path) -> None:
    metrics, recording = Metrics(), Recording(PLUGIN, 0.0)
    for number in (0, 1, 0):
        GAUGES[name](metrics, number)
        recording.take(generate_latest(metrics.registry).decode())
    check(rules, recording, [NONE, {name}, NONE], NAMES)


def test_each_alert_has_a_fault() -> None:
    told = allocators.FAULTS.keys() | allocators.TOLD | FAULTS.keys() | PASSING.keys() | GAUGES.keys()
    assert told == {alert.name for alert in ALERTS}
