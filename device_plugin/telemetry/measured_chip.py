"""The values of one chip, which are read in rounds, in threads of their own."""

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Final, Protocol, TypeAlias

from ascend.errors import AscendError, DriverError
from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts
from device_plugin.driver.telemetry import Label, MeasuringDriver, NotMeasured, Quantity, Reading, Values, plausible

ASK_AGAIN_S: Final = 600.0
"""After this time a value that the driver did not have is asked for again."""

SLOW: Final = frozenset({Reading.LINK_UPS, Reading.NETWORK})
"""Readings for which the driver can take seconds (docs/spec/telemetry.md#driver-calls): the others do not wait."""

Item: TypeAlias = Label | Reading

_Outcome: TypeAlias = str | Values | AscendError


class Witness(Protocol):
    """Is told of values that a chip does not give."""

    def on_failure(self, chip: ChipFacts, item: Item, error: str, *, is_first: bool) -> None:
        """Note that a value can't be read now; ``is_first`` unless it could not be read before either."""

    def not_measured(self, chip: ChipFacts, item: Item, error: str) -> None:
        """Note that the driver does not have a value."""


class MeasuredChip:
    """Belongs to one event loop.

    Args:
        driver: measures the chip.
        facts: the chip.
        witness: is told of values that are missing.
        now_s: a monotonic clock.
    """

    def __init__(self, driver: MeasuringDriver, facts: ChipFacts, witness: Witness, now_s: Callable[[], float]) -> None:
        self.facts = facts
        self._witness = witness
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
        items = [each for each in wanted if each not in self._missing]
        for lane, own in zip(self.lanes, (set(items) - SLOW, SLOW), strict=True):
            hanging = lane.begin(facts, [each for each in items if each in own])
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
            self._witness.not_measured(chip, item, outcome.message)
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
        self._witness.on_failure(self.facts, item, problem, is_first=item not in self._failing)
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
