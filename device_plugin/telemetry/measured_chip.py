"""The values of one chip, which are read in rounds, in threads of their own."""

import asyncio
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Final, Protocol, TypeAlias

from device_plugin.chips.call_thread import CallThread
from device_plugin.driver import ChipFacts
from device_plugin.driver.telemetry import Label, MeasuringDriver, NotMeasured, Quantity, Reading, Values, plausible

ASK_AGAIN_S: Final = 600.0
"""After this time a value that the driver did not have is asked for again."""

SLOW: Final = frozenset({Reading.NETWORK})
"""Readings for which the driver can take seconds (docs/spec/telemetry.md#driver-calls): the others do not wait."""

Item: TypeAlias = Label | Reading


class Witness(Protocol):
    """Is told of values that a chip does not give."""

    def failed(self, chip: ChipFacts, item: Item, error: str, *, is_first: bool) -> None:
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
        self._driver = driver
        self.facts = facts
        self._witness = witness
        self._now_s = now_s
        self._fast = _Lane(f"telemetry {facts.phy_id}")
        self._slow = _Lane(f"telemetry {facts.phy_id} slow")
        self._values: dict[Quantity, float] = {}  # of the present round
        self._labels: dict[Label, str] = {}
        self._failing: set[Item] = set()
        self._missing: dict[Item, float] = {}

    def begin(self, facts: ChipFacts, readings: Collection[Reading]) -> None:
        """Begin a round: take readings, one after another. Behind a call of an earlier round that hangs none begins.

        Args:
            facts: the chip as last discovered.
            readings: those to take.
        """
        if facts != self.facts:
            self.facts = facts
            self._labels.clear()
            self._missing.clear()
        self._values.clear()
        now_s = self._now_s()
        self._missing = {item: at_s for item, at_s in self._missing.items() if now_s - at_s < ASK_AGAIN_S}
        labels = [label for label in Label if label not in self._labels]
        # The driver has no place for a chip whose card it does not list.
        items: list[Item] = [*labels, *readings] if facts.is_listed else []
        self._begin(self._fast, [each for each in items if each not in SLOW])
        self._begin(self._slow, [each for each in items if each in SLOW])

    def _begin(self, lane: "_Lane", items: Iterable[Item]) -> None:
        hanging = lane.current
        lane.is_late = hanging is not None
        if hanging is not None:
            self._fail(hanging, "an earlier call has not returned")
            return
        for item in items:
            if item not in self._missing:
                lane.calls[item] = self._call(lane, item)

    def _call(self, lane: "_Lane", item: Item) -> "asyncio.Future[str] | asyncio.Future[Values]":
        chip = self.facts
        if isinstance(item, Label):
            described = lane.thread.call(partial(self._driver.describe, chip, item))
            described.add_done_callback(partial(self._described, lane, chip, item))
            return described
        measured = lane.thread.call(partial(self._driver.measure, chip, item))
        measured.add_done_callback(partial(self._measured, lane, item))
        return measured

    def _described(self, lane: "_Lane", chip: ChipFacts, label: Label, call: "asyncio.Future[str]") -> None:
        del lane.calls[label]
        if self._succeeded(label, call) and chip == self.facts:
            self._labels[label] = call.result()
            self._failing.discard(label)

    def _measured(self, lane: "_Lane", reading: Reading, call: "asyncio.Future[Values]") -> None:
        del lane.calls[reading]
        if not self._succeeded(reading, call):
            return
        values, problem = plausible(call.result())
        self._values |= values
        if problem:
            self._fail(reading, problem)
        else:
            self._failing.discard(reading)

    def _succeeded(self, item: Item, call: "asyncio.Future[str] | asyncio.Future[Values]") -> bool:
        if call.cancelled():
            return False
        error = call.exception()
        if isinstance(error, NotMeasured):
            self._missing[item] = self._now_s()
            self._witness.not_measured(self.facts, item, str(error))
        elif error is not None:
            self._fail(item, str(error))
        return error is None

    def _fail(self, item: Item, problem: str) -> None:
        self._witness.failed(self.facts, item, problem, is_first=item not in self._failing)
        self._failing.add(item)

    @property
    def pending(self) -> "list[asyncio.Future[str] | asyncio.Future[Values]]":
        """The calls of this round that have not returned; not those of an earlier round, which hang."""
        lanes = [lane for lane in (self._fast, self._slow) if not lane.is_late]
        return [call for lane in lanes for call in lane.calls.values()]

    @property
    def is_identified(self) -> bool:
        """Whether each label was read, or could not be."""
        return all(each in self._labels or each in self._failing or each in self._missing for each in Label)

    def label(self, label: Label) -> str:
        """Return a label; empty if it could not be read."""
        return self._labels.get(label, "")

    def value(self, quantity: Quantity) -> float | None:
        """Return a value; None if it could not be read in the present round."""
        return self._values.get(quantity)

    def close(self) -> None:
        """End the threads, without waiting for a call that hangs."""
        self._fast.thread.close()
        self._slow.thread.close()


class _Lane:
    """A thread, and its calls in their order, until their values were taken over.

    ``is_late``: they are of an earlier round than the present one.
    """

    def __init__(self, name: str) -> None:
        self.thread = CallThread(name)
        self.calls: dict[Item, asyncio.Future[str] | asyncio.Future[Values]] = {}
        self.is_late = False

    @property
    def current(self) -> Item | None:
        """What is being read; None if all calls have returned."""
        return next(iter(self.calls), None)
