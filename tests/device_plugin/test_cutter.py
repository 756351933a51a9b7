"""The driver's calls about vNPUs: in threads, with deadlines, and late results are reported."""

import asyncio
import threading
import time
from typing import Any, cast

import pytest

from ascend.errors import DriverError
from device_plugin.driver import ChipFacts, DividingDriver, Division, VirtualNpu
from device_plugin.pods.cutter import Cutter
from tests.device_plugin.api import until

VNPU = VirtualNpu(100, 0, "vir05_1c_16g")


class FakeDriver:
    """Answers when it is let; counts calls."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.vnpus: tuple[VirtualNpu, ...] = ()
        self.calls: list[str] = []

    def division(self, chip: ChipFacts) -> Division:
        self._answer("division")
        return Division(tuple(each for each in self.vnpus if each.phy_id == chip.phy_id))

    def create_vnpu(self, chip: ChipFacts, template: str) -> VirtualNpu:
        self._answer("create")
        vnpu = VirtualNpu(100 + len(self.vnpus), chip.phy_id, template)
        self.vnpus = (*self.vnpus, vnpu)
        return vnpu

    def destroy_vnpu(self, chip: ChipFacts, vdev_id: int) -> None:
        self._answer("destroy")
        self.vnpus = tuple(each for each in self.vnpus if (each.phy_id, each.vdev_id) != (chip.phy_id, vdev_id))

    def _answer(self, call: str) -> None:
        self.calls.append(call)
        self.may_answer.wait(10.0)


def cutter(driver: FakeDriver, late: list[VirtualNpu]) -> Cutter:
    facts = {0: ChipFacts(0), 1: ChipFacts(1), 2: ChipFacts(2, card_id=-1)}
    own = Cutter(cast(DividingDriver, cast(Any, driver)), facts.get)
    own.on_late = late.append
    return own


async def test_a_vnpu_is_created_and_given_back() -> None:
    driver, late = FakeDriver(), list[VirtualNpu]()
    own = cutter(driver, late)
    assert await own.create(0, "vir05_1c_16g", 5.0) == VNPU
    assert (await own.division(0, 5.0)).vnpus == (VNPU,)
    assert await own.destroy(VNPU, 5.0) == "destroyed"
    assert await own.destroy(VNPU, 5.0) == "gone"
    for chip in (2, 7):
        with pytest.raises(DriverError, match="does not list"):
            await own.division(chip, 1.0)
    assert late == []
    own.close()


async def test_one_that_a_container_has_and_one_with_the_same_id_are_left() -> None:
    driver = FakeDriver()
    own = cutter(driver, [])
    driver.vnpus = (VirtualNpu(100, 0, "vir05_1c_16g", in_container=True),)
    assert await own.destroy(VNPU, 5.0) == "in use"
    driver.vnpus = (VirtualNpu(100, 0, "vir10_3c_32g"),)
    assert await own.destroy(VNPU, 5.0) == "gone"
    assert "destroy" not in driver.calls
    own.close()


async def test_a_late_creation_is_reported_and_delays_only_its_chip() -> None:
    driver, late = FakeDriver(), list[VirtualNpu]()
    own = cutter(driver, late)
    driver.may_answer.clear()
    with pytest.raises(DriverError, match="does not answer within"):
        await own.create(0, "vir05_1c_16g", 0.1)
    with pytest.raises(DriverError, match="an earlier call about Ascend910-0 has not returned"):
        await own.create(0, "vir05_1c_16g", 0.1)
    began_s = time.monotonic()
    waiting = asyncio.create_task(own.division(1, 5.0))
    await until(lambda: driver.calls == ["create", "division"])  # nothing was begun behind the call that hangs
    assert time.monotonic() - began_s < 1.0
    driver.may_answer.set()
    await waiting
    await until(lambda: late == [VNPU])
    own.close()


async def test_a_creation_that_is_cancelled_is_reported() -> None:
    driver, late = FakeDriver(), list[VirtualNpu]()
    own = cutter(driver, late)
    driver.may_answer.clear()
    task = asyncio.create_task(own.create(0, "vir05_1c_16g", 5.0))
    await until(lambda: driver.calls == ["create"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    driver.may_answer.set()
    await until(lambda: late == [VNPU])
    own.close()
