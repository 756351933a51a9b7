"""Settings that change while the plugin runs."""

import asyncio
import functools
from pathlib import Path

import pytest
import yaml

from ascend.daemon.reload import SettingsReload
from ascend.daemon.settings import SettingsSource
from device_plugin import app as app_module
from device_plugin.app import Plugin
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry
from device_plugin.settings import Settings
from tests.device_plugin.api import running, sample, until
from tests.device_plugin.test_telemetry import by_chip, scrape, until_scraped
from tests.device_plugin.whole import Whole, as_given, whole_node


@pytest.fixture(autouse=True)
def _files_are_looked_at_more_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "SettingsReload", functools.partial(SettingsReload, poll_s=0.05))


def write(path: Path, whole: Whole, **changes: object) -> None:
    settings = as_given(whole.settings(host_ip="10.0.0.1")) | changes
    path.write_text(yaml.safe_dump(settings))


def count(plugin: Plugin, result: str) -> float:
    return sample(plugin.metrics, "ascend_dp_settings_reloads_total", {"result": result})


async def test_a_changed_file_changes_injection_and_recovery(folder: Path) -> None:
    async with whole_node(folder) as whole:
        file = folder / "settings.yaml"
        write(file, whole, injection="runtime", recovery_hold_s=0)
        source = SettingsSource(Settings, "p", ["--config", str(file)])
        plugin = Plugin(source.read(), source=source)
        async with running(plugin.run()):
            await until(lambda: whole.node.kubelet.allocatable("huawei.com/Ascend910") == 8)
            await whole.bind("before", 0)
            await whole.claimed("before")
            assert not whole.node.kubelet.container("default/before", "main").devices
            write(file, whole, injection="devices", recovery_hold_s=3600, driver="dcmi")
            await until(lambda: count(plugin, "needs_restart"))
            assert plugin.metrics.registry.get_sample_value("ascend_dp_settings_awaiting_restart") == 1
            await whole.bind("after", 1)
            await whole.claimed("after")
            container = whole.node.kubelet.container("default/after", "main")
            assert container.devices
            assert "ASCEND_VISIBLE_DEVICES" not in container.env
            # The new setting holds the chip back for an hour.
            whole.node.edit_chip(5, fault_codes=["80E18402"])
            await until(lambda: plugin.order.advertised.value == 0xDF)
            whole.node.edit_chip(5, fault_codes=[])
            await until(lambda: _reason(plugin, 5) == "Recovering")
            # A shorter hold frees the chip at once.
            write(file, whole, injection="devices", recovery_hold_s=0)
            await until(lambda: plugin.order.advertised.value == 0xFF)


async def test_a_way_of_injection_that_does_not_work_yet_replaces_none_that_does(folder: Path) -> None:
    async with whole_node(folder) as whole:
        file = folder / "settings.yaml"
        # As in a pod that began without the node's folder of CDI files: its file system is read-only.
        not_mounted = folder / "not-mounted"
        not_mounted.touch()
        write(file, whole, injection="runtime", cdi_dir=str(not_mounted / "cdi"))
        source = SettingsSource(Settings, "p", ["--config", str(file)])
        plugin = Plugin(source.read(), source=source)
        async with running(plugin.run()):
            await until(lambda: whole.node.kubelet.allocatable("huawei.com/Ascend910") == 8)
            write(file, whole, injection="cdi", cdi_dir=str(not_mounted / "cdi"))
            await until(lambda: count(plugin, "applied"))
            await whole.bind("train", 0, 1)
            await whole.claimed("train")
            assert whole.visible("train") == (0, 1)


async def test_a_way_of_injection_from_before_the_start_is_prepared_at_the_start(folder: Path) -> None:
    async with whole_node(folder) as whole:
        file = folder / "settings.yaml"
        cdi = folder / "cdi"
        write(file, whole, node_name="later", injection="runtime", cdi_dir=str(cdi))
        source = SettingsSource(Settings, "p", ["--config", str(file)])
        plugin = Plugin(source.read(), source=source)
        async with running(plugin.run()):
            write(file, whole, node_name="later", injection="cdi", cdi_dir=str(cdi))
            await until(lambda: count(plugin, "applied"))
            # Another instance may work here meanwhile, and write the file.
            assert not cdi.exists()
            await whole.cluster.server.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "later"}})
            await until(cdi.exists)


async def test_a_shorter_interval_of_the_telemetry_takes_effect_at_once(folder: Path) -> None:
    async with whole_node(folder) as whole:
        file = folder / "settings.yaml"
        write(file, whole, telemetry=True, telemetry_interval_s=300)
        source = SettingsSource(Settings, "p", ["--config", str(file)])
        plugin = Plugin(source.read(), source=source)
        async with running(plugin.run()):
            await until(lambda: whole.node.kubelet.allocatable("huawei.com/Ascend910") == 8)
            measured = dict.fromkeys(range(8), 41.0)
            assert by_chip((await scrape(plugin))["npu_chip_info_temperature"]) == measured
            whole.node.edit_chip(3, telemetry=SimulatedTelemetry(temperature=77))
            assert by_chip((await scrape(plugin))["npu_chip_info_temperature"]) == measured
            write(file, whole, telemetry=True, telemetry_interval_s=0.5)
            await until_scraped(plugin, "npu_chip_info_temperature", measured | {3: 77})


async def test_a_bad_file_changes_nothing(folder: Path) -> None:
    async with whole_node(folder) as whole:
        file = folder / "settings.yaml"
        write(file, whole)
        source = SettingsSource(Settings, "p", ["--config", str(file)])
        plugin = Plugin(source.read(), source=source)
        async with running(plugin.run()) as task:
            await until(lambda: whole.node.kubelet.allocatable("huawei.com/Ascend910") == 8)
            write(file, whole, recovery_hold_s=-1, colour="red")
            await until(lambda: count(plugin, "refused"))
            await asyncio.sleep(0)
            assert not task.done()
            await whole.bind("train", 0, 1)
            await whole.claimed("train")


def _reason(plugin: Plugin, chip_id: int) -> str:
    snapshot = plugin.snapshots.value
    return "" if snapshot is None else snapshot.chips[chip_id].reason
