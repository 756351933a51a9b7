"""The whole plugin resets chips of the library, which ends the process if a chip in use is reset."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ascend.chips import RESOURCE, chip_ids
from device_plugin.app import Plugin
from device_plugin.driver.telemetry import Reading
from device_plugin.reset import group_reset
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910a, ascend_910b, ascend_a3
from tests.device_plugin.api import running, sample, until
from tests.device_plugin.test_telemetry import scrape, until_scraped
from tests.device_plugin.whole import Whole, check_hand_over, whole_node

FAULT = 0x80A18008  # RestartNPU
FOREIGN = 0x80E18402  # SeparateNPU


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for sockets, with a short path."""
    with tempfile.TemporaryDirectory(prefix="dp-") as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits themselves are tested on a virtual clock."""
    for name, seconds in {"SETTLE_S": 0.3, "POLL_S": 0.05, "SLOW_POLL_S": 0.2, "RECHECK_S": 0.1}.items():
        monkeypatch.setattr(group_reset, name, seconds)


class Server:
    """A node whose plugin reads the library."""

    def __init__(self, whole: Whole, fake: FakeDcmi, chips: int) -> None:
        self.whole = whole
        self.fake = fake
        self.chips = chips

    @asynccontextmanager
    async def plugin(self, **changes: object) -> AsyncIterator[Plugin]:
        """A plugin that may reset chips; the library knows which chips its pods hold."""
        settings = self.whole.settings(
            driver="dcmi",
            dcmi_library=self.fake.library,
            hot_reset="on",
            hot_reset_idle_s=0.2,
            recovery_hold_s=0.1,
            readmission="automatic",
            **changes,
        )
        plugin = Plugin(settings)
        async with running(plugin.run()), running(self._mark_held(plugin)):
            yield plugin

    async def _mark_held(self, plugin: Plugin) -> None:
        while True:
            version = plugin.allocations.changes.version
            used = plugin.ledgers.whole.used
            for chip in range(self.chips):
                if self.fake.chip(chip).held != bool(used >> chip & 1):
                    self.fake.chip(chip).held = bool(used >> chip & 1)
            await plugin.allocations.changes.newer_than(version)

    @property
    def unhealthy(self) -> set[int]:
        """What the kubelet thinks; every chip before the first list."""
        devices = self.whole.node.kubelet.devices(RESOURCE)
        return {chip for chip in range(self.chips) if devices.get(f"Ascend910-{chip}") != "Healthy"}


@asynccontextmanager
async def node(folder: Path, make_fake: MakeFake, chips: list[FakeChip]) -> AsyncIterator[Server]:
    fake = make_fake(chips)
    async with whole_node(folder) as whole:
        yield Server(whole, fake, len(chips))


def resets(plugin: Plugin, result: str) -> float:
    return sample(plugin.metrics, "ascend_dp_hot_resets_total", {"result": result})


def manual(plugin: Plugin) -> float:
    return sample(plugin.metrics, "ascend_dp_chips_awaiting_manual_reset")


@pytest.mark.parametrize(
    ("chips", "group"),
    [(ascend_910a(), {4, 5, 6, 7}), (ascend_910b(), set(range(8))), (ascend_a3(), {4, 5, 12, 13})],
    ids=["910A", "910B", "A3"],
)
async def test_a_group_is_reset_and_comes_back(
    folder: Path, make_fake: MakeFake, chips: list[FakeChip], group: set[int]
) -> None:
    async with node(folder, make_fake, chips) as server, server.plugin() as plugin:
        server.fake.set(down_s=0.3, boot_s=0.3)
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        server.fake.chip(5).codes = (FAULT,)
        await until(lambda: server.unhealthy == group)
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        assert resets(plugin, "succeeded") == 1
        assert server.fake.calls()["dcmi_set_device_reset"] == 1


async def test_every_faulty_chip_of_a_ring_is_reset_in_one_attempt(folder: Path, make_fake: MakeFake) -> None:
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin(hot_resets_per_hour=1) as plugin:
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        for chip in (1, 2, 3):
            server.fake.chip(chip).codes = (FAULT,)
        await until(lambda: server.unhealthy == {0, 1, 2, 3})
        await until(lambda: not server.unhealthy, timeout_s=30.0)
        assert (resets(plugin, "succeeded"), resets(plugin, "failed"), manual(plugin)) == (1, 0, 0)
        assert server.fake.calls()["dcmi_set_device_reset"] == 3


async def test_chips_are_not_measured_while_they_are_reset(folder: Path, make_fake: MakeFake) -> None:
    telemetry = {"telemetry": True, "telemetry_interval_s": 0.5}
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin(**telemetry) as plugin:
        server.fake.set(down_s=1.5, boot_s=0.5)
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        await until_scraped(plugin, "npu_chip_info_power", dict.fromkeys(range(8), 92.5))
        server.fake.chip(5).codes = (FAULT,)
        await until(lambda: server.unhealthy == {4, 5, 6, 7})
        await until_scraped(plugin, "npu_chip_info_power", dict.fromkeys(range(4), 92.5))
        while server.unhealthy:
            await scrape(plugin)
        await until_scraped(plugin, "npu_chip_info_power", dict.fromkeys(range(8), 92.5))
        assert resets(plugin, "succeeded") == 1
        # The reset can begin in the middle of a round: no chip fails in more than one.
        registry = plugin.metrics.registry
        failures = [
            registry.get_sample_value("ascend_dp_telemetry_failures_total", {"value": each}) or 0 for each in Reading
        ]
        assert max(failures) <= 4


async def test_chips_of_running_pods_are_never_reset_while_faults_come_and_go(
    folder: Path, make_fake: MakeFake
) -> None:
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin() as plugin:
        whole = server.whole
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        await whole.bind("holder", 0, 1)
        await whole.claimed("holder")
        server.fake.chip(2).codes = (FAULT,)
        server.fake.chip(6).codes = (FAULT,)
        await until(lambda: resets(plugin, "succeeded") == 1, timeout_s=20.0)
        await until(lambda: server.unhealthy == {2})
        pod = whole.find("holder")
        assert pod is not None
        check_hand_over(whole, pod)
        assert server.fake.calls()["dcmi_set_device_reset"] == 1


async def test_a_hanging_reset_stops_neither_health_nor_pods_and_can_end_well(
    folder: Path, make_fake: MakeFake
) -> None:
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin() as plugin:
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        with server.fake.hang("dcmi_set_device_reset"):
            server.fake.chip(2).codes = (FAULT,)
            await until(lambda: server.fake.calls()["dcmi_set_device_reset"] == 1)
            await server.whole.bind("other", 4, 5)
            check_hand_over(server.whole, await server.whole.claimed("other"))
            server.fake.chip(6).codes = (FOREIGN,)
            await until(lambda: server.unhealthy == {0, 1, 2, 3, 6})
        await until(lambda: server.unhealthy == {6}, timeout_s=20.0)
        assert resets(plugin, "succeeded") == 1


async def test_a_reset_that_the_driver_refuses_releases_the_others(folder: Path, make_fake: MakeFake) -> None:
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin() as plugin:
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        with server.fake.fail("dcmi_set_device_reset", -8015):
            server.fake.chip(2).codes = (FAULT,)
            await until(lambda: resets(plugin, "failed") == 1, timeout_s=20.0)
            await until(lambda: server.unhealthy == {2})
            assert manual(plugin) == 1


async def test_a_chip_that_does_not_start_stays_withheld_alone(
    folder: Path, make_fake: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_reset, "BOOT_LIMIT_S", 1.0)
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin() as plugin:
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        server.fake.chip(3).boot = 2
        server.fake.chip(3).codes = (FAULT,)
        await until(lambda: resets(plugin, "failed") == 1, timeout_s=20.0)
        await until(lambda: server.unhealthy == {3})
        assert manual(plugin) == 1
        server.fake.chip(3).boot = 16
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        assert manual(plugin) == 0


async def test_a_plugin_restarted_during_a_reset_withholds_the_chips_until_they_have_started(
    folder: Path, make_fake: MakeFake
) -> None:
    async with node(folder, make_fake, ascend_910b()) as server:
        server.fake.set(down_s=0.1, boot_s=6.0)
        async with server.plugin():
            await until(lambda: not server.unhealthy, timeout_s=20.0)
            server.fake.chip(2).codes = (FAULT,)
            await until(lambda: server.fake.calls()["dcmi_set_device_reset"] == 1)
        async with server.plugin() as plugin:
            seen: list[tuple[int, ...]] = []

            def is_over() -> bool:
                seen.append(tuple(sorted(server.unhealthy)))
                return not seen[-1]

            await until(is_over, timeout_s=20.0)
            # From the first list of the new plugin on: the chips of the group, until all have started.
            assert [*dict.fromkeys(seen)][-2:] == [(*range(8),), ()]
            assert server.fake.calls()["dcmi_set_device_reset"] == 1
            assert chip_ids(plugin.snapshots.value.recovering if plugin.snapshots.value else 0) == ()


async def test_events_and_readings_during_a_reset_are_no_faults(folder: Path, make_fake: MakeFake) -> None:
    async with node(folder, make_fake, ascend_910a()) as server, server.plugin() as plugin:
        server.fake.set(down_s=1.0, boot_s=0.2)
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        server.fake.chip(2).codes = (FAULT,)
        await until(lambda: server.fake.calls()["dcmi_set_device_reset"] == 1)
        for _ in range(3):
            server.fake.event(1, 0x40F84E00, 1, 3)
        await until(lambda: not server.unhealthy, timeout_s=20.0)
        assert resets(plugin, "succeeded") == 1
        snapshot = plugin.snapshots.value
        assert snapshot is not None
        assert not snapshot.upgrade_reasons
