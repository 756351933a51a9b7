"""Chips cut into virtual NPUs are not allocated, whether they were cut before the plugin started or later."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from ascend.daemon.observable import Observable
from device_plugin.chips.health_monitor import HealthMonitor
from device_plugin.chips.scanner import present_moment
from device_plugin.driver import ChipFacts, ChipState, Inventory, VirtualNpu
from device_plugin.health.fault_rules import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.handovers import HandOvers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from tests.device_plugin.api import running, until
from tests.device_plugin.builders import server


@dataclass
class Keeping:
    """A running health monitor with two chips."""

    keeper: HealthMonitor
    snapshots: Observable[Snapshot | None]
    announced: list[tuple[str, str]] = field(default_factory=list)

    def find(self, *cut: int) -> None:
        """Discover the chips and read each."""
        self.keeper.discovered(chips(*cut), present_moment())
        for chip_id in (0, 1):
            self.keeper.polled(chip_id, ChipState(), present_moment())

    async def wait_for_counts(self, *, offered: int, healthy: int) -> None:
        def is_so() -> bool:
            found = self.snapshots.value
            return found is not None and (found.all_chips, found.healthy) == (offered, healthy)

        await until(is_so)


def chips(*cut: int) -> Inventory:
    """Two chips, of which some are cut."""
    return server(*(ChipFacts(each, each, vnpus=(VirtualNpu(100, each),) if each in cut else ()) for each in (0, 1)))


@pytest.fixture
async def keeping() -> AsyncIterator[Keeping]:
    snapshots: Observable[Snapshot | None] = Observable(None)
    handovers = HandOvers()
    announced: list[tuple[str, str]] = []
    keeper = HealthMonitor(
        HealthBook(default_rules(), hold_s=0.0),
        snapshots,
        pods=NodePods(handovers.drop),
        handovers=handovers,
        metrics=Metrics(),
        announce=lambda reason, sentence, _warning: announced.append((reason, sentence)),
    )
    async with running(keeper.run()):
        yield Keeping(keeper, snapshots, announced)


async def test_a_chip_cut_before_the_start_is_not_offered_until_it_is_whole(keeping: Keeping) -> None:
    keeping.find(1)
    await keeping.wait_for_counts(offered=0b01, healthy=0b01)
    keeping.find()
    await keeping.wait_for_counts(offered=0b11, healthy=0b11)


async def test_a_chip_cut_later_is_unhealthy_until_it_is_whole(keeping: Keeping) -> None:
    keeping.find()
    await keeping.wait_for_counts(offered=0b11, healthy=0b11)
    keeping.find(1)
    await keeping.wait_for_counts(offered=0b11, healthy=0b01)
    assert keeping.announced == [("NPUUnhealthy", "Ascend910-1: it is cut into virtual chips")]
    keeping.find()
    await keeping.wait_for_counts(offered=0b11, healthy=0b11)
