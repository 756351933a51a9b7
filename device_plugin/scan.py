"""Reads the driver again and again, off the event loop, and publishes what changed.

Each call has a deadline. A call that hangs keeps its (daemon) thread; no second one is started beside it, and once
nothing has been heard of the driver for ``stale_s`` every chip counts as unhealthy: unknown is not healthy.
"""

import asyncio
import threading
import time
from collections.abc import Callable

import structlog

from ascend.errors import DriverError
from device_plugin.driver import Driver, Reading
from device_plugin.rules.snapshot import Snapshot, age_out, take
from device_plugin.state.observable import Observable

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


class Scanner:
    """Keeps a snapshot of the chips up to date.

    Args:
        driver: what to read.
        snapshots: where to publish; None until the first reading.
        period_s: time between readings.
        deadline_s: how long a reading may take before it counts as late.
        stale_s: how long old readings are believed.
        now_ms: wall clock, Unix milliseconds, for the time a fault was first seen.
    """

    def __init__(
        self,
        driver: Driver,
        snapshots: Observable[Snapshot | None],
        *,
        period_s: float = 0.5,
        deadline_s: float = 2.0,
        stale_s: float = 10.0,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._driver = driver
        self._snapshots = snapshots
        self._period_s = period_s
        self._deadline_s = deadline_s
        self._stale_s = stale_s
        self._now_ms = now_ms
        self._call: asyncio.Future[Reading] | None = None
        self._heard_s = 0.0
        self.problem: str | None = "the driver has not been read yet"
        """Why the snapshot is not fresh; None while it is."""

    async def run(self) -> None:
        """Scan until cancelled."""
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()
        while True:
            await self._scan_once()
            await asyncio.sleep(self._period_s)

    async def _scan_once(self) -> None:
        loop = asyncio.get_running_loop()
        if self._call is None:
            self._call = _in_thread(self._driver.read)
        done, _ = await asyncio.wait((self._call,), timeout=self._deadline_s)
        if not done:
            self._fail(f"the driver has not answered for {loop.time() - self._heard_s:.1f} s")
            return
        call, self._call = self._call, None
        try:
            reading = call.result()
        except DriverError as error:
            self._fail(error.message)
            return
        if self.problem is not None:
            log.info("the driver answers", product=reading.product.name, chips=len(reading.chips))
        self.problem = None
        self._heard_s = loop.time()
        self._publish(take(reading, self._snapshots.value, self._now_ms()))

    def _fail(self, problem: str) -> None:
        if self.problem != problem:
            log.warning("the driver can't be read", error=problem)
        self.problem = problem
        known = self._snapshots.value
        if known is not None and asyncio.get_running_loop().time() - self._heard_s >= self._stale_s:
            self._publish(age_out(known))

    def _publish(self, snapshot: Snapshot) -> None:
        known = self._snapshots.value
        if snapshot != known:
            if known is not None and snapshot.healthy != known.healthy:
                log.warning("chip health changed", healthy=f"{snapshot.healthy:#x}", before=f"{known.healthy:#x}")
            self._snapshots.set(snapshot)


def _in_thread(call: Callable[[], Reading]) -> asyncio.Future[Reading]:
    # Not a ThreadPoolExecutor: it joins its threads when the process ends, so a hanging driver would hang the exit.
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Reading] = loop.create_future()

    def settle(reading: Reading | None, error: Exception | None) -> None:
        if outcome.done():
            return
        if reading is not None:
            outcome.set_result(reading)
        elif error is not None:
            outcome.set_exception(error)

    def work() -> None:
        reading, failure = None, None
        try:
            reading = call()
        except DriverError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever a driver binding raises, the plugin goes on without it
            failure = DriverError(f"{type(error).__name__}: {error}")
        try:
            loop.call_soon_threadsafe(settle, reading, failure)
        except RuntimeError:
            return  # the loop has ended meanwhile; nobody waits any more

    threading.Thread(target=work, name="driver", daemon=True).start()
    return outcome
