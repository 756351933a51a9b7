"""Readings of a chip by the real driver: faults, card drop, link; a chip that hangs delays no other."""

import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, ChipState, FaultEvent
from device_plugin.driver.dcmi import DcmiDriver, DcmiError
from device_plugin.driver.dcmi.calls import Calls
from device_plugin.driver.dcmi.port_tool import LinkTool
from tests.dcmi import compiler
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910b, ascend_a3


def discovered(driver: DcmiDriver) -> tuple[ChipFacts, ...]:
    return driver.discover().chips


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_a_healthy_chip_has_no_faults_and_an_unknown_link(make_fake: MakeFake) -> None:
    make_fake(ascend_910b(1))
    driver = DcmiDriver()
    assert driver.read(discovered(driver)[0]) == ChipState((), dropped=False, link_up=None)


def test_faults_are_those_of_the_chip_and_gone_once_it_is_repaired(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3(2))
    driver = DcmiDriver()
    chips = discovered(driver)
    fake.chip(2).codes = (0x80E18402, 0x81078603, 0xA8028801)
    assert [driver.read(chip).codes for chip in chips] == [(), (), (0x80E18402, 0x81078603, 0xA8028801), ()]
    fake.chip(2).codes = ()
    assert driver.read(chips[2]) == ChipState()


@pytest.mark.parametrize("health", [4, 77, 0xFFFFFFFE])
def test_a_health_that_the_interface_does_not_have_is_no_answer(
    make_fake: MakeFake, monkeypatch: pytest.MonkeyPatch, health: int
) -> None:
    make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = discovered(driver)[0]
    # The library that the double follows refuses to return such a value; another version may not.
    monkeypatch.setattr(Calls, "health", lambda _calls, _chip: health)
    with pytest.raises(DriverError, match=f"rates its health as {health}, and its interface has 0 to 3 only"):
        driver.read(chip)


