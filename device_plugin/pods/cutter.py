"""Cuts chips into vNPUs and gives vNPUs back, in a thread for each chip and with deadlines.

A call that hangs occupies the thread of its chip only, and no other is begun behind it. One that is late is not
forgotten: what a late creation has made is reported when it ends.
"""

import asyncio
from collections.abc import Callable
from typing import Final, Literal, TypeAlias, TypeVar

import structlog

from ascend.chips import chip_name
from ascend.errors import DriverError
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts, DividingDriver, Division, VirtualNpu

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

R = TypeVar("R")

Outcome: TypeAlias = Literal["destroyed", "gone", "in use"]

_STEP_S: Final = 0.005


class Cutter:
    """Makes the driver's calls about vNPUs.

    Args:
        driver: the driver.
        facts: returns a chip by its physical id; None if there is no such chip.

    Attributes:
        on_late: receives a vNPU whose creation ended after its deadline: nobody has it.
    """

    def __init__(self, driver: DividingDriver, facts: Callable[[int], ChipFacts | None]) -> None:
        self._driver = driver
        self._facts = facts
        self.on_late: Callable[[VirtualNpu], None] = lambda _vnpu: None
        self._threads: dict[int, CallThread] = {}
        self._calls: dict[int, asyncio.Future[object]] = {}

    def close(self) -> None:
        """End the threads, without waiting for calls that hang."""
        for thread in self._threads.values():
            thread.close()

    async def division(self, chip: int, within_s: float) -> Division:
        """Return how a chip is cut.

        Raises:
            DriverError: that can't be read in time; the message says why.
        """
        return await self._call(chip, self._driver.division, within_s)

    async def create(self, chip: int, template: str, within_s: float) -> VirtualNpu:
        """Cut a vNPU out of a chip.

        Raises:
            DriverError: the driver refuses, or does not answer in time; the message says why.
        """

        def late(vnpu: VirtualNpu) -> None:
            log.warning("a vNPU was created too late", chip=chip_name(chip), vdev_id=vnpu.vdev_id, template=template)
            self.on_late(vnpu)

        vnpu = await self._call(chip, lambda facts: self._driver.create_vnpu(facts, template), within_s, late)
        log.info("created a vNPU", chip=chip_name(chip), vdev_id=vnpu.vdev_id, template=template)
        return vnpu

    async def destroy(self, vnpu: VirtualNpu, within_s: float) -> Outcome:
        """Give the parts of a vNPU back, unless a container has it.

        Raises:
            DriverError: the driver refuses, or does not answer in time; the message says why.
        """

        def work(facts: ChipFacts) -> Outcome:
            # Looked at in the same call: what was decided before may be about an earlier vNPU with this id.
            found = next((present for present in self._driver.division(facts).vnpus if present == vnpu), None)
            if found is None:
                return "gone"
            if found.in_container:
                return "in use"
            self._driver.destroy_vnpu(facts, vnpu.vdev_id)
            return "destroyed"

        outcome = await self._call(vnpu.phy_id, work, within_s)
        log.info("gave back a vNPU", chip=chip_name(vnpu.phy_id), vdev_id=vnpu.vdev_id, outcome=outcome)
        return outcome

    async def _call(
        self,
        chip: int,
        function: Callable[[ChipFacts], R],
        within_s: float,
        on_late: Callable[[R], None] = lambda _result: None,
    ) -> R:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + within_s
        while (earlier := self._calls.get(chip)) is not None and not earlier.done():
            if (left_s := until_s - loop.time()) <= 0:
                raise DriverError(f"an earlier call about {chip_name(chip)} has not returned")
            await asyncio.wait((earlier,), timeout=left_s)
        facts = self._facts(chip)
        if facts is None or not facts.is_listed:
            raise DriverError(f"the driver does not list {chip_name(chip)}")
        thread = self._threads.get(chip) or self._threads.setdefault(chip, CallThread(f"vnpus {chip}"))
        call = thread.call(lambda: function(facts))
        self._calls[chip] = call  # type: ignore[assignment]  # only waited for
        try:
            done, _ = await asyncio.wait((call,), timeout=max(until_s - loop.time(), _STEP_S))
        except asyncio.CancelledError:
            _report(call, on_late)
            raise
        if not done:
            _report(call, on_late)
            raise DriverError(f"the driver does not answer within {within_s:.1f} s")
        return call.result()


def _report(call: "asyncio.Future[R]", on_late: Callable[[R], None]) -> None:
    def ended(call: "asyncio.Future[R]") -> None:
        if not call.cancelled() and call.exception() is None:
            on_late(call.result())

    call.add_done_callback(ended)
