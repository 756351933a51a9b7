"""One scan of the driver, without Kubernetes: for support cases and acceptance; then, if wished, its fault events.

Every call of the driver has a deadline, and every chip its own thread: a chip that hangs is shown as silent, the
others are read.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

from ascend.chips import chip_name
from ascend.errors import AscendError, DriverError
from device_plugin.chips.call_thread import CallThread
from device_plugin.chips.scanner import Scanner, present_moment
from device_plugin.driver import ChipFacts, ChipState, Driver, FaultEvent, Inventory
from device_plugin.health.fault_rules import default_rules
from device_plugin.health.health_book import HealthBook
from device_plugin.health.levels import CARD_DROP
from device_plugin.health.snapshot import Moment, Verdict
from device_plugin.inventory.entries import EventEntry, Scan, health

DISCOVER_S = 30.0
"""Loading the driver and asking it for all chips may take long on a server that has just started."""

CHIP_S = 3.0


class Inspector:
    """Reads a driver.

    Args:
        driver: what to read.
        discover_s: how long it may take to tell what chips there are.
        chip_s: how long a chip may take to answer.
    """

    def __init__(self, driver: Driver, *, discover_s: float = DISCOVER_S, chip_s: float = CHIP_S) -> None:
        self._driver = driver
        self._discover_s = discover_s
        self._chip_s = chip_s
        self._rules = default_rules()
        # What the codes say now: no damping, nothing to readmit.
        self._book = HealthBook(self._rules, hold_s=0.0)
        self._server: Inventory | None = None
        self._states: dict[int, ChipState] = {}

    async def scan(self) -> Scan:
        """One scan.

        Raises:
            DriverError: the driver can't be read; says why.
        """
        thread = CallThread("driver")
        try:
            async with asyncio.timeout(self._discover_s):
                server = await thread.call(self._driver.discover)
        except TimeoutError:
            raise DriverError(f"the driver does not answer within {self._discover_s:g} s") from None
        finally:
            thread.close()
        self._server = server
        self._book.discovered(server.chips, present_moment())
        answers = await asyncio.gather(*map(self._read, server.chips))
        problems = {chip.phy_id: why for chip, why in zip(server.chips, answers, strict=True) if why is not None}
        return Scan(server, self._book.assess(0, present_moment()).chips, problems)

    async def watch(self, tell: Callable[[EventEntry], None], *, period_s: float = 1.0) -> None:
        """Tell of every fault that comes or goes, until cancelled: as the driver announces it, and by asking each chip.

        Args:
            tell: told.
            period_s: time between polls of a chip.
        """
        watcher = _Watcher(self._book, self._rules.spell, self._states, tell)
        await Scanner(self._driver, watcher, period_s=period_s).run()

    async def _read(self, chip: ChipFacts) -> str | None:
        at = present_moment()
        thread = CallThread(chip_name(chip.phy_id))
        try:
            async with asyncio.timeout(self._chip_s):
                state = await thread.call(lambda: self._driver.read(chip))
        except TimeoutError:
            return f"driver silent: no answer within {self._chip_s:g} s"
        except AscendError as error:
            return error.message
        finally:
            thread.close()
        self._book.polled(chip.phy_id, state, at)
        self._states[chip.phy_id] = state
        return None


class _Watcher:
    """Turns what a scanner hears into lines: each fault is told once when it comes and once when it goes.

    Args:
        book: judges.
        spell: the spelling of codes.
        states: what was told of each chip before.
        tell: told.
    """

    def __init__(
        self,
        book: HealthBook,
        spell: Callable[[int], str],
        states: dict[int, ChipState],
        tell: Callable[[EventEntry], None],
    ) -> None:
        self._book = book
        self._spell = spell
        self._tell = tell
        self._phy_ids: dict[int, int] = {}
        self._present = {phy_id: _codes(state) for phy_id, state in states.items()}
        self._announced_at: dict[int, Moment] = {}

    def discovered(self, server: Inventory, at: Moment) -> None:
        """The chips there are."""
        self._phy_ids = {chip.logic_id: chip.phy_id for chip in server.chips}
        self._book.discovered(server.chips, at)

    def polled(self, phy_id: int, state: ChipState, at: Moment) -> None:
        """How a chip is; what was announced since it was asked is newer than its answer."""
        self._book.polled(phy_id, state, at)
        announced_at = self._announced_at.get(phy_id)
        if announced_at is not None and at <= announced_at:
            return
        now, before = _codes(state), self._present.get(phy_id, frozenset())
        self._present[phy_id] = now
        for code in sorted(now - before):
            self._line(phy_id, FaultEvent(0, code, "occur", 0), at, "poll")
        for code in sorted(before - now):
            self._line(phy_id, FaultEvent(0, code, "recover", 0), at, "poll")

    def announced(self, event: FaultEvent, at: Moment) -> None:
        """A fault came or went."""
        phy_id = self._phy_ids.get(event.logic_id)
        if phy_id is None:
            return
        self._book.announced(event, at)
        self._announced_at[phy_id] = at
        known = self._present.get(phy_id, frozenset())
        if event.assertion != "once":
            if (event.code in known) == (event.assertion == "occur"):
                return  # polling was quicker, or the driver tells again what was there at the scan
            self._present[phy_id] = known ^ {event.code}
        self._line(phy_id, event, at, "event")

    def _line(self, phy_id: int, event: FaultEvent, at: Moment, source: str) -> None:
        verdict: Verdict = self._book.assess(0, present_moment()).chips[phy_id]
        self._tell(
            EventEntry(
                time=datetime.fromtimestamp(at.wall_ms / 1000, UTC).isoformat(timespec="milliseconds"),
                name=chip_name(phy_id),
                code=self._spell(event.code),
                assertion=event.assertion,
                severity=event.severity if source == "event" else None,
                source=source,
                level=max(verdict.level, verdict.network_level).wire,
                health=health(verdict.healthy),
                network_health=health(verdict.network_healthy),
            )
        )


def _codes(state: ChipState) -> frozenset[int]:
    return frozenset(state.codes or ()) | ({CARD_DROP} if state.dropped else frozenset())
