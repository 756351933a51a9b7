"""Polls the driver off the event loop and reports to a listener.

Each chip has a thread of its own: a call that hangs occupies that thread only, no second call is started for its chip,
and the other chips are still read. The state of the hanging chip ages until the chip counts as unhealthy, because an
unknown state is not healthy. The driver's fault events arrive in between; polling also finds a fault whose event was
lost.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Protocol

import structlog

from ascend.chips import chip_name
from ascend.errors import AscendError, DriverError
from ascend.kube.backoff import Backoff
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.health.levels import RESET_FINISHED
from device_plugin.health.snapshot import Moment

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CONFIRM_S = 0.3
"""Seconds after a recover event until its chip is read, before its hold has passed: another fault with the same code
may still be present (docs/spec/faults.md#fault-events). The delay lets the driver's error list catch up with its
event."""

NOT_READ = "not read yet"


def present_moment() -> Moment:
    """Return the present time on both clocks."""
    return Moment(time.monotonic(), time.time_ns() // 1_000_000)


class Listener(Protocol):
    """Receives what the driver reports; ``at`` is the time a call started or an event arrived."""

    def discovered(self, server: Inventory, at: Moment) -> None:
        """Receive the list of chips."""

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Receive the state of a chip."""

    def announced(self, event: FaultEvent, at: Moment) -> None:
        """Receive a fault event."""


class Scanner:
    """Keeps a listener informed about all chips.

    Args:
        driver: the driver to read.
        listener: receives chips, states and events.
        period_s: seconds between two readings of a chip.
        discover_s: seconds between two discoveries of the chips.
        deadline_s: seconds after which a call counts as late.
        moment: returns the present time.
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
        # Separate, so that a slow subscription delays neither readings nor discoveries.
        self._subscribing = CallThread("subscription")
        self._readers: dict[int, ChipReader] = {}
        self._gone: dict[int, ChipReader] = {}  # of chips no longer listed: one whose call hangs keeps its thread
        self._discovering: asyncio.Future[Inventory] | None = None
        self._server: Inventory | None = None
        self.problem: str | None = "the driver has not been read yet"
        """Why no chip can be read; None while at least one can."""
        self.turned_s = 0.0
        """When the loop last turned, on the event loop's clock; it turns even while the driver hangs."""

    async def run(self, begin: asyncio.Event | None = None) -> None:
        """Scan until cancelled.

        Args:
            begin: set once chips may be read and events subscribed to; None to do so as soon as chips are found.
        """
        loop = asyncio.get_running_loop()
        subscription: asyncio.Task[None] | None = None
        try:
            await self._find_chips()
            while begin is not None and not begin.is_set():
                self.turned_s = loop.time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.period_s):
                        await begin.wait()
            subscription = asyncio.create_task(self._subscribe())
            discovered_s = loop.time()
            while True:
                self.turned_s = loop.time()
                self._poll()
                if loop.time() >= discovered_s + self._discover_s and self._discovering is None:
                    discovered_s = loop.time()
                    self._discover().add_done_callback(self._rediscovered)
                await asyncio.sleep(self.period_s)
        finally:
            if subscription is not None:
                subscription.cancel()
            for reader in (*self._readers.values(), *self._gone.values()):
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
            self._discovering = None
            try:
                self._take(call.result())
            except DriverError as error:
                self._note(error.message)
                await asyncio.sleep(backoff.next_s())
            else:
                return

    async def _subscribe(self) -> None:
        loop = asyncio.get_running_loop()

        def deliver(event: FaultEvent) -> None:
            try:
                loop.call_soon_threadsafe(self._announced, event, self._moment())
            except RuntimeError:
                return  # the loop is closed

        call = self._subscribing.call(lambda: self._driver.subscribe(deliver))
        try:
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                log.warning("the driver does not answer the subscription to fault events, polling only until it does")
            await call
        except AscendError as error:
            log.info("the driver announces no faults, polling only", poll_s=self.period_s, error=str(error))
        else:
            log.info("the driver announces faults", poll_s=self.period_s)
        finally:
            call.cancel()

    def _announced(self, event: FaultEvent, at: Moment) -> None:
        self._listener.announced(event, at)
        if event.code == RESET_FINISHED:
            self._read(event.logic_id)  # no event announces the end of the faults from before the reset
        if event.assertion == "recover":
            asyncio.get_running_loop().call_later(CONFIRM_S, self._read, event.logic_id)

    def _read(self, logic_id: int) -> None:
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
        """Follow a discovery; a chip that is no longer listed is no longer read, so its state ages."""
        if server != self._server:
            log.info("discovered", product=server.chip_type, chips=len(server.chips), driver=server.driver_version)
            self._server = server
        found = {chip.phy_id: chip for chip in server.chips}
        for phy_id in self._readers.keys() - found.keys():
            log.warning("a chip is no longer listed", chip=chip_name(phy_id))
            self._gone[phy_id] = self._readers.pop(phy_id)
        for phy_id, chip in found.items():
            if phy_id in self._readers:
                self._readers[phy_id].chip = chip
            elif (back := self._gone.pop(phy_id, None)) is not None:
                # Listed again: it starts over, but a call that has not returned is still waited for.
                back.chip, back.problem = chip, NOT_READ
                self._readers[phy_id] = back
            else:
                self._readers[phy_id] = ChipReader(self._driver, chip)
        self._listener.discovered(server, self._moment())

    def _poll(self) -> None:
        at = self._moment()
        for reader in self._readers.values():
            reader.poll(self._listener, at, self._deadline_s)
        problems = [reader.problem for reader in self._readers.values()]
        self._note(problems[0] if problems and None not in problems else None)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem and problem not in {None, NOT_READ}:
            log.warning("the driver can't be read", error=problem)
        self.problem = problem


class ChipReader:
    """Reads one chip in a thread of its own, one call at a time.

    Args:
        driver: the driver to read.
        chip: the chip; replaced when its facts change.
    """

    def __init__(self, driver: Driver, chip: ChipFacts) -> None:
        self._driver = driver
        self.chip = chip
        self._thread = CallThread(f"chip {chip.phy_id}")
        self._call: asyncio.Future[ChipState] | None = None
        self._started = Moment(0.0, 0)
        self.problem: str | None = NOT_READ
        """Why the state is unknown; None while it is known."""

    def poll(self, listener: Listener, at: Moment, deadline_s: float) -> None:
        """Start a reading unless the previous one has not returned.

        Args:
            listener: receives the state.
            at: the present time.
            deadline_s: seconds after which a call counts as late.
        """
        if self._call is not None:
            if at.mono_s - self._started.mono_s >= deadline_s:
                self._note(f"the driver does not answer within {deadline_s:g} s")
            return
        chip, self._started = self.chip, at
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
        if error is not None:
            self._note(str(error))
            return
        self._note(None)
        listener.polled(self.chip.phy_id, call.result(), self._started)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem:
            name = chip_name(self.chip.phy_id)
            if problem is not None:
                log.warning("a chip can't be read", chip=name, error=problem)
            elif self.problem != NOT_READ:
                log.info("a chip can be read again", chip=name)
        self.problem = problem
