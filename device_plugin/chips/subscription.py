"""Subscribes to the driver's fault events and passes them on to the event loop, at most as many as it can take.

The driver calls back from threads of its own. Of a storm of events the first ``LIMIT`` within a minute are passed on,
as in the reference (docs/spec/faults.md#fault-events); readings find the rest.
"""

import asyncio
import time
from collections.abc import Callable

import structlog

from ascend.errors import AscendError
from ascend.rate_limiters import Backoff
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import Driver, FaultEvent
from device_plugin.health.moment import Moment

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

LIMIT, WINDOW_S = 1000, 60.0

RETRY_FIRST_S, RETRY_LIMIT_S = 10.0, 600.0
"""Waiting times between attempts to subscribe."""


class EventLimit:
    """Counts events; its methods may be called from any thread.

    Args:
        now_s: a monotonic clock.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._began_s = -WINDOW_S
        self._count = 0
        self._lost = False

    def admits(self) -> bool:
        """Count an event; return whether it may be passed on."""
        now_s = self._now_s()
        if now_s >= self._began_s + WINDOW_S:
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count == LIMIT + 1:
            log.warning("too many fault events, reading chips only", events=LIMIT, within_s=WINDOW_S)
        self._lost |= self._count > LIMIT
        return self._count <= LIMIT

    def take_lost(self) -> bool:
        """Return whether an event was not passed on since the last call."""
        lost, self._lost = self._lost, False
        return lost


class Subscription:
    """The subscription to the fault events of all chips.

    Args:
        driver: announces the events.
        deadline_s: seconds after which a call counts as late.
        moment: returns the present time.
    """

    def __init__(self, driver: Driver, deadline_s: float, moment: Callable[[], Moment]) -> None:
        self._driver = driver
        self._deadline_s = deadline_s
        self._moment = moment
        # A thread of its own, so that a slow subscription delays neither readings nor discoveries.
        self._thread = CallThread("subscription")
        self.limit = EventLimit()

    async def run(self, announced: Callable[[FaultEvent, Moment], None]) -> None:
        """Subscribe; if that is refused, try again later. The subscription lasts until the process ends.

        Args:
            announced: receives the events and when they came, on the event loop.
        """
        loop = asyncio.get_running_loop()

        def deliver(event: FaultEvent) -> None:
            if not self.limit.admits():
                return
            try:
                loop.call_soon_threadsafe(announced, event, self._moment())
            except RuntimeError:
                return  # the loop is closed

        backoff = Backoff(RETRY_FIRST_S, RETRY_LIMIT_S)
        problem = ""
        while True:
            try:
                await self._subscribe(deliver)
            except AscendError as error:
                if problem != str(error):
                    problem = str(error)
                    log.info("the driver announces no faults, polling only until it does", error=problem)
            else:
                log.info("the driver announces faults")
                return
            await asyncio.sleep(backoff.next_s())

    async def _subscribe(self, deliver: Callable[[FaultEvent], None]) -> None:
        call = self._thread.call(lambda: self._driver.subscribe(deliver))
        try:
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                log.warning("the driver does not answer the subscription to fault events, polling only until it does")
            await call
        finally:
            call.cancel()

    def close(self) -> None:
        """End the thread."""
        self._thread.close()
