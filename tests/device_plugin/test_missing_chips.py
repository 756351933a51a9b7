"""Chips the node had before a restart and the driver does not list any more: unhealthy, not vanished."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from ascend.annotations import BASE_DEVICE_INFOS, ChipAddress
from ascend.chips import RESOURCE, ChipSet
from ascend.kube.objects import NODES
from device_plugin.app import Plugin
from device_plugin.driver import ChipFacts, ChipState, VirtualNpu
from device_plugin.driver.simulated import SimulatedServer
from device_plugin.health import HealthKeeper
from device_plugin.metrics import Metrics
from device_plugin.rules.fault_rules import default_rules
from device_plugin.rules.snapshot import Snapshot
from device_plugin.scan import present_moment
from device_plugin.state.grants import HandOvers
from device_plugin.state.health import HealthBook
from device_plugin.state.observable import Observable
from device_plugin.state.pods import NodePods
from tests.device_plugin.api import NODE, running, until
from tests.device_plugin.builders import server
from tests.device_plugin.test_chip_health import Site
from tests.device_plugin.whole import Whole, whole_node

BEFORE = {0: ChipAddress("10.0.0.1"), 1: ChipAddress("10.0.0.2", 7)}


class Keeping:
    """A keeper that starts after a restart; the node had two chips before."""

    def __init__(self) -> None:
        handovers = HandOvers()
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.said: list[tuple[str, str]] = []
        self.keeper = HealthKeeper(
            HealthBook(default_rules(), hold_s=0.0),
            self.snapshots,
            pods=NodePods(handovers.drop),
            handovers=handovers,
            metrics=Metrics(),
            announce=lambda reason, sentence, _warning: self.said.append((reason, sentence)),
        )

    def find(self, *chips: ChipFacts) -> None:
        self.keeper.discovered(server(*chips), present_moment())

    def restore(self, offered: Mapping[int, ChipAddress] = BEFORE) -> None:
        self.keeper.restore(manually_separated=0, reasons={}, harmless={}, offered=offered)

    def read(self, *chips: int) -> None:
        for chip in chips:
            self.keeper.polled(chip, ChipState(), present_moment())

    async def told(self, *, offered: ChipSet, healthy: ChipSet) -> Snapshot:
        def is_so() -> bool:
            found = self.snapshots.value
            return found is not None and (found.all_chips, found.healthy) == (offered, healthy)

        await until(is_so)
        assert self.snapshots.value is not None
        return self.snapshots.value


@pytest.mark.parametrize("restored_first", [True, False])
async def test_a_chip_the_driver_does_not_list_at_the_start_is_unhealthy_until_it_does(*, restored_first: bool) -> None:
    keeping = Keeping()
    if restored_first:
        keeping.restore()
    keeping.find(ChipFacts(0, 0))
    if not restored_first:
        keeping.restore()
    async with running(keeping.keeper.run()):
        keeping.read(0)
        found = await keeping.told(offered=0b11, healthy=0b01)
        assert found.chips[1].address == BEFORE[1]
        assert found.chips[1].verdict.reason == "DriverSilent"
        assert keeping.said == [("NPUUnhealthy", "Ascend910-1: the driver has not told of it yet")]
        keeping.find(ChipFacts(0, 0), ChipFacts(1, 1))
        keeping.read(0, 1)
        await keeping.told(offered=0b11, healthy=0b11)


async def test_a_chip_that_is_there_is_not_missed_neither_whole_nor_cut() -> None:
    keeping = Keeping()
    keeping.restore()
    keeping.find(ChipFacts(0, 0), ChipFacts(1, 1, vnpus=(VirtualNpu(100, 1),)))
    # What goes later is another matter, and this one was not offered.
    keeping.find(ChipFacts(0, 0))
    async with running(keeping.keeper.run()):
        keeping.read(0)
        await keeping.told(offered=0b01, healthy=0b01)


async def test_a_chip_that_is_gone_after_a_restart_is_told_unhealthy_until_the_node_s_annotation_is_deleted(
    folder: Path,
) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            await Site(whole, plugin).reported(free=0xFF)
        remove(whole, 5)
        # Once more: what is missing stays written down.
        for _ in range(2):
            plugin = Plugin(whole.settings())
            async with running(plugin.run()):
                await Site(whole, plugin).reported(free=0xDF, unhealthy=0x20)
                await Site(whole, plugin).offered(7)
                devices = whole.node.kubelet.devices(RESOURCE)
                assert [name for name, health in devices.items() if health == "Unhealthy"] == ["Ascend910-5"]
        await whole.client.patch(NODES, NODE, {"metadata": {"annotations": {BASE_DEVICE_INFOS: None}}})
        plugin = Plugin(whole.settings())
        async with running(plugin.run()):
            await Site(whole, plugin).reported(free=0xDF, unhealthy=0)
            await until(lambda: len(whole.node.kubelet.devices(RESOURCE)) == 7)


async def test_an_annotation_that_can_not_be_read_does_not_keep_the_plugin_from_starting(folder: Path) -> None:
    async with whole_node(folder) as whole:
        await whole.client.patch(NODES, NODE, {"metadata": {"annotations": {BASE_DEVICE_INFOS: '{"chip5": {}}'}}})
        async with whole.plugin() as plugin:
            await Site(whole, plugin).reported(free=0xFF)


def remove(whole: Whole, chip_id: int) -> None:
    """The driver does not list this chip any more."""
    state = whole.node.state_file
    simulated = msgspec.json.decode(state.read_bytes(), type=SimulatedServer)
    simulated.chips = [chip for chip in simulated.chips if chip.id != chip_id]
    simulated.save(state)
