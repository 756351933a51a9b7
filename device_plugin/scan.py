"""Reads the driver again and again, off the event loop, and tells what it found.

Every chip has a thread of its own: a call that hangs keeps its thread, no second one is started beside it, and the
other chips are read on. The chip's state then grows old, until it counts as unhealthy: unknown is not healthy. Events
of the driver come in between; polling is the net underneath, which also catches an event that was lost.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from ascend.chips import chip_name
from ascend.errors import AscendError, DriverError
from ascend.kube.backoff import Backoff
from device_plugin.driver import ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.rules.verdict import Moment
from device_plugin.threads import CallThread

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def present_moment() -> Moment:
    """Now, by both clocks."""
    return Moment(time.monotonic(), time.time_ns() // 1_000_000)


CONFIRM_S = 0.3
"""How long after a fault was announced to be over its chip is read, before its hold has passed: another fault of the
same code may be there still (spec/node-agent.md §4.5). The driver is given a moment to agree with itself."""


class Listener(Protocol):
    """Who is told what the driver says; ``at`` is when the call was made, or the event came."""

    def discovered(self, server: Inventory, at: Moment) -> None:
        """The chips there are."""

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """How a chip is."""

    def announced(self, event: FaultEvent, at: Moment) -> None:
        """A fault came or went."""


class _Reader:
    """Reads one chip.

    Args:
        driver: what to read.
        chip: which chip; replaced when its facts change.
    """

    def __init__(self, driver: Driver, chip: ChipFacts) -> None:
        self._driver = driver
        self.chip = chip
        self._thread = CallThread(f"chip {chip.phy_id}")
        self._call: asyncio.Future[ChipState] | None = None
        self._started = Moment(0.0, 0)
        self.problem: str | None = "not read yet"
        """Why its state is not known; None while it is."""

    def poll(self, listener: Listener, at: Moment, deadline_s: float) -> None:
        """Ask for the chip's state, unless it still owes the last answer."""
        if self._call is not None:
            if at.mono_s - self._started.mono_s >= deadline_s:
                self._note(f"the driver does not answer within {deadline_s:g} s")
            return
        chip = self.chip
        self._started = at
        self._call = self._thread.call(lambda: self._driver.read(chip))
        self._call.add_done_callback(lambda call: self._settle(call, listener))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _settle(self, call: "asyncio.Future[ChipState]", listener: Listener) -> None:
        self._call = None
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self._note(None)
            listener.polled(self.chip.phy_id, call.result(), self._started)
        else:
            self._note(str(error))

    def _note(self, problem: str | None) -> None:
        if problem != self.problem:
            name = chip_name(self.chip.phy_id)
            if problem is not None:
                log.warning("a chip can't be read", chip=name, error=problem)
            elif self.problem != "not read yet":
                log.info("a chip can be read again", chip=name)
        self.problem = problem


