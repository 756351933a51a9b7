"""From a chip's fault to report, kubelet, Events and metrics: the whole plugin on a sandbox node."""

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from ascend.chips import RESOURCE
from ascend.cordons import CORDONED, Cordon, write_cordons
from ascend.deviceinfo import DeviceReport, config_map_name, decode_report, encode_report
from ascend.errors import InvalidReport, NotFound
from ascend.kube.objects import CONFIG_MAPS, NODES, ConfigMap, JsonObject
from device_plugin.app import Plugin
from device_plugin.driver import LINK_DOWN
from device_plugin.health.levels import FaultLevel
from device_plugin.health.upgrades import UpgradeReason
from device_plugin.publish import reporter as report_module
from device_plugin.publish.device_info_configmap import SIGNATURE
from device_plugin.publish.readmission_labels import CHIPS
from device_plugin.publish.report import make_report
from tests.device_plugin.api import NODE, running, sample, until
from tests.device_plugin.builders import fault, judged_chip, snapshot
from tests.device_plugin.whole import Whole, whole_node

KUBE_SYSTEM = "kube-system"
REPORT = config_map_name(NODE)
FAULT_RULES = "mindx-dl-fault-config"


class Site:
    """A node with its plugin, and what others see of its chips."""

    def __init__(self, whole: Whole, plugin: Plugin) -> None:
        self.whole = whole
        self.plugin = plugin

    async def config_map(self) -> ConfigMap:
        return await self.whole.client.get(CONFIG_MAPS, REPORT, KUBE_SYSTEM)

    async def reported(self, **wanted: int) -> DeviceReport:
        """Wait until the report has these values."""
        async with asyncio.timeout(20.0):
            while True:
                # Before the plugin's first report there may be none.
                with contextlib.suppress(NotFound, InvalidReport):
                    latest = decode_report((await self.config_map()).data)
                    if all(getattr(latest, name) == value for name, value in wanted.items()):
                        return latest
                await asyncio.sleep(0.01)

    async def offered(self, count: int) -> None:
        """Wait until the kubelet offers this number of chips."""
        await until(lambda: self.whole.node.kubelet.allocatable(RESOURCE) == count, timeout_s=20.0)

    async def edit(self, text: str) -> None:
        """Edit ManuallySeparateNPU as an operator does."""
        body: JsonObject = {"data": {"ManuallySeparateNPU": text}}
        await self.whole.client.patch(CONFIG_MAPS, REPORT, body, namespace=KUBE_SYSTEM)

    async def all_events(self) -> list[tuple[str, str]]:
        """The Events of the Node as (reason, note)."""
        answer = await self.whole.client.request("GET", "/apis/events.k8s.io/v1/events")
        found: dict[str, Any] = json.loads(answer)
        return [(each["reason"], each["note"]) for each in found["items"] if each["regarding"]["kind"] == "Node"]

    async def events(self) -> dict[str, str]:
        """The Events of the Node: notes by reason."""
        return dict(await self.all_events())

    async def labelled(self, chips: str | None) -> None:
        """Wait until the Node's label lists these chips as awaiting readmission."""
        async with asyncio.timeout(20.0):
            while True:
                if (await self.whole.client.get(NODES, NODE)).metadata.labels.get(CHIPS) == chips:
                    return
                await asyncio.sleep(0.01)

    async def announced(self, reason: str) -> str:
        """Wait for an Event; return its note."""
        async with asyncio.timeout(20.0):
            while True:
                if (note := (await self.events()).get(reason)) is not None:
                    return note
                await asyncio.sleep(0.01)

    def counted(self, to: str, reason: str) -> float:
        labels = {"to": to, "reason": reason}
        return sample(self.plugin.metrics, "ascend_dp_health_transitions_total", labels)


@pytest.fixture(autouse=True)
def _reports_follow_each_other_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    # The reporter's tests cover this gap; here each step would wait for it.
    monkeypatch.setattr(report_module, "MIN_GAP_S", 0.05)


