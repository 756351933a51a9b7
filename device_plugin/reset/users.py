"""Asks the kubelet and the driver who uses chips, and the driver whether chips have started."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, TypeVar

import structlog

from ascend.chips import ChipSet, chip_ids, chip_name, chip_set, join_names
from ascend.errors import AscendError, DriverError, Unreachable
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts
from device_plugin.driver.resetting import ResettingDriver
from device_plugin.kubelet.pod_resources import PodResources

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

DEADLINE_S = 5.0
"""How long to wait for an answer of the driver."""

R = TypeVar("R")


class Users:
    """Who uses chips, as far as others know.

    Args:
        driver: lists the processes that use a chip.
        read_ledger: reads the kubelet's ledger, or raises Unreachable.
    """

    def __init__(self, driver: ResettingDriver, read_ledger: Callable[[], Awaitable[PodResources]]) -> None:
        self._driver = driver
        self._read_ledger = read_ledger
        self._thread = CallThread("resets")
        self._hanging: asyncio.Future[Any] | None = None

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def of(self, chips: Iterable[ChipFacts], known: Collection[str]) -> list[str] | None:
        """Return who uses the chips, as sentences; None if the kubelet or the driver does not say.

        Args:
            chips: the chips.
            known: the pods whose chips are known by themselves, ``namespace/name``: the kubelet's ledger can have other
                device ids for them.
        """
        chips = tuple(chips)
        group = chip_set(chip.phy_id for chip in chips)
        found = []
        try:
            ledger = await self._read_ledger()
            for key, containers in ledger.pods.items():
                ids = chip_set(chip for held in containers.values() for chip in held) & group
                if ids and (key not in known or key in ledger.ambiguous):
                    found.append(f"pod {key} holds {join_names(chip_ids(ids))} by the kubelet's ledger")
            for chip in chips:
                processes = await self.call(partial(self._driver.users, chip))
                found += [f"process {process} uses {chip_name(chip.phy_id)}" for process in processes[:3]]
        except (DriverError, Unreachable) as error:
            log.warning("it is unknown who uses chips that should be reset", error=str(error))
            return None
        return found

    async def started_chips(self, chips: Iterable[ChipFacts]) -> ChipSet:
        """Return the started chips; a chip without an answer has not started."""
        found = 0
        for chip in chips:
            try:
                has_started = await self.call(partial(self._driver.has_started, chip))
            except AscendError as error:
                log.debug("a chip does not say whether it has started", chip=chip_name(chip.phy_id), error=str(error))
            else:
                found |= has_started << chip.phy_id
        return found

    async def call(self, function: Callable[[], R]) -> R:
        """Make a call of the driver in a thread of its own.

        Raises:
            DriverError: it fails, or does not return in time; the next one is not begun before it has returned.
        """
        if self._hanging is not None and not self._hanging.done():
            raise DriverError("an earlier call of the driver has not returned")
        call = self._thread.call(function)
        done, _ = await asyncio.wait((call,), timeout=DEADLINE_S)
        if not done:
            self._hanging = call
            call.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise DriverError(f"the driver does not answer within {DEADLINE_S:g} s")
        return call.result()
