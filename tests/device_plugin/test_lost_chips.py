"""Chips that the driver has lost, does not list, or has not reported yet: unhealthy, and what is known of them."""

import dataclasses
from pathlib import Path

import pytest

from ascend.base_device_infos import ChipAddress
from ascend.chips import RESOURCE, chip_ids
from device_plugin.device_types import WHOLE_CHIPS
from device_plugin.driver import NO_CARD, ChipFacts, VirtualNpu
from device_plugin.health.levels import CARD_DROP
from device_plugin.health.offers import offered
from device_plugin.health.snapshot import EarlierState
from tests.device_plugin.api import until
from tests.device_plugin.builders import server
from tests.device_plugin.test_probes import answers
from tests.device_plugin.watch import NOT_HANDLE, PRE_SEPARATE, SEPARATE, SUB_HEALTH, Watch, moment
from tests.device_plugin.whole import whole_node


def doubts(watch: Watch, at_s: float, *used: int) -> list[int]:
    return [*chip_ids(watch.judge(at_s, *used).in_doubt)]


@pytest.mark.parametrize("codes", [(), (NOT_HANDLE,), (SUB_HEALTH,)])
def test_a_fatal_health_without_a_serious_code_is_first_a_doubt_and_then_a_drop(codes: tuple[int, ...]) -> None:
    watch = Watch()
    watch.read(1, *codes, fatal=True)
    assert watch.why(1) == "DriverAlarm"
    assert doubts(watch, 1) == [0]
    watch.read(2.9, *codes, fatal=True)
    assert watch.why(2.9) == "DriverAlarm"
    watch.read(3, *codes, fatal=True)
    assert watch.why(3) == "CardDropped"
    assert [fault.code for fault in watch.chip(3).faults] == [CARD_DROP, *codes]
    assert doubts(watch, 3) == []
    watch.read(4)
    assert watch.why(4) == "Recovering"
    assert watch.chip(5).healthy


def test_a_fatal_health_with_its_code_is_that_fault() -> None:
    watch = Watch()
    for at_s in (1, 2, 3, 4):
        watch.read(at_s, SEPARATE, fatal=True)
        assert [fault.code for fault in watch.chip(at_s).faults] == [SEPARATE]


def test_a_code_that_is_read_later_than_the_health_leaves_no_drop() -> None:
    watch = Watch()
    watch.read(1, fatal=True)
    watch.read(2, SEPARATE, fatal=True)
    watch.read(10, SEPARATE, fatal=True)
    assert [fault.code for fault in watch.chip(10).faults] == [SEPARATE]


def test_a_driver_with_events_only_explains_a_fatal_health_by_events() -> None:
    watch = Watch()
    watch.event(1, SEPARATE)
    for at_s in (2, 3, 4, 5):
        watch.answer(at_s, fatal=True)
    assert [fault.code for fault in watch.chip(5).faults] == [SEPARATE]
    watch.event(6, SEPARATE, "recover")
    for at_s in (7, 8, 9):
        watch.answer(at_s, fatal=True)
    assert watch.why(9) == "CardDropped"


def test_what_is_no_known_fault_is_a_doubt() -> None:
    watch = Watch(count=4, stale_s=10, read=False)
    assert doubts(watch, 0) == [0, 1, 2, 3]  # not read yet
    for phy_id in range(4):
        watch.read(1, phy_id=phy_id)
    assert doubts(watch, 1) == []
    watch.read(2, SEPARATE, phy_id=0)
    assert doubts(watch, 2) == []
    watch.read(3, phy_id=0)
    assert doubts(watch, 3) == [0]  # held back
    assert doubts(watch, 4) == []
    assert doubts(watch, 11.5) == [1, 2, 3]  # silent
    watch.read(12, PRE_SEPARATE, phy_id=1)
    assert doubts(watch, 12.5) == [2, 3]


def test_a_silent_chip_with_a_known_fault_is_no_doubt() -> None:
    watch = Watch(stale_s=10)
    watch.read(1, SEPARATE)
    assert watch.why(100) == "Fault"
    assert doubts(watch, 100) == []


def test_a_network_port_held_back_without_a_fault_is_a_doubt() -> None:
    watch = Watch()
    watch.read(1, 0x110000002)
    assert not watch.chip(1).network_in_doubt
    watch.read(2)
    assert watch.chip(2).network_in_doubt
    assert not watch.chip(3).network_in_doubt


