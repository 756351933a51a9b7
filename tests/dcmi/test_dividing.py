"""vNPUs that are cut through the library while pods run: what the driver is asked, and what it answers."""

import threading
import time

import pytest

from ascend.errors import DriverError
from device_plugin.driver import Division, VirtualNpu
from device_plugin.driver.dcmi import DcmiDriver
from device_plugin.pods.cutter import Cutter
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import ascend_910b
from tests.device_plugin.api import until


def test_vnpus_are_created_listed_and_destroyed_and_ids_are_used_again(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver = DcmiDriver(fake.library)
    chip, other = driver.discover().chips[2:4]
    assert driver.division(chip) == Division((), 20, 6)
    first = driver.create_vnpu(chip, "vir05_1c_16g")
    second = driver.create_vnpu(chip, "vir10_3c_32g")
    third = driver.create_vnpu(other, "vir05_1c_16g")
    assert (first, second) == (VirtualNpu(100, 2, "vir05_1c_16g"), VirtualNpu(101, 2, "vir10_3c_32g"))
    assert (third.vdev_id, third.phy_id, second.vfg_id) == (102, 3, 1)
    fake.set(contained=(101,))
    division = driver.division(chip)
    assert division == Division((first, second), 5, 2)
    assert [each.in_container for each in division.vnpus] == [False, True]
    assert [each.vfg_id for each in division.vnpus] == [0, 1]
    assert driver.discover().chips[2].vnpus == (first, second)
    assert fake.cuts()[101] == (2, "vir10_3c_32g")
    driver.destroy_vnpu(chip, 100)
    assert driver.create_vnpu(other, "vir05_1c_16g") == VirtualNpu(100, 3, "vir05_1c_16g")
    assert DcmiDriver(fake.library).discover().chips[2].vnpus == (second,)  # they outlive the program


def test_refusals_of_the_driver_are_errors(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver = DcmiDriver(fake.library)
    chip = driver.discover().chips[0]
    with fake.fail("dcmi_create_vdevice", -8005), pytest.raises(DriverError, match="dcmi_create_vdevice of card 0"):
        driver.create_vnpu(chip, "vir05_1c_16g")
    assert driver.division(chip).vnpus == ()
    driver.create_vnpu(chip, "vir10_3c_32g")
    driver.create_vnpu(chip, "vir10_3c_32g")
    with pytest.raises(DriverError, match="-8001"):
        driver.create_vnpu(chip, "vir05_1c_16g")  # nothing is left
    with fake.fail("dcmi_set_destroy_vdevice", -8020), pytest.raises(DriverError, match="in use by another process"):
        driver.destroy_vnpu(chip, 100)
    with pytest.raises(DriverError, match="-8008"):
        driver.destroy_vnpu(chip, 111)
    assert len(driver.division(chip).vnpus) == 2


def test_a_creation_that_hangs_delays_only_its_own_thread(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver = DcmiDriver(fake.library)
    chip, other = driver.discover().chips[:2]
    made: list[VirtualNpu] = []
    with fake.hang("dcmi_create_vdevice", card=0):
        late = threading.Thread(target=lambda: made.append(driver.create_vnpu(chip, "vir05_1c_16g")))
        late.start()
        time.sleep(0.05)
        assert driver.create_vnpu(other, "vir05_1c_16g").phy_id == 1
        assert driver.read(chip).codes == ()
        assert driver.division(chip).vnpus == ()
    late.join(10.0)
    assert driver.division(chip).vnpus == tuple(made) != ()


def test_a_driver_without_free_resources_leaves_them_open(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b())
    driver = DcmiDriver(fake.library)
    chip = driver.discover().chips[0]
    vnpu = driver.create_vnpu(chip, "vir05_1c_16g")
    assert driver.division(chip) == Division((vnpu,), 15, 5)
    fake.chip(0).dropped = True
    with pytest.raises(DriverError):
        driver.division(chip)


async def test_a_creation_of_the_library_that_succeeds_late_is_reported_and_can_be_given_back(
    make_fake: MakeFake,
) -> None:
    fake = make_fake(ascend_910b())
    driver = DcmiDriver(fake.library)
    chips = {each.phy_id: each for each in driver.discover().chips}
    late: list[VirtualNpu] = []
    cutter = Cutter(driver, chips.get)
    cutter.on_late = late.append
    with fake.hang("dcmi_create_vdevice", card=0):
        with pytest.raises(DriverError, match="does not answer within"):
            await cutter.create(0, "vir05_1c_16g", 0.2)
        assert (await cutter.create(1, "vir05_1c_16g", 5.0)).phy_id == 1
    await until(lambda: late != [])
    assert {*fake.cuts()} == {100, 101}
    assert await cutter.destroy(late[0], 5.0) == "destroyed"
    assert [logic for logic, _ in fake.cuts().values()] == [1]
    cutter.close()
