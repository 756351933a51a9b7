"""The driver lists the cards that were ready when it was initialized; it is initialized again while no call runs."""

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from ascend.errors import DriverError
from device_plugin.driver import ChipState, Inventory
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.driver.dcmi.call_gate import CallGate
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeDcmi, ascend_910a, ascend_910b, ascend_a3


def wait_for(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def unlisted(inventory: Inventory) -> list[int]:
    return [chip.phy_id for chip in inventory.chips if not chip.is_listed]


def test_a_card_not_ready_at_the_initialization_is_known_and_not_listed(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    fake.chip(5).dropped = True
    driver = DcmiDriver()
    inventory = driver.discover()
    assert [chip.phy_id for chip in inventory.chips] == [*range(8)]
    assert unlisted(inventory) == [5]
    assert inventory.problems == ("1 of 8 cards was not ready when the driver was initialized",)
    assert (inventory.not_ready, inventory.unidentified, inventory.is_complete) == (1, 0, False)
    fake.chip(5).dropped = False
    assert unlisted(driver.discover()) == [5]
    inventory = driver.discover(anew=True)
    assert (unlisted(inventory), inventory.is_complete) == ([], True)
    assert driver.read(inventory.chips[5]) == ChipState()


def test_a_chip_that_was_known_keeps_its_facts_while_it_is_not_listed(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    driver = DcmiDriver()
    before = driver.discover().chips[5]
    fake.chip(5).dropped = True
    after = driver.discover(anew=True).chips[5]
    assert not after.is_listed
    assert (after.chip_name, after.address, after.hbm_mb) == (before.chip_name, before.address, before.hbm_mb)


def test_a_card_with_one_die_that_is_not_ready_is_not_listed(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3())
    fake.chip(3).dropped = True
    assert unlisted(DcmiDriver().discover()) == [2, 3]


@pytest.mark.parametrize(("chips", "ready"), [(16, 8), (8, 4)])
def test_a_server_with_few_ready_cards_still_has_all_its_chips(make_fake: MakeFake, chips: int, ready: int) -> None:
    fake = make_fake(ascend_910b(chips) if chips == 16 else ascend_910a(chips))
    for phy_id in range(ready, chips):
        fake.chip(phy_id).dropped = True
    inventory = DcmiDriver().discover()
    assert [chip.phy_id for chip in inventory.chips] == [*range(chips)]
    assert unlisted(inventory) == [*range(ready, chips)]


def test_without_the_kernels_ids_the_number_of_unlisted_chips_is_known(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    fake.chip(5).dropped = True
    with fake.fail("dcmi_get_device_phyid_from_logicid", -8005, card=5):
        inventory = DcmiDriver().discover()
    assert (len(inventory.chips), inventory.not_ready, inventory.unidentified) == (7, 1, 1)


def test_a_chip_off_the_bus_is_in_no_list_until_it_is_initialized_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    fake.chip(5).absent = True
    driver = DcmiDriver()
    inventory = driver.discover()
    assert [chip.phy_id for chip in inventory.chips] == [0, 1, 2, 3, 4, 6, 7]
    assert inventory.is_complete  # the kernel knows of no other
    fake.chip(5).absent = False
    assert len(driver.discover().chips) == 7
    assert len(driver.discover(anew=True).chips) == 8


@pytest.mark.parametrize("state", ["absent", "dropped"])
def test_a_chip_that_two_initializations_miss_has_dropped(make_fake: MakeFake, state: str) -> None:
    fake = make_fake(ascend_910b(8))
    driver = DcmiDriver()
    driver.discover()
    setattr(fake.chip(5), state, True)
    inventory = driver.discover(anew=True)
    assert (unlisted(inventory), inventory.not_ready) == ([5], 1)
    for _ in range(2):
        with pytest.raises(DriverError, match="the driver does not list its card"):
            driver.read(inventory.chips[5])  # one initialization may have missed it by chance
        inventory = driver.discover()
    chip = driver.discover(anew=True).chips[5]
    assert driver.read(chip) == ChipState(dropped=True)
    setattr(fake.chip(5), state, False)
    chip = driver.discover(anew=True).chips[5]
    assert driver.read(chip) == ChipState()


def test_an_unready_card_beside_a_chip_off_the_bus_is_identified(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    fake.chip(2).absent = fake.chip(7).dropped = True
    inventory = DcmiDriver().discover()
    assert [chip.phy_id for chip in inventory.chips] == [0, 1, 3, 4, 5, 6, 7]
    assert (unlisted(inventory), inventory.unidentified) == ([7], 0)


def test_without_any_ready_card_the_error_says_so(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    fake.chip(0).dropped = fake.chip(1).dropped = True
    driver = DcmiDriver()
    with pytest.raises(DriverError, match="no card can be read: 2 of 2 cards were not ready when the driver was init"):
        driver.discover()
    fake.chip(0).dropped = fake.chip(1).dropped = False
    assert driver.discover().is_complete


def test_an_initialization_that_fails_is_repeated_by_the_next_discovery(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    chip = driver.discover().chips[0]
    with fake.fail("dcmi_init", -8005), pytest.raises(DriverError, match="dcmi_init: -8005"):
        driver.discover(anew=True)
    with pytest.raises(DriverError):
        driver.read(chip)
    driver.discover()
    assert driver.read(chip) == ChipState()


def test_readings_wait_while_the_driver_is_initialized_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(4))
    driver = DcmiDriver()
    chips = driver.discover().chips
    for number in range(4):
        fake.chip(number).codes = (number + 1,)
    wrong: list[object] = []
    ended = threading.Event()

    def keep_reading(number: int) -> None:
        while not ended.is_set():
            try:
                state = driver.read(chips[number])
            except DriverError as error:
                wrong.append(error)
            else:
                if state.codes != (number + 1,):
                    wrong.append(state)

    threads = [threading.Thread(target=keep_reading, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    with fake.delay("dcmi_init", 0.02):
        for _ in range(10):
            assert driver.discover(anew=True).is_complete
    ended.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert fake.races() == 0


def test_a_call_that_hangs_in_the_kernel_is_not_waited_for_long(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver()
    chip = driver.discover().chips[1]
    thread = threading.Thread(target=driver.read, args=(chip,), daemon=True)
    with fake.hang("dcmi_get_device_health", card=1):
        before = fake.calls()["dcmi_get_device_health"]
        thread.start()
        wait_for(lambda: fake.calls()["dcmi_get_device_health"] > before)
        assert driver.discover(anew=True).is_complete
        assert thread.is_alive()
    thread.join(10)


def test_the_gate_waits_for_a_young_call_and_not_for_an_old_one() -> None:
    gate = CallGate(lookup_s=0.2)
    with contextlib.ExitStack() as call:
        call.enter_context(gate.beside())
        began_s = time.monotonic()
        with gate.alone():
            assert time.monotonic() - began_s >= 0.2
        began_s = time.monotonic()
        with gate.alone():
            assert time.monotonic() - began_s < 0.2


def test_one_failed_call_does_not_make_another_product(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3())
    driver = DcmiDriver()
    with fake.fail("dcmi_get_device_board_info", -8012, card=0, device=0):
        assert driver.discover().chip_type == "Ascend910A3"
    assert driver.discover().chip_type == "Ascend910A3"


def test_without_any_board_the_product_stays_unknown(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3(2))
    driver = DcmiDriver()
    with (
        fake.fail("dcmi_get_device_board_info", -8006),
        pytest.raises(DriverError, match="the type of the server is unknown: the board of no chip can be read"),
    ):
        driver.discover()
    assert driver.discover().chip_type == "Ascend910A3"
    with fake.fail("dcmi_get_device_board_info", -8006):
        assert driver.discover().chip_type == "Ascend910A3"


def test_with_independent_dies_a_card_with_one_ready_die_is_listed(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3())
    fake.chip(3).dropped = True
    driver = DcmiDriver(die_policy="independent")
    inventory = driver.discover()
    assert unlisted(inventory) == [3]
    assert [chip.phy_id for chip in inventory.chips] == [*range(16)]
    assert [(chip.card_id, chip.device_id) for chip in inventory.chips[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert inventory.not_ready == 1  # so that the driver is initialized again
    assert fake.calls()["dcmi_set_multi_die_policy"] == 1
    driver.discover()
    assert fake.calls()["dcmi_set_multi_die_policy"] == 1
    assert unlisted(DcmiDriver(die_policy="union").discover()) == [2, 3]


def test_a_server_without_dies_has_no_policy_for_them(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    driver = DcmiDriver(die_policy="independent")
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            assert driver.discover().is_complete
    assert fake.calls()["dcmi_set_multi_die_policy"] == 1
    assert [line for line in logs if "policy" in line] == []


def test_a_policy_of_dies_that_cannot_be_set_is_tried_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_a3(2))
    driver = DcmiDriver(die_policy="independent")
    with structlog.testing.capture_logs() as logs, fake.fail("dcmi_set_multi_die_policy", -8002):
        assert driver.discover().is_complete
    assert [line["error"] for line in logs if "policy" in line] == ["dcmi_set_multi_die_policy: -8002 (not permitted)"]
    driver.discover()
    driver.discover()
    assert fake.calls()["dcmi_set_multi_die_policy"] == 2


@contextlib.contextmanager
def loaded(fake: FakeDcmi) -> Iterator[ctypes.CDLL]:
    before = dict(os.environ)
    os.environ.update(fake.environment())
    try:
        yield ctypes.CDLL(str(fake.library))
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_the_fake_counts_a_call_during_the_initialization_as_a_race(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(2))
    logic = ctypes.c_int()
    with loaded(fake) as library:
        assert library.dcmi_init() == 0
        assert library.dcmi_get_device_logic_id(ctypes.byref(logic), 1, 0) == 0
        thread = threading.Thread(target=library.dcmi_init)
        with fake.hang("dcmi_init"):
            before = fake.calls()["dcmi_init"]
            thread.start()
            wait_for(lambda: fake.calls()["dcmi_init"] > before)
            assert library.dcmi_get_device_logic_id(ctypes.byref(logic), 1, 0) == -8007
        thread.join(10)
        assert fake.races() == 1
        assert library.dcmi_get_device_logic_id(ctypes.byref(logic), 1, 0) == 0


def test_the_fake_lists_cards_that_are_not_ready_first_and_without_id(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(3))
    fake.chip(1).dropped = True
    count, cards = ctypes.c_int(), (ctypes.c_int * 64)()
    with loaded(fake) as library:
        assert library.dcmi_get_card_list(ctypes.byref(count), cards, 64) == -8005
        library.dcmi_init()
        assert library.dcmi_get_card_list(ctypes.byref(count), cards, 64) == 0
        assert cards[: count.value] == [-1, 0, 2]
        assert library.dcmi_get_device_num_in_card(-1, ctypes.byref(count)) == 0
        assert count.value == 0
        assert library.dcmi_get_device_num_in_card(1, ctypes.byref(count)) == -8001
