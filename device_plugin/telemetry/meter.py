"""Measures the chips when metrics are scraped.

Nothing is read unless somebody scrapes. Each chip has threads of its own here, apart from the thread that reads its
health: a call that hangs occupies one of them, and the scrape goes on without the values behind it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, TypeAlias

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.daemon.observable import Observable
from ascend.errors import AscendError, DriverError
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts, ChipType, Inventory
from device_plugin.driver.telemetry import (
    NOT_ON,
    Label,
    MeasuringDriver,
    NotMeasured,
    Quantity,
    Reading,
    Values,
    plausible,
)
from device_plugin.health.snapshot import Snapshot
from device_plugin.metrics import Metrics

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASK_AGAIN_S: Final = 600.0
"""After this time a value that the driver did not have is asked for again."""


SLOW: Final = frozenset({Reading.LINK_UPS, Reading.NETWORK})
"""Readings for which the driver can take seconds (docs/spec/telemetry.md#driver-calls): the others do not wait."""


Item: TypeAlias = Label | Reading


_Outcome: TypeAlias = str | Values | AscendError


class ReaderThread:
    """A thread that takes readings in order; each outcome is available at once, whatever hangs afterwards.

    Args:
        driver: measures the chip.
        name: of the thread.
    """

    def __init__(self, driver: MeasuringDriver, name: str) -> None:
        self._driver = driver
        self._thread = CallThread(name)
        self._items: Sequence[Item] = ()
        self._done = 0
        self.work: asyncio.Future[None] | None = None
        """Ends when all readings of the round are taken; None before the first round."""
        self.is_late = False
        """Whether ``work`` is of an earlier round."""
        self.outcomes: deque[tuple[ChipFacts, Item, _Outcome]] = deque()
        """What was read, and what could not be."""

    @property
    def remaining(self) -> Sequence[Item]:
        """The present reading and the readings after it; empty once all outcomes are available."""
        return self._items[self._done :]

    def begin(self, chip: ChipFacts, items: Sequence[Item]) -> Item | None:
        """Take readings, unless an earlier round has not ended; return what that is reading."""
        if hanging := self.remaining:
            self.is_late = True
            return hanging[0]
        self.is_late = False
        if items:
            self._items, self._done = items, 0
            self.work = self._thread.call(partial(self._run, chip, items))
        return None

    def close(self) -> None:
        """End the thread once its present call returns."""
        self._thread.close()

    def _run(self, chip: ChipFacts, items: Sequence[Item]) -> None:
        """Runs in the thread."""
        for item in items:
            self.outcomes.append((chip, item, self._read(chip, item)))
            self._done += 1

    def _read(self, chip: ChipFacts, item: Item) -> _Outcome:
        try:
            if isinstance(item, Label):
                return self._driver.describe(chip, item)
            return self._driver.measure(chip, item)
        except AscendError as error:
            return error
        except Exception as error:  # noqa: BLE001 - whatever a driver binding raises, the other readings are taken
            return DriverError(f"{type(error).__name__}: {error}")


class MeasuredChip:
    """Belongs to one event loop.

    Args:
        driver: measures the chip.
        facts: the chip.
        meter: is told of values that are missing.
        now_s: a monotonic clock.
    """

    def __init__(self, driver: MeasuringDriver, facts: ChipFacts, meter: "Meter", now_s: Callable[[], float]) -> None:
        self.facts = facts
        self._meter = meter
        self._now_s = now_s
        name = f"telemetry {facts.phy_id}"
        self.lanes: Final = (ReaderThread(driver, name), ReaderThread(driver, f"{name} slow"))
        """The thread for fast readings, and the one for slow ones."""
        self._values: dict[Quantity, float] = {}  # of the present round
        self._labels: dict[Label, str] = {}
        self._failing: set[Item] = set()
        self._missing: dict[Item, float] = {}

    def begin(self, facts: ChipFacts, readings: Collection[Reading]) -> None:
        """Begin a round: take readings, one after another. Behind a call of an earlier round that hangs none begins.

        Args:
            facts: the chip as last discovered.
            readings: those to take; none for a chip that must be left alone.
        """
        self.take_over()
        if facts != self.facts:
            self.facts = facts
            self._labels.clear()
            self._missing.clear()
        self._values.clear()
        now_s = self._now_s()
        self._missing = {item: at_s for item, at_s in self._missing.items() if now_s - at_s < ASK_AGAIN_S}
        labels = [label for label in Label if label not in self._labels]
        # The driver has no place for a chip whose card it does not list.
        wanted: list[Item] = [*labels, *readings] if readings and facts.is_listed else []
        items = [item for item in wanted if item not in self._missing]
        for lane, own in zip(self.lanes, (set(items) - SLOW, SLOW), strict=True):
            hanging = lane.begin(facts, [item for item in items if item in own])
            if hanging is not None:
                self._fail(hanging, "an earlier call has not returned")

    @property
    def pending(self) -> list[asyncio.Future[None]]:
        """The unfinished work of this round, without the hanging work of earlier rounds."""
        return [lane.work for lane in self.lanes if lane.work is not None and lane.remaining and not lane.is_late]

    def take_over(self) -> None:
        """Take over what was read since the last time."""
        for lane in self.lanes:
            while lane.outcomes:
                self._settle(*lane.outcomes.popleft())

    def _settle(self, chip: ChipFacts, item: Item, outcome: _Outcome) -> None:
        if isinstance(outcome, NotMeasured):
            self._missing[item] = self._now_s()
            self._meter.not_measured(chip, item, outcome.message)
        elif isinstance(outcome, AscendError):
            self._fail(item, outcome.message)
        elif isinstance(item, Reading) and not isinstance(outcome, str):
            values, problem = plausible(outcome)
            self._values |= values
            if problem:
                self._fail(item, problem)
            else:
                self._failing.discard(item)
        elif isinstance(item, Label) and isinstance(outcome, str) and chip == self.facts:
            self._labels[item] = outcome
            self._failing.discard(item)

    def _fail(self, item: Item, problem: str) -> None:
        self._meter.on_failure(self.facts, item, problem, is_first=item not in self._failing)
        self._failing.add(item)

    @property
    def is_identified(self) -> bool:
        """Whether each label was read, or could not be."""
        return all(label in self._labels or label in self._failing or label in self._missing for label in Label)

    def label(self, label: Label) -> str:
        """Return a label; empty if it could not be read."""
        return self._labels.get(label, "")

    def value(self, quantity: Quantity) -> float | None:
        """Return a value; None if it could not be read in the present round."""
        return self._values.get(quantity)

    def close(self) -> None:
        """End the threads, without waiting for a call that hangs."""
        for lane in self.lanes:
            lane.close()


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
