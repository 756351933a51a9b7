"""Reads one chip, in a thread of its own: one call at a time, however long the driver takes."""

import asyncio
import math
from collections.abc import Callable
from typing import Protocol, TypeAlias

import structlog

from ascend.chips import chip_name
from device_plugin.driver import ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.rules.verdict import Moment
from device_plugin.threads import CallThread

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Listener(Protocol):
    """Who is told what the driver says; ``at`` is when the call was made, or the event came."""

    def discovered(self, server: Inventory, at: Moment) -> None:
        """The chips there are."""

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """How a chip is."""

    def announced(self, event: FaultEvent, at: Moment) -> None:
        """A fault came or went."""


class Reader:
    """Reads one chip.

    Args:
        driver: what to read.
        chip: which chip; replaced when its facts change.
        stirred: told when it is otherwise than before: how it was, where that is known, and when that was.
    """

    def __init__(self, driver: Driver, chip: ChipFacts, stirred: "OnChange") -> None:
        self._driver = driver
        self.chip = chip
        self._stirred = stirred
        self._thread = CallThread(f"chip {chip.phy_id}")
        self._call: asyncio.Future[ChipState] | None = None
        self._glances = 0
        self._glancing = False
        self._started = Moment(0.0, 0)
        self._state: tuple[ChipState, Moment] | None = None
        self.heard_s: dict[int, float] = {}
        """When each of its faults was last announced."""
        self.problem: str | None = "not read yet"
        """Why its state is not known; None while it is."""

    @property
    def is_quiet(self) -> bool:
        """It has been read, owes no answer, and has no fault, as it says when it is asked."""
        if self._call is not None or self.problem is not None or self._state is None:
            return False
        state, _ = self._state
        return state.is_clean and state.codes is not None

    def poll(self, listener: Listener, at: Moment, deadline_s: float, *, glance: bool = False) -> None:
        """Ask for the chip's state, unless it still owes the last answer.

        Args:
            listener: who is told.
            at: now.
            deadline_s: how long an answer may take.
            glance: a glance will do.
        """
        if self._call is not None:
            if at.mono_s - self._started.mono_s >= deadline_s:
                self._note(f"the driver does not answer within {deadline_s:g} s")
            return
        chip = self.chip
        self._started, self._glancing = at, glance
        if glance:
            self._glances += 1
            turn = self._glances
            self._call = self._thread.call(lambda: self._driver.glance(chip, turn))
        else:
            self._call = self._thread.call(lambda: self._driver.read(chip))
        self._call.add_done_callback(lambda call: self._settle(call, listener))

    def hear(self, event: FaultEvent, at: Moment) -> None:
        """One of its faults was announced."""
        self.heard_s[event.code] = at.mono_s

    def begin_anew(self, chip: ChipFacts) -> None:
        """The chip is back; how it was before says nothing of how it is. An answer it owes is still awaited."""
        self.chip, self._state, self.problem = chip, None, "not read yet"

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
        if self._glancing and max(self.heard_s.values(), default=-math.inf) >= self._started.mono_s:
            return  # the event knows better, and a reading is about to follow
        before, self._state = self._state, (call.result(), self._started)
        listener.polled(self.chip.phy_id, call.result(), self._started)
        if before is None or before[0] != call.result():
            self._stirred(self, before, call.result())

    def _note(self, problem: str | None) -> None:
        if problem != self.problem:
            name = chip_name(self.chip.phy_id)
            if problem is not None:
                log.warning("a chip can't be read", chip=name, error=problem)
            elif self.problem != "not read yet":
                log.info("a chip can be read again", chip=name)
        self.problem = problem


OnChange: TypeAlias = Callable[[Reader, tuple[ChipState, Moment] | None, ChipState], None]
"""Told which chip has changed, how it was when, where that is known, and how it is."""