@pytest.fixture
async def site(folder: Path) -> AsyncIterator[Site]:
    async with whole_node(folder) as whole, whole.plugin(recovery_hold_s=0.05) as plugin:
        site = Site(whole, plugin)
        await site.reported(free=0xFF)
        yield site


async def test_a_fault_and_its_end_reach_report_kubelet_event_and_metric(site: Site) -> None:
    site.whole.node.edit_chip(3, fault_codes=["80E18402"])
    latest = await site.reported(unhealthy=0b1000)
    assert latest.free == 0xF7
    (fault,) = latest.faults
    assert (fault.npu_name, fault.fault_code, fault.fault_level) == ("Ascend910-3", "80E18402", "SeparateNPU")
    await site.offered(7)
    assert await site.announced("NPUUnhealthy") == "Ascend910-3: 80E18402 (SeparateNPU)"
    assert site.counted("unhealthy", "Fault") == 1
    site.whole.node.edit_chip(3, fault_codes=[])
    latest = await site.reported(unhealthy=0, free=0xFF)
    assert latest.faults == ()
    await site.offered(8)
    assert await site.announced("NPURecovered") == "Ascend910-3 is healthy again"


async def test_the_report_never_has_more_free_chips_than_the_node(site: Site) -> None:
    # Volcano refuses a node whose report lists more free chips than the kubelet offers
    # (docs/spec/node-report.md#stable-device-count).
    excess: list[tuple[int, int]] = []

    async def look(_operation: str, resource: Any, _subresource: str, document: JsonObject) -> JsonObject:
        if resource.plural == "configmaps" and document["metadata"]["name"] == REPORT:
            free = decode_report(document["data"]).free.bit_count()
            healthy = sum(health == "Healthy" for health in site.whole.node.kubelet.devices(RESOURCE).values())
            if free > healthy:
                excess.append((free, healthy))
        return document

    site.whole.cluster.server.admission.append(look)
    for chips in (0b1, 0b110, 0, 0xFF, 0):
        for chip_id in range(8):
            site.whole.node.edit_chip(chip_id, health="Unhealthy" if chips >> chip_id & 1 else "Healthy")
        await site.reported(unhealthy=chips, free=0xFF & ~chips)
        await site.offered(8 - chips.bit_count())
    assert excess == []


async def test_a_network_fault_is_reported_but_not_to_the_kubelet(site: Site) -> None:
    site.whole.node.edit_chip(1, network_health="Unhealthy")
    latest = await site.reported(network_unhealthy=0b10)
    assert (latest.unhealthy, latest.free) == (0, 0xFF)
    assert "Ascend910-1" in await site.announced("NPUNetworkUnhealthy")
    assert site.whole.node.kubelet.allocatable(RESOURCE) == 8


async def test_an_operator_separates_a_chip_and_puts_it_back(site: Site) -> None:
    await site.edit("Ascend910-5")
    latest = await site.reported(unhealthy=0b10_0000)
    assert latest.manually_separated == 0b10_0000
    await site.offered(7)
    assert "Ascend910-5" in await site.announced("NPUUnhealthy")
    assert site.counted("unhealthy", "ManuallySeparated") == 1
    await site.edit("")
    await site.reported(unhealthy=0, manually_separated=0, free=0xFF)
    await site.offered(8)


async def test_the_commands_for_operators_take_chips_out_of_use_and_back(folder: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "device-plugin.md").read_text()
    commands = re.findall(r"^kubectl -n (\S+) patch configmap (\S+) --type merge -p '(.*)'", page, re.MULTILINE)
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        site = Site(whole, plugin)
        await site.reported(free=0xFF)
        ((namespace, name, body),) = commands
        assert (namespace, name.replace("NODE", NODE)) == (KUBE_SYSTEM, REPORT)
        for changed, separated in ((body, 0b10_0100), (body.replace("Ascend910-2,", ""), 0b10_0000)):
            await whole.client.patch(CONFIG_MAPS, REPORT, json.loads(changed), namespace=namespace)
            await site.reported(unhealthy=separated, free=0xFF & ~separated)


