"""Resets through the library: what the driver is asked, and what it answers."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.driver.dcmi import DcmiDriver
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910a, ascend_910b, ascend_a3

FAULT = 0x80A18008


def opened(fake: FakeDcmi) -> tuple[DcmiDriver, Inventory]:
    driver = DcmiDriver(fake.library)
    return driver, driver.discover()


def wait(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def started(driver: DcmiDriver, chip: ChipFacts) -> bool:
    try:
        return driver.has_started(chip)
    except DriverError:
        return False


@pytest.mark.parametrize(
    ("chips", "reset"),
    [
        (ascend_910a(), {5}),
        (ascend_910b(), set(range(8))),
        (ascend_910b(16), set(range(16))),
        ([FakeChip(card=each, logic=each, phy=each, board=0x28) for each in range(8)], {5}),
        (ascend_a3(), {4, 5, 12, 13}),
    ],
    ids=["910A", "910B", "Box16", "inference", "A3"],
)
def test_a_reset_stops_the_chips_of_the_group_and_ends_their_faults(
    make_fake: MakeFake, chips: list[FakeChip], reset: set[int]
) -> None:
    fake = make_fake(chips)
    fake.chip(5).codes = (FAULT,)
    driver, server = opened(fake)
    fake.set(down_s=0.3, boot_s=0.3)
    assert driver.read(server.chips[5]).codes == (FAULT,)
    driver.reset(server.chips[5])
    assert {chip.phy_id for chip in server.chips if driver.read(chip).dropped} == reset
    assert {chip.phy_id for chip in server.chips if not started(driver, chip)} == reset
    wait(lambda: all(not driver.read(chip).dropped for chip in server.chips))
    assert not started(driver, server.chips[5])
    wait(lambda: all(started(driver, chip) for chip in server.chips))
    assert driver.read(server.chips[5]).codes == ()


def test_the_processes_of_a_chip_are_all_read_however_many(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    fake.chip(1).processes = tuple(range(1000, 1064))
    driver, server = opened(fake)
    assert driver.users(server.chips[0]) == ()
    assert driver.users(server.chips[1]) == tuple(range(1000, 1064))


def test_the_partners_of_cards(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3())
    driver, server = opened(fake)
    assert driver.partner_cards(server) == {card: (card + 4) % 8 for card in range(8)}
    with fake.fail("dcmi_get_netdev_brother_device", -8005, card=2):
        assert 2 not in driver.partner_cards(server)
    fake.set(lone_cards=True)
    assert driver.partner_cards(server) == dict.fromkeys(range(8))


def test_chips_without_partners_are_not_asked_for_them(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver, server = opened(fake)
    assert driver.partner_cards(server) == {}
    assert fake.calls()["dcmi_get_netdev_brother_device"] == 0


def test_a_refused_reset_says_why_and_changes_nothing(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver, server = opened(fake)
    with fake.fail("dcmi_set_device_reset", -8015), pytest.raises(DriverError, match="-8015 \\(the reset failed\\)"):
        driver.reset(server.chips[0])
    assert started(driver, server.chips[0])


def test_a_driver_without_boot_status_has_started_once_it_answers(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver, server = opened(fake)
    with fake.fail("dcmi_get_device_boot_status", -8255):
        assert driver.has_started(server.chips[0])
        fake.chip(0).dropped = True
        assert not driver.has_started(server.chips[0])


def test_a_chip_that_was_not_ready_at_the_initialization_has_not_started(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver, server = opened(fake)
    fake.set(down_s=0.5, boot_s=0.0)
    driver.reset(server.chips[0])
    with pytest.raises(DriverError):
        driver.discover(anew=True)
    assert not driver.has_started(server.chips[0])


@pytest.mark.parametrize("setting", [{"held": True}, {"processes": (4711,)}])
def test_the_library_ends_a_program_that_resets_a_chip_in_use(make_fake: MakeFake, setting: dict[str, object]) -> None:
    fake = make_fake(ascend_910a())
    for name, value in setting.items():
        setattr(fake.chip(3), name, value)
    program = f"""
from pathlib import Path
from device_plugin.driver.dcmi import DcmiDriver
driver = DcmiDriver(Path({str(fake.library)!r}))
driver.reset(driver.discover().chips[0])
"""
    environment = {**os.environ, **fake.environment()}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode < 0
    assert "the chip with logic id 3, or one that is linked with it, is reset although" in done.stderr