def test_repeated_codes_count_once_and_zero_is_no_code(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = discovered(driver)[0]
    state = fake.library.with_name("state")
    state.write_text("chip name=910B3 codes=80E18402,0,80E18402,1\n")
    assert driver.read(chip).codes == (0x80E18402, 1)


def test_the_maximum_number_of_faults_is_read(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    fake.chip(0).codes = range(1, 129)
    assert driver.read(discovered(driver)[0]).codes == tuple(range(1, 129))


def test_a_dropped_chip_is_not_an_error_and_can_come_back(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    first, second = discovered(driver)
    fake.chip(1).dropped = True
    assert driver.read(second) == ChipState(dropped=True)
    assert driver.read(first) == ChipState()
    fake.chip(1).dropped = False
    assert driver.read(second) == ChipState()


@pytest.mark.parametrize(
    ("health", "state"),
    [
        (1, ChipState()),
        (2, ChipState()),  # the list of codes has the reason, if there is one that counts
        (3, ChipState(fatal=True)),
        (4, ChipState()),  # the driver refuses to return it, which says nothing
        (0xFFFF_FFFF, ChipState(dropped=True)),
    ],
)
def test_the_drivers_health_value_is_part_of_a_reading(make_fake: MakeFake, health: int, state: ChipState) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = discovered(driver)[0]
    fake.chip(0).health = health
    assert driver.read(chip) == state


def test_a_chip_the_driver_cannot_reach_is_fatal_with_its_last_codes(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    first, second = discovered(driver)
    fake.chip(0).lost = fake.chip(1).lost = True
    fake.chip(1).codes = (0x80CD8003,)
    assert driver.read(first) == ChipState(fatal=True)
    assert driver.read(second) == ChipState((0x80CD8003,), fatal=True)


def test_a_chip_off_the_bus_is_a_dropped_chip(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    chip = discovered(driver)[1]
    fake.chip(1).absent = True
    assert driver.read(chip) == ChipState(dropped=True)


def test_a_chip_whose_card_is_not_listed_cannot_be_read(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    fake.chip(1).dropped = True
    driver = DcmiDriver()
    chip = discovered(driver)[1]
    before = fake.calls()
    with pytest.raises(DriverError, match="the driver does not list its card"):
        driver.read(chip)
    assert fake.calls() == before


@pytest.mark.parametrize("code", [-8255, -8006, 5])
def test_faults_are_read_without_the_call_that_detects_a_drop(make_fake: MakeFake, code: int) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = discovered(driver)[0]
    fake.chip(0).codes = (0x80E18402,)
    with fake.fail("dcmi_get_device_health", code):
        assert driver.read(chip) == ChipState((0x80E18402,))


def test_an_error_reading_faults_names_the_chip_and_the_return_code(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3(2))
    driver = DcmiDriver()
    chip = discovered(driver)[3]
    with fake.fail("dcmi_get_device_errorcode_v2", -8006), pytest.raises(DcmiError) as raised:
        driver.read(chip)
    assert str(raised.value) == "dcmi_get_device_errorcode_v2 of card 1 device 1: -8005 (internal error)"
    assert raised.value.code == -8005
    assert "of card 1 device 1:" in raised.value.message


def test_a_driver_with_events_only_has_a_state_while_it_answers(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = discovered(driver)[0]
    with fake.fail("dcmi_get_device_errorcode_v2", -8255):
        assert driver.read(chip) == ChipState(codes=None)
        with fake.fail("dcmi_get_device_health", -8255), pytest.raises(DriverError, match="-8255"):
            driver.read(chip)


def test_codes_that_were_never_read_from_a_chip_that_answers_are_not_supported(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    chip, other = discovered(driver)
    with fake.fail("dcmi_get_device_errorcode_v2", -8255 + 1, card=0):
        for _ in range(29):
            with pytest.raises(DriverError, match="-8005"):
                driver.read(chip)
        assert driver.read(chip) == ChipState(codes=None)
        assert driver.read(other) == ChipState()
        with pytest.raises(DriverError, match="-8005"):
            driver.read(chip)  # the other chip shows that the driver supports it


def test_without_both_calls_a_chip_cannot_be_read(make_fake: MakeFake) -> None:
    functions = ("dcmi_init", "dcmi_get_card_list", "dcmi_get_device_[nlpc]*")
    make_fake(ascend_910b(1), library=compiler.build_library(functions))
    driver = DcmiDriver()
    with pytest.raises(DriverError, match=r"-99998 \(this driver has no such function\)"):
        driver.read(discovered(driver)[0])


def test_reading_before_the_discovery_is_an_error() -> None:
    with pytest.raises(DriverError, match="before they are discovered"):
        DcmiDriver().read(ChipFacts(0))


def test_a_chip_that_hangs_does_not_delay_another(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    hanging, other = discovered(driver)
    fake.chip(1).codes = (0x80E18402,)
    states: list[ChipState] = []
    thread = threading.Thread(target=lambda: states.append(driver.read(hanging)), daemon=True)
    with fake.hang("dcmi_get_device_health", card=0):
        before = fake.calls()["dcmi_get_device_health"]
        thread.start()
        wait_for(lambda: fake.calls()["dcmi_get_device_health"] > before)
        started_s = time.monotonic()
        for _ in range(100):
            assert driver.read(other).codes == (0x80E18402,)
        assert len(driver.discover().chips) == 2
        assert time.monotonic() - started_s < 5
        assert thread.is_alive()
    thread.join(10)
    assert states == [ChipState()]


def test_chips_are_read_in_many_threads_at_once(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    driver = DcmiDriver()
    chips = discovered(driver)
    for number in range(8):
        fake.chip(number).codes = (number + 1,)
    wrong: list[ChipState] = []

    def keep_reading(chip: ChipFacts) -> None:
        for _ in range(200):
            state = driver.read(chip)
            if state.codes != (chip.phy_id + 1,):
                wrong.append(state)

    threads = [threading.Thread(target=keep_reading, args=(chip,)) for chip in chips]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fake.calls()["dcmi_get_device_errorcode_v2"] == 8 * 200


def test_a_driver_that_serializes_its_calls_is_waited_for(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    hanging, other = discovered(driver)
    fake.set(serialise=True)
    states: dict[int, ChipState] = {}
    threads = [
        threading.Thread(target=lambda chip=chip: states.__setitem__(chip.phy_id, driver.read(chip)), daemon=True)
        for chip in (hanging, other)
    ]
    with fake.hang("dcmi_get_device_health", card=0):
        calls = fake.calls()["dcmi_get_device_health"]
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_for(lambda number=number: fake.calls()["dcmi_get_device_health"] >= calls + number)  # type: ignore[misc]
        assert states == {}
    for thread in threads:
        thread.join(10)
    assert set(states) == {0, 1}


def link_tool(folder: Path, script: str) -> Path:
    tool = folder / "hccn_tool"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    return tool


def test_the_link_of_a_chip_is_read_by_its_physical_id(make_fake: MakeFake, tmp_path: Path) -> None:
    make_fake([FakeChip(card=0, logic=0, phy=6), FakeChip(card=1, logic=1, phy=7)])
    script = '[ "$*" = "-i 7 -link -g" ] && echo "link status: DOWN" || echo "link status: UP"'
    driver = DcmiDriver(links=LinkTool(link_tool(tmp_path, script), wait_s=10))
    assert [driver.read(chip).link_up for chip in discovered(driver)] == [True, False]


def test_an_announced_loss_of_the_link_has_the_link_read_again(make_fake: MakeFake, tmp_path: Path) -> None:
    fake = make_fake([FakeChip(card=0, logic=4, phy=6), FakeChip(card=1, logic=5, phy=7)])
    runs = tmp_path / "runs"
    now_s = 1000.0
    links = LinkTool(
        link_tool(tmp_path, f'echo "$2" >> {runs}; echo "link status: UP"'), wait_s=10, now_s=lambda: now_s
    )
    driver = DcmiDriver(links=links)
    chips = discovered(driver)
    events: queue.Queue[FaultEvent] = queue.Queue()
    driver.subscribe(events.put)
    assert [driver.read(chip).link_s for chip in chips] == [1000, 1000]
    now_s = 1100
    fake.event(5, 0x81078603, assertion=1)
    assert events.get(timeout=10).logic_id == 5
    assert [driver.read(chip).link_s for chip in chips] == [1000, 1100]
    assert runs.read_text().split() == ["6", "7", "7"]


def test_the_link_of_a_dropped_chip_is_not_read(make_fake: MakeFake, tmp_path: Path) -> None:
    fake: FakeDcmi = make_fake([FakeChip()])
    called = tmp_path / "called"
    driver = DcmiDriver(links=LinkTool(link_tool(tmp_path, f"touch {called}"), wait_s=10))
    chip = discovered(driver)[0]
    fake.chip(0).dropped = True
    assert driver.read(chip).link_up is None
    assert not called.exists()
    fake.chip(0).dropped = False
    driver.read(chip)
    assert called.exists()