def restarted(watch: Watch, **earlier: object) -> Watch:
    watch.book.restore(EarlierState(**earlier), moment(0))  # type: ignore[arg-type]  # the caller knows the types
    return watch


def test_a_chip_faulty_before_the_restart_is_so_until_it_is_read() -> None:
    watch = restarted(Watch(count=2, read=False), faulty=0b10)
    assert doubts(watch, 0) == [0]
    watch.read(1, phy_id=0)
    watch.read(1, phy_id=1)
    assert watch.judge(1).healthy == 0b11


def test_a_known_chip_the_driver_does_not_list_stays_unhealthy_with_its_address() -> None:
    address = ChipAddress("10.0.0.3", 7)
    for order in ("restored first", "discovered first"):
        watch = Watch(count=2, read=False, discover=order == "discovered first")
        restarted(watch, known={1: ChipAddress("10.0.0.1"), 2: address})
        watch.discover(0)
        watch.read(0, phy_id=0)
        chips = watch.judge(1).chips
        assert [chip.reason for chip in chips] == ["", "DriverSilent", "DriverSilent"]
        assert [chip.facts.is_listed for chip in chips] == [True, True, False]
        assert chips[2].facts.address == address
        assert chips[2].sentence == "the driver does not list it"
        assert watch.book.discovered_chips == 0b111
        watch.count = 3
        watch.discover(2)
        watch.read(2, phy_id=2)
        assert watch.chip(2, phy_id=2).healthy


@pytest.mark.parametrize("first", ["restored", "discovered"])
def test_a_known_chip_that_is_cut_now_is_not_advertised(first: str) -> None:
    watch = Watch(count=2, read=False, discover=False)
    cut = server(ChipFacts(0, 0), ChipFacts(1, 1, vnpus=(VirtualNpu(100, 1, "vir02"),)))
    if first == "discovered":
        watch.book.on_discovery(cut, moment(0))
    restarted(watch, known={0: ChipAddress(), 1: ChipAddress()})
    watch.book.on_discovery(cut, moment(0))
    assert offered(watch.judge(0), WHOLE_CHIPS).all_chips == 0b1


@pytest.mark.parametrize("first", ["restored", "discovered"])
def test_a_cut_chip_that_is_lost_over_a_restart_keeps_its_vnpus(first: str) -> None:
    watch = Watch(count=2, read=False, discover=False)
    vnpus = (VirtualNpu(100, 1, "vir02"), VirtualNpu(101, 1, "vir04"))
    unlisted = server(ChipFacts(0, 0), ChipFacts(1, 1, NO_CARD, NO_CARD))
    if first == "discovered":
        watch.book.on_discovery(server(ChipFacts(0, 0)), moment(0))
    restarted(watch, known={0: ChipAddress()}, known_vnpus={1: vnpus})
    watch.book.on_discovery(unlisted, moment(0))
    judged = watch.judge(0)
    assert judged.cut == judged.left_out == 0b10
    assert judged.chips[1].facts.vnpus == vnpus
    assert judged.chips[1].sentence == "the driver does not list it"
    assert sorted(each.name for each in watch.book.vnpus) == ["Ascend910-2c", "Ascend910-4c"]


def test_an_unlisted_chip_says_so() -> None:
    watch = Watch(discover=False, read=False)
    facts = ChipFacts(0, 0)
    watch.book.on_discovery(server(dataclasses.replace(facts, card_id=NO_CARD, device_id=NO_CARD)), moment(0))
    assert watch.chip(0).sentence == "the driver does not list it"


async def test_a_chip_off_the_bus_stays_listed_over_a_restart(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin() as plugin:
            await answers(plugin, "/readyz", 200, "")  # the Node says which chips it has
        whole.node.edit_chip(5, present=False)
        async with whole.plugin(0xDF):
            devices = whole.node.kubelet.devices(RESOURCE)
            assert len(devices) == 8
            assert devices["Ascend910-5"] == "Unhealthy"
            whole.node.edit_chip(5, present=True)
            await until(whole.offers_chips)


async def test_a_chip_not_ready_at_the_start_is_used_once_it_is(folder: Path) -> None:
    async with whole_node(folder) as whole:
        whole.node.edit_chip(5, ready=False)
        async with whole.plugin(0xDF):
            assert whole.node.kubelet.devices(RESOURCE)["Ascend910-5"] == "Unhealthy"
            whole.node.edit_chip(5, ready=True)
            await until(whole.offers_chips)
