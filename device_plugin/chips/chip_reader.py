"""Reads a chip for a listener; a call that hangs blocks the thread of that chip only."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeAlias

import structlog

from ascend.chips import chip_name
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.health.moment import Moment

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

Receive: TypeAlias = Callable[[int, ChipState, Moment], None]
"""Receives the physical id of a chip, its state, and when the reading started."""

NOT_READ = "not read yet"


class Listener(Protocol):
    """Receives what the driver reports; ``at`` is the time a call started or an event arrived."""

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Receive the list of chips."""

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Receive the state of a chip."""

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Receive a fault event."""

    def events_lost(self) -> None:
        """Learn that events were not passed on, because there were too many."""


class ChipReader:
    """Reads a chip in a dedicated thread, one call at a time.

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
        self.state: ChipState | None = None
        """The state as last read."""

    def poll(self, receive: Receive, at: Moment, deadline_s: float) -> None:
        """Start a reading unless the previous one has not returned.

        Args:
            receive: receives the state.
            at: the present time.
            deadline_s: seconds after which a call counts as late.
        """
        if self._call is not None:
            if at.mono_s - self._started.mono_s >= deadline_s:
                self._note(f"the driver does not answer within {deadline_s:g} s")
            return
        chip, self._started = self.chip, at
        self._call = self._thread.call(lambda: self._driver.read(chip))
        self._call.add_done_callback(lambda call: self._settle(call, receive))

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    def _settle(self, call: "asyncio.Future[ChipState]", receive: Receive) -> None:
        self._call = None
        if call.cancelled():
            return
        error = call.exception()
        if error is not None:
            self._note(str(error))
            return
        self._note(None)
        self.state = call.result()
        receive(self.chip.phy_id, self.state, self._started)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem:
            name = chip_name(self.chip.phy_id)
            if problem is not None:
                log.warning("a chip can't be read", chip=name, error=problem)
            elif self.problem != NOT_READ:
                log.info("a chip can be read again", chip=name)
        self.problem = problem
