"""Measures the chips when metrics are scraped.

Nothing is read unless somebody scrapes. Each chip has threads of its own here, apart from the thread that reads its
health: a call that hangs occupies one of them, and the scrape goes on without the values behind it.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.daemon.observable import Observable
from device_plugin.driver import ChipFacts, ChipType, Inventory
from device_plugin.driver.telemetry import NOT_ON, MeasuringDriver, Reading
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics
from device_plugin.telemetry.measured_chip import Item, MeasuredChip

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

WAIT_S: Final = 3.0
"""How long a scrape waits for values. Prometheus waits for 10 s by default. If the driver answers one call at a
time, it has 17 ms for each call about 16 chips.
"""


class Meter:
    """Measures all chips of a server. Belongs to one event loop.

    Args:
        driver: measures the chips.
        snapshots: has the server as last discovered.
        metrics: counts values that could not be read.
        interval_s: for this time values are kept, however many scrapes there are.
        off_limits: returns the chips that must not be used now, because they are being reset.
        wait_s: how long a scrape waits for values.
        now_s: a monotonic clock.
    """

    def __init__(
        self,
        driver: MeasuringDriver,
        snapshots: Observable[Snapshot | None],
        metrics: Metrics,
        *,
        interval_s: float,
        off_limits: Callable[[], ChipSet] = lambda: 0,
        wait_s: float = WAIT_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._driver = driver
        self._snapshots = snapshots
        self._metrics = metrics
        self.interval_s = interval_s
        self._off_limits = off_limits
        self._wait_s = wait_s
        self._now_s = now_s
        self._began_s = float("-inf")
        self._chips: dict[int, MeasuredChip] = {}  # also those no longer listed: a call that hangs keeps its thread
        self._said: set[Item] = set()

    async def refresh(self) -> None:
        """Take the readings, unless that was done within the interval, and wait for them."""
        if self._server is None:
            return
        now_s = self._now_s()
        if now_s - self._began_s >= self.interval_s:
            self._began_s = now_s
            off_limits = self._off_limits()
            for facts in self._server.chips:
                self._begin(facts, self._server.chip_type, is_off_limits=bool(off_limits >> facts.phy_id & 1))
        pending = [call for chip in self.chips for call in chip.pending]
        left_s = self._began_s + self._wait_s - now_s
        if pending and left_s > 0:
            await asyncio.wait(pending, timeout=left_s)

    @property
    def chips(self) -> Sequence[MeasuredChip]:
        """The chips of the server that have been measured, by ascending physical id."""
        listed = self._server.chips if self._server is not None else ()
        return [self._chips[facts.phy_id] for facts in listed if facts.phy_id in self._chips]

    def close(self) -> None:
        """End the threads, without waiting for calls that hang."""
        for chip in self._chips.values():
            chip.close()

    def on_failure(self, chip: ChipFacts, item: Item, error: str, *, is_first: bool) -> None:
        """Count a value that could not be read, and log the first of several failures."""
        self._metrics.telemetry_failures.labels(value=item).inc()
        if is_first:
            log.warning("a value can't be measured", chip=chip_name(chip.phy_id), value=str(item), error=error)

    def not_measured(self, chip: ChipFacts, item: Item, error: str) -> None:
        """Log that the driver does not have a value, once for all chips."""
        if item not in self._said:
            self._said.add(item)
            log.info("the driver does not have a value", chip=chip_name(chip.phy_id), value=str(item), error=error)

    @property
    def _server(self) -> Inventory | None:
        snapshot = self._snapshots.value
        return snapshot.server if snapshot is not None else None

    def _begin(self, facts: ChipFacts, kind: ChipType, *, is_off_limits: bool) -> None:
        chip = self._chips.get(facts.phy_id)
        if chip is None:
            chip = self._chips[facts.phy_id] = MeasuredChip(self._driver, facts, self, self._now_s)
        readings = () if is_off_limits else [reading for reading in Reading if kind not in NOT_ON.get(reading, ())]
        chip.begin(facts, readings)
