"""What is given back of the chips, on a driver that takes its time."""

import asyncio
from dataclasses import dataclass, field

import pytest

from ascend.daemon.observable import Observable
from ascend.vnpus import parse_vnpu
from device_plugin.device_types import CORES
from device_plugin.driver import Division, VirtualNpu
from device_plugin.ledger.allocations import Allocation
from device_plugin.ledger.cores import CoreLedger
from device_plugin.metrics import Metrics
from device_plugin.pods.core_keeper import CoreKeeper
from device_plugin.pods.cut_vnpus import CutVnpus
from device_plugin.pods.cutter import Cutter, Outcome
from device_plugin.pods.notices import PodNotices


class SlowCutter(Cutter):
    """Destroys a vNPU once it may.

    Args:
        vnpus: what the driver has, by chip.
    """

    def __init__(self, **vnpus: VirtualNpu) -> None:
        self.vnpus = {vnpu.phy_id: [vnpu] for vnpu in vnpus.values()}
        self.may_go_on = asyncio.Event()
        self.has_begun = asyncio.Event()

    async def division(self, chip: int, within_s: float) -> Division:  # noqa: ARG002 - it answers at once
        return Division(vnpus=tuple(self.vnpus[chip]), free_cores=15, free_cpus=6)

    async def destroy(self, vnpu: VirtualNpu, within_s: float) -> Outcome:  # noqa: ARG002 - it has no deadline
        self.has_begun.set()
        await self.may_go_on.wait()
        self.vnpus[vnpu.phy_id].remove(vnpu)
        return "destroyed"


def cut(vdev_id: int, chip: int) -> VirtualNpu:
    return VirtualNpu.of_vnpu(parse_vnpu(f"Ascend910-5c.1cpu.16g-{vdev_id}-{chip}"))


FIRST, SECOND = cut(100, 0), cut(101, 1)


@dataclass
class Rig:
    """A pod has a vNPU of chip 0, and one on chip 1 belongs to nobody."""

    cutter: SlowCutter = field(default_factory=lambda: SlowCutter(first=FIRST, second=SECOND))
    ledger: CoreLedger = field(default_factory=lambda: CoreLedger(Observable(None)))
    allocation: Allocation = field(
        default_factory=lambda: Allocation("u", "default/first", (0,), (1,), (), CORES, "vir05_1c_16g", FIRST)
    )

    def __post_init__(self) -> None:
        self.vnpus = CutVnpus(self.cutter, lambda: [0, 1])
        self.ledger.allocations.kept["u"] = self.allocation
        self.ledger.is_settled.set(True)
        notices = PodNotices(self.ledger.pods, lambda *_: None, Metrics())
        self.keeper = CoreKeeper(
            self.ledger,
            self.vnpus,
            settle=self._settle,
            others=set,
            notices=notices,
            announce_node=lambda *_: None,
        )

    async def _settle(self) -> bool:
        return True  # the kubelet's ledger is always as it was

    async def look(self) -> None:
        await self.vnpus.look_at_all()
        for vnpu in self.vnpus:
            self.vnpus.has_owner(vnpu)  # none is new


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_chip_whose_pod_ends_during_a_sweep_is_not_free_before_its_vnpu_is_destroyed(
    rig: Rig,
) -> None:
    await rig.look()
    sweep = asyncio.create_task(rig.keeper.sweep())
    await rig.cutter.has_begun.wait()
    rig.ledger.forget(rig.allocation)  # a call of the kubelet has found that the pod has ended
    assert (rig.ledger.used & 1, rig.ledger.cut & 1) == (1, 1)
    rig.cutter.may_go_on.set()
    await sweep
    assert rig.cutter.vnpus == {0: [FIRST], 1: []}
    assert rig.ledger.used == 1
    await rig.keeper.sweep()
    assert rig.cutter.vnpus == {0: [], 1: []}
    assert rig.ledger.used == 0


async def test_a_vnpu_that_another_instance_creates_with_the_id_of_a_destroyed_one_is_new(rig: Rig) -> None:
    rig.cutter.may_go_on.set()
    await rig.look()
    await rig.keeper.sweep()
    assert rig.cutter.vnpus[1] == []
    rig.cutter.vnpus[1] = [SECOND]
    await rig.vnpus.look_at_all()
    assert rig.vnpus.is_new(SECOND)
    await rig.keeper.sweep()
    assert rig.cutter.vnpus[1] == [SECOND]
