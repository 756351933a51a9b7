"""Chips whose processes hang have one more fault, from the driver to the report."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import DriverError
from ascend.kube.objects import CONFIG_MAPS
from device_plugin.driver import ChipFacts, ChipState, FaultEvent, Inventory, VirtualNpu
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.driver.telemetry import Quantity, Reading, Values
from device_plugin.hang import HangDetector
from device_plugin.health.levels import HANG
from device_plugin.health.moment import Moment
from tests.dcmi.test_link import tool
from tests.device_plugin.api import NODE, running, until
from tests.device_plugin.builders import server
from tests.device_plugin.whole import whole_node

NOW = Moment(0.0, 0)
COUNTERS = "echo roce_tx_all_pkt_num:5; echo roce_rx_all_pkt_num:6"


class Listener:
    def __init__(self) -> None:
        self.codes: dict[int, tuple[int, ...] | None] = {}
        self.others: list[object] = []

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        self.others.append((server, at))

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:  # noqa: ARG002 - a listener's signature
        self.codes[phy_id] = state.codes

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        self.others.append((event, at))

    def events_lost(self) -> None:
        self.others.append("lost")


class Driver(SimulatedDriver):
    """Chip 0 has processes; what it does is set by the test."""

    def __init__(self) -> None:
        super().__init__(Path("unused"))
        self.processes: tuple[int, ...] = (11, 12)
        self.utilization: float | None = 0.0
        self.hanging = asyncio.Event()
        self.calls: list[str] = []
        self.problem = ""

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        self.calls.append(f"users {chip.phy_id}")
        if self.problem:
            raise DriverError(self.problem)
        return self.processes if chip.phy_id == 0 else ()

    def measure(self, chip: ChipFacts, reading: Reading) -> Values:
        self.calls.append(f"{reading} {chip.phy_id}")
        if reading is Reading.HBM:
            return {Quantity.HBM_USED_MEMORY: 10.0, Quantity.HBM_TOTAL_MEMORY: 100.0}
        if self.utilization is None:
            raise DriverError("not now")
        return {Quantity.UTILIZATION: self.utilization}


class Rig:
    def __init__(self) -> None:
        self.driver = Driver()
        self.listener = Listener()
        self.off_limits = 0
        self.cpu_s: float | None = 7.0
        self.port_problem = ""
        self.detector = HangDetector(
            self.driver,
            self.listener,
            rounds=3,
            packets=self.packets,
            off_limits=lambda: self.off_limits,
            round_s=0.001,
            cpu_time=lambda _processes: self.cpu_s,
        )
        self.detector.on_discovery(server(), NOW)

    def packets(self, phy_id: int) -> int:
        if self.port_problem:
            raise DriverError(self.port_problem)
        return 11 + phy_id

    def codes(self, *codes: int, phy_id: int = 0) -> tuple[int, ...] | None:
        """What the listener gets of a reading with these codes."""
        self.detector.on_reading(phy_id, ChipState(codes), NOW)
        return self.listener.codes[phy_id]

    async def hangs(self) -> None:
        await until(lambda: self.codes() == (HANG,))

    async def works(self) -> None:
        await until(lambda: self.codes() == ())

    async def rounds(self) -> None:
        seen = len(self.driver.calls)
        await until(lambda: len(self.driver.calls) > seen + 60)


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    async with running(rig.detector.run()):
        yield rig


async def test_a_chip_whose_processes_do_nothing_gets_the_fault_until_they_do_something(rig: Rig) -> None:
    assert rig.codes(0x80) == (0x80,)
    await rig.hangs()
    assert rig.codes(0x80) == (0x80, HANG)
    assert rig.codes(0x80, phy_id=1) == (0x80,)
    rig.driver.utilization = 50.0
    await rig.works()
    rig.driver.utilization = 0.0
    await rig.hangs()
    rig.driver.processes = ()
    await rig.works()


async def test_a_chip_that_is_cut_is_not_watched_any_more(rig: Rig) -> None:
    await rig.hangs()
    whole = server()
    cut = replace(whole.chips[0], vnpus=(VirtualNpu(100, 0, "vir02"),))
    rig.detector.on_discovery(replace(whole, chips=(cut, *whole.chips[1:])), NOW)
    await rig.works()
    await rig.rounds()  # the calls of the round before return
    rig.driver.calls.clear()
    await rig.rounds()
    assert "users 1" in rig.driver.calls
    assert "users 0" not in rig.driver.calls


async def test_a_chip_that_can_not_be_read_does_not_hang(rig: Rig) -> None:
    await rig.hangs()
    rig.driver.problem = "the driver is away"
    await rig.works()
    rig.driver.problem = ""
    await rig.hangs()
    rig.driver.utilization = None
    await rig.works()
    rig.driver.utilization = 0.0
    await rig.hangs()
    rig.port_problem = "the tool hangs"
    await rig.works()


async def test_nothing_hangs_where_the_nodes_processes_are_not_seen(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    await rig.hangs()
    rig.cpu_s = None
    await rig.works()
    await rig.rounds()
    assert rig.codes() == ()
    assert capsys.readouterr().out.count("the pod needs hostPID") == 1


async def test_a_chip_without_processes_costs_one_call_and_one_being_reset_none(rig: Rig) -> None:
    await rig.hangs()
    rig.off_limits = 0b1
    await rig.works()
    await rig.rounds()
    rig.driver.calls.clear()
    await rig.rounds()
    assert set(rig.driver.calls) == {f"users {chip}" for chip in range(1, 8)}


async def test_events_and_discoveries_are_passed_on_and_unread_codes_stay_unknown(rig: Rig) -> None:
    event = FaultEvent(0, 0x80, "occur", 2)
    rig.detector.on_event(event, NOW)
    rig.detector.events_lost()
    await rig.hangs()
    rig.detector.on_reading(0, replace(ChipState(), codes=None), NOW)
    assert rig.listener.codes[0] is None
    assert rig.listener.others[1:] == [(event, NOW), "lost"]


async def test_a_hanging_job_is_in_the_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = HangDetector.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "round_s", 0.05)
    async with whole_node(folder) as whole:
        # This process exists, and uses little CPU time in so short a round.
        whole.node.edit_chip(2, processes=(os.getppid(),))
        link_tool = tool(folder, COUNTERS)
        async with whole.plugin(hang_detection=True, hang_minutes=1, link_tool=link_tool):

            async def reported() -> set[str]:
                found = await whole.client.get(CONFIG_MAPS, config_map_name(NODE), NAMESPACE)
                return {
                    f"{each.npu_name} {each.fault_code} {each.fault_level}" for each in decode_report(found.data).faults
                }

            async with asyncio.timeout(20):
                while await reported() != {"Ascend910-2 200001002 NotHandleFault"}:  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
                whole.node.edit_chip(2, processes=())
                while await reported():  # noqa: ASYNC110 - no event
                    await asyncio.sleep(0.05)
