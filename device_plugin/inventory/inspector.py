"""Reads the driver once, without Kubernetes, for support cases and acceptance; then reports its fault events if wished.

Every call of the driver has a deadline and every chip its own thread: a chip that hangs is shown with a problem, the
others are read.
"""

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from ascend.chips import chip_name
from ascend.errors import AscendError, DriverError
from device_plugin.chips.call_thread import CallThread, R
from device_plugin.chips.scanner import Scanner, present_moment
from device_plugin.driver import Assertion, ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.health.active_faults import ActiveFaults, FaultTransition
from device_plugin.health.fault_rules import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.lost_contact import LostContact
from device_plugin.health.snapshot import Moment
from device_plugin.inventory.entries import EventEntry, Scan, health_word, network_word

DISCOVER_S = 30.0
"""Loading the driver and listing all chips can take long on a server that has just started."""

CHIP_S = 3.0


class Inspector:
    """Reads a driver; the listener of the scanner that watches it.

    Args:
        driver: what to read.
        discover_s: deadline for the list of chips.
        chip_s: deadline for reading a chip.
    """

    def __init__(self, driver: Driver, *, discover_s: float = DISCOVER_S, chip_s: float = CHIP_S) -> None:
        self._driver = driver
        self._discover_s = discover_s
        self._chip_s = chip_s
        self._rules = default_rules()
        self._book = HealthBook(self._rules, hold_s=0.0)  # no damping: what the codes say now
        self._faults: dict[int, ActiveFaults] = {}
        self._contacts: dict[int, LostContact] = {}
        self._phy_ids: dict[int, int] = {}  # by logic id
        self._report: Callable[[EventEntry], None] = lambda _event: None

    async def scan(self) -> Scan:
        """Read all chips once.

        Raises:
            DriverError: the driver can't be read; says why.
        """
        try:
            server = await _call("driver", self._driver.discover, self._discover_s)
        except TimeoutError:
            raise DriverError(f"the driver does not answer within {self._discover_s:g} s") from None
        self._book.on_discovery(server, present_moment())
        answers = await asyncio.gather(*map(self._read, server.chips))
        snapshot = self._book.judge(present_moment())
        problems = {chip.chip_id: chip.sentence for chip in snapshot.chips if chip.in_doubt}
        problems |= {chip.phy_id: why for chip, why in zip(server.chips, answers, strict=True) if why is not None}
        return Scan(snapshot, problems)

    async def watch(self, report: Callable[[EventEntry], None], *, period_s: float = 1.0) -> None:
        """Report every fault that occurs or clears after the scan, until cancelled.

        Args:
            report: gets each of them once, whether an event announces it or a reading finds it.
            period_s: time between two readings of a chip.
        """
        self._report = report
        await Scanner(self._driver, self, period_s=period_s).run()

    async def _read(self, chip: ChipFacts) -> str | None:
        at = present_moment()
        try:
            state = await _call(chip_name(chip.phy_id), lambda: self._driver.read(chip), self._chip_s)
        except TimeoutError:
            return f"driver silent: no answer within {self._chip_s:g} s"
        except AscendError as error:
            return error.message
        list(self._apply(chip.phy_id, state, at))  # what the scan shows is not reported again
        return None

    def _apply(self, phy_id: int, state: ChipState, at: Moment) -> Iterator[FaultTransition]:
        """Apply a reading; yield what it finds and no event announced."""
        self._book.on_reading(phy_id, state, at)
        faults = self._faults.setdefault(phy_id, ActiveFaults())
        contact = self._contacts.setdefault(phy_id, LostContact())
        return faults.read(contact.confirm(state, faults.codes, self._rules, at), at)

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        """Follow a discovery."""
        self._phy_ids = {chip.logic_id: chip.phy_id for chip in server.chips}
        self._book.on_discovery(server, at)

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """Report what a reading finds and no event announced."""
        for transition in self._apply(phy_id, state, at):
            self._add(phy_id, transition.code, "occur" if transition.present else "recover", at)

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        """Report an event, unless a reading found the same before."""
        phy_id = self._phy_ids.get(event.logic_id)
        if phy_id is None:
            return
        self._book.on_event(event, at)
        transitions = list(self._faults.setdefault(phy_id, ActiveFaults()).announce(event, at))
        if event.assertion == "once":
            self._add(phy_id, event.code, "once", at, event)
            return
        for transition in transitions:
            self._add(phy_id, transition.code, "occur" if transition.present else "recover", at, event)

    def events_lost(self) -> None:
        """Report what readings find, because too many events came."""
        self._book.events_lost()
        for faults in self._faults.values():
            faults.lose_events()

    def _add(self, phy_id: int, code: int, assertion: Assertion, at: Moment, event: FaultEvent | None = None) -> None:
        chip = next(chip for chip in self._book.judge(present_moment()).chips if chip.chip_id == phy_id)
        self._report(
            EventEntry(
                time=datetime.fromtimestamp(at.wall_ms / 1000, UTC).isoformat(timespec="milliseconds"),
                name=chip_name(phy_id),
                code=self._rules.spell(code),
                assertion=assertion,
                severity=None if event is None else event.severity,
                source="poll" if event is None else "event",
                level=max(chip.level, chip.network_level).wire,
                health=health_word(chip.healthy),
                network_health=network_word(chip),
            )
        )


async def _call(name: str, function: Callable[[], R], deadline_s: float) -> R:
    """Run a call in a thread of its own.

    Raises:
        TimeoutError: it has not returned within the deadline.
    """
    thread = CallThread(name)
    try:
        async with asyncio.timeout(deadline_s):
            return await thread.call(function)
    finally:
        thread.close()