@pytest.mark.parametrize("when", ["before the start", "while it runs"])
async def test_a_cordon_takes_a_chip_out_of_use_whose_port_a_rule_has_separated(folder: Path, when: str) -> None:
    async with whole_node(folder) as whole:
        why = UpgradeReason(LINK_DOWN, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", time.time_ns() // 10**6)
        before = encode_report(make_report(snapshot(manually_separated=0b1000, upgrade_reasons={3: (why,)}), 1))
        annotations: JsonObject = {CORDONED: write_cordons({3: Cordon("fan")})}
        metadata: JsonObject = {"name": REPORT, "namespace": KUBE_SYSTEM}
        if when == "before the start":
            metadata["annotations"] = annotations
        body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": before}
        await whole.client.create(CONFIG_MAPS, body, KUBE_SYSTEM)
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            site = Site(whole, plugin)
            if when == "while it runs":
                await site.reported(unhealthy=0, network_unhealthy=0b1000, manually_separated=0b1000)
                await site.offered(8)
                change: JsonObject = {"metadata": {"annotations": annotations}}
                await whole.client.patch(CONFIG_MAPS, REPORT, change, namespace=KUBE_SYSTEM)
            await site.reported(unhealthy=0b1000, manually_separated=0b1000)
            await site.offered(7)
            # The annotation goes with the entry of the list.
            await site.edit("")
            await site.reported(unhealthy=0, manually_separated=0)
            await site.offered(8)
            assert CORDONED not in (await site.config_map()).metadata.annotations


async def test_a_separated_entry_that_is_no_chip_is_kept_and_announced(folder: Path) -> None:
    async with whole_node(folder) as whole:
        with structlog.testing.capture_logs() as logs:
            async with whole.plugin() as plugin:
                site = Site(whole, plugin)
                await site.reported(free=0xFF)
                await site.edit("Ascend910-5,Ascend910-77,Ascend910-x")
                await site.reported(unhealthy=0b10_0000)
                listed = "Ascend910-5,Ascend910-77,Ascend910-x"
                assert (await site.config_map()).data["ManuallySeparateNPU"] == listed
                assert "is not a chip of this node" in await site.announced("NPUSeparationUnknown")
                await site.edit("Ascend910-77,Ascend910-x")
                await site.reported(unhealthy=0)
                latest = [note for reason, note in await site.all_events() if reason == "NPUSeparationUnknown"]
                assert sorted(note.split(" ")[1] for note in latest) == ["'Ascend910-77'", "'Ascend910-x'"]
        assert sum("a chip this node does not have" in line["event"] for line in logs) == 2
        listed = "Ascend910-77,Ascend910-x"
        assert (await site.config_map()).data["ManuallySeparateNPU"] == listed
        async with whole.plugin() as plugin:
            site = Site(whole, plugin)
            await site.reported(free=0xFF)
            assert (await site.config_map()).data["ManuallySeparateNPU"] == listed
            await site.edit("")
            whole.node.edit_chip(0, fault_codes=["80E18402"])
            await site.reported(unhealthy=1)
            assert (await site.config_map()).data["ManuallySeparateNPU"] == ""


async def test_a_separated_chip_stays_separated_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            site = Site(whole, plugin)
            await site.reported(free=0xFF)
            await site.edit("Ascend910-2")
            await site.reported(unhealthy=0b100)
        latest = decode_report((await site.config_map()).data)
        assert (latest.update_time_s, latest.manually_separated) == (0, 0b100)
        # Put back while no plugin runs: this counts as well.
        await site.edit("Ascend910-2,Ascend910-6")
        second = Plugin(whole.settings())
        task = asyncio.create_task(second.run())
        try:
            again = Site(whole, second)
            await again.reported(unhealthy=0b100_0100, manually_separated=0b100_0100)
            await again.offered(6)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def told_harmless_before(whole: Whole, **annotations: str) -> None:
    """A report that calls a fault of chip 3 harmless, for which there is no other severity."""
    harmless = judged_chip(level=FaultLevel.NOT_HANDLE, faults=(fault("DEAD", FaultLevel.NOT_HANDLE),))
    before = encode_report(make_report(snapshot(chips={3: harmless}), 1))
    metadata = {"name": REPORT, "namespace": KUBE_SYSTEM, "annotations": annotations}
    body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": before}
    await whole.client.create(CONFIG_MAPS, body, KUBE_SYSTEM)
    whole.node.edit_chip(3, fault_codes=["DEAD"])


async def test_a_fault_harmless_by_its_event_stays_so_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await told_harmless_before(whole, **SIGNATURE)
        async with whole.plugin() as plugin:
            latest = await Site(whole, plugin).reported(free=0xFF, unhealthy=0)
            assert [(each.npu_name, each.fault_level) for each in latest.faults] == [("Ascend910-3", "NotHandleFault")]


async def test_a_fault_another_plugin_called_harmless_bars_the_chip(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await told_harmless_before(whole)
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            latest = await Site(whole, plugin).reported(free=0xF7, unhealthy=0b1000)
            assert [(each.npu_name, each.fault_level) for each in latest.faults] == [("Ascend910-3", "SeparateNPU")]


async def test_an_unreadable_earlier_report_does_not_prevent_the_start(folder: Path) -> None:
    async with whole_node(folder) as whole:
        data = {"DeviceInfoCfg": "{}", "UpgradeFaultReason": "[]"}
        body: JsonObject = {"metadata": {"name": REPORT, "namespace": KUBE_SYSTEM}, "data": data}
        await whole.client.create(CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", **body}, KUBE_SYSTEM)
        async with whole.plugin() as plugin:
            await Site(whole, plugin).reported(free=0xFF)


async def test_readmission_labels_are_removed_once_readmission_is_automatic(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin(recovery_hold_s=0.05, readmission="manual") as plugin:
            site = Site(whole, plugin)
            await site.reported(free=0xFF)
            whole.node.edit_chip(3, fault_codes=["80E18402"])
            await site.reported(unhealthy=0b1000)
            whole.node.edit_chip(3, fault_codes=[])
            await site.labelled("3")
        async with whole.plugin() as plugin:
            site = Site(whole, plugin)
            await site.reported(free=0xFF, unhealthy=0)
            await site.labelled(None)


async def test_a_sites_rules_apply_at_once_and_the_defaults_once_they_are_deleted(site: Site) -> None:
    site.whole.node.edit_chip(0, fault_codes=["80E18402"])
    await site.reported(unhealthy=0b1)
    harmless = {"faultCode.json": json.dumps({"NotHandleFaultCodes": ["80E18402", "no code"]})}
    body: JsonObject = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": FAULT_RULES, "namespace": KUBE_SYSTEM},
        "data": harmless,
    }
    await site.whole.client.create(CONFIG_MAPS, body, KUBE_SYSTEM)
    latest = await site.reported(unhealthy=0)
    assert latest.faults[0].fault_level == "NotHandleFault"
    assert '"no code"' in await site.announced("NPUFaultRulesInvalid")
    await site.whole.client.delete(CONFIG_MAPS, FAULT_RULES, KUBE_SYSTEM)
    await site.reported(unhealthy=0b1)


async def test_a_driver_call_that_hangs_delays_no_other_chip_and_no_pod(folder: Path) -> None:
    async with whole_node(folder) as whole, whole.plugin(stale_s=1.5, recovery_hold_s=0.05) as plugin:
        site = Site(whole, plugin)
        whole.node.edit_chip(7, delay_s=3.0)
        await site.reported(unhealthy=0x80)
        assert site.counted("unhealthy", "DriverSilent") == 1
        whole.node.edit_chip(2, fault_codes=["80E18402"])
        await site.reported(unhealthy=0x84)
        await whole.bind("one", 0, 1)
        await whole.claimed("one")
        whole.node.edit_chip(7, delay_s=0.0)
        await site.reported(unhealthy=0x04)