class Scanner:
    """Keeps a listener informed of all chips.

    Args:
        driver: what to read.
        listener: who is told.
        period_s: time between polls of a chip.
        discover_s: time between looks at what chips there are.
        deadline_s: how long a call may take before it counts as late.
        moment: the clocks.
    """

    def __init__(
        self,
        driver: Driver,
        listener: Listener,
        *,
        period_s: float = 1.0,
        discover_s: float = 60.0,
        deadline_s: float = 2.0,
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._driver = driver
        self._listener = listener
        self.period_s = period_s
        self._discover_s = discover_s
        self._deadline_s = deadline_s
        self._moment = moment
        self._thread = CallThread("driver")
        # Apart, so that a driver that is slow to take a subscriber holds up neither readings nor discoveries.
        self._subscribing = CallThread("subscription")
        self._readers: dict[int, _Reader] = {}
        self._discovering: asyncio.Future[Inventory] | None = None
        self._server: Inventory | None = None
        self.problem: str | None = "the driver has not been read yet"
        """Why nothing is known of the chips; None as long as at least one can be read."""
        self.turned_s = 0.0
        """When the loop came round last, by the event loop's clock: it does so whatever the driver does."""

    async def run(self) -> None:
        """Scan until cancelled."""
        subscription: asyncio.Task[None] | None = None
        try:
            await self._find_chips()
            subscription = asyncio.create_task(self._subscribe())
            loop = asyncio.get_running_loop()
            discover_at_s = loop.time() + self._discover_s
            while True:
                self.turned_s = loop.time()
                self._poll()
                if loop.time() >= discover_at_s and self._discovering is None:
                    discover_at_s = loop.time() + self._discover_s
                    self._discover().add_done_callback(self._rediscovered)
                await asyncio.sleep(self.period_s)
        finally:
            if subscription is not None:
                subscription.cancel()
            for reader in self._readers.values():
                reader.close()
            self._readers.clear()
            self._thread.close()
            self._subscribing.close()

    async def _find_chips(self) -> None:
        backoff = Backoff(first_s=0.2, limit_s=5.0)
        while True:
            self.turned_s = asyncio.get_running_loop().time()
            call = self._discovering or self._discover()
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                self._note(f"the driver does not answer within {self._deadline_s:g} s")
                continue
            try:
                self._take(call.result())
            except DriverError as error:
                self._discovering = None
                self._note(error.message)
                await asyncio.sleep(backoff.next_s())
            else:
                self._discovering = None
                return

    async def _subscribe(self) -> None:
        loop = asyncio.get_running_loop()

        def hear(event: FaultEvent) -> None:
            at = self._moment()
            try:
                loop.call_soon_threadsafe(self._announced, event, at)
            except RuntimeError:
                return  # the loop has ended meanwhile; nobody listens any more

        call = self._subscribing.call(lambda: self._driver.subscribe(hear))
        try:
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                log.warning("the driver does not answer who wants to hear of faults, polling alone meanwhile")
            await call
        except AscendError as error:
            log.info("the driver announces no faults, polling alone", poll_s=self.period_s, error=str(error))
        else:
            log.info("the driver announces faults", poll_s=self.period_s)
        finally:
            call.cancel()

    def _announced(self, event: FaultEvent, at: Moment) -> None:
        self._listener.announced(event, at)
        if event.assertion == "recover":
            asyncio.get_running_loop().call_later(CONFIRM_S, self._look_at, event.logic_id)

    def _look_at(self, logic_id: int) -> None:
        for reader in self._readers.values():
            if reader.chip.logic_id == logic_id:
                reader.poll(self._listener, self._moment(), self._deadline_s)

    def _discover(self) -> "asyncio.Future[Inventory]":
        self._discovering = self._thread.call(self._driver.discover)
        return self._discovering

    def _rediscovered(self, call: "asyncio.Future[Inventory]") -> None:
        self._discovering = None
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self._take(call.result())
        else:
            log.warning("the chips can't be listed", error=str(error))

    def _take(self, server: Inventory) -> None:
        """Follow what was discovered; a chip that is gone is read no more and grows old."""
        if server != self._server:
            log.info("discovered", product=server.chip_type, chips=len(server.chips), driver=server.driver_version)
            self._server = server
        found = {chip.phy_id: chip for chip in server.chips}
        for phy_id in self._readers.keys() - found.keys():
            log.warning("a chip is no longer there", chip=chip_name(phy_id))
            self._readers.pop(phy_id).close()
        for phy_id, chip in found.items():
            if phy_id in self._readers:
                self._readers[phy_id].chip = chip
            else:
                self._readers[phy_id] = _Reader(self._driver, chip)
        self._listener.discovered(server, self._moment())

    def _poll(self) -> None:
        at = self._moment()
        for reader in self._readers.values():
            reader.poll(self._listener, at, self._deadline_s)
        problems = [reader.problem for reader in self._readers.values()]
        self._note(problems[0] if problems and None not in problems else None)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem and problem not in {None, "not read yet"}:
            log.warning("the driver can't be read", error=problem)
        self.problem = problem
