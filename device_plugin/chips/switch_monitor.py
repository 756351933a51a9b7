"""Reads the switches of an A3 server, whose faults are reported beside those of the chips.

The library announces faults, and lists the present ones. Nothing orders the two, so a list does not overrule an event
that is younger than ``SETTLE_S``, and is read again once the event is older.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import msgspec
import structlog

from ascend.daemon.observable import Observable, wait_for_change
from ascend.errors import DriverError
from ascend.fabric_switches import UNREADABLE_SWITCHES, SwitchFault, SwitchReport
from ascend.rate_limiters import Backoff
from device_plugin.chips.call_thread import CallThread
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.snapshot import Snapshot
from device_plugin.health.switch_faults import SwitchLevel, assess

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

CHIP_TYPE = "Ascend910A3"
"""Only these servers have switches that can be read."""

POLL_S = 60.0
UNANNOUNCED_POLL_S = 5.0
"""The same if the library announces no faults."""
SETTLE_S = 2.0
DEADLINE_S = 10.0
RETRY_LIMIT_S = 300.0

_RECOVERED = 0

_R = TypeVar("_R")

_Key = tuple[str, int, int, int, int]


class SwitchDriver(Protocol):
    """Reads the switches; all calls are made in one thread, except those of the subscription's receiver."""

    def open(self) -> None:
        """Make the switches readable.

        Raises:
            DriverError: they can't be read; its reason is ``LibraryNotFound`` if this server has no library for that.
        """

    def read(self) -> tuple[SwitchFault, ...]:
        """Return the present faults.

        Raises:
            DriverError: they can't be read.
        """

    def subscribe(self, on_event: Callable[[SwitchFault], None]) -> None:
        """Announce faults that occur or end from now on, from any thread.

        Raises:
            DriverError: this driver announces none, or refuses to.
        """


class SwitchMonitor:
    """Keeps the state of the switches current.

    Args:
        driver: the switches.
        snapshots: the node's chips; tell whether it has switches.
        announce: receives a reason, a sentence and whether it is a warning, when the node's status changes.
        poll_s: seconds between two lists.
        settle_s: seconds within which the list can still differ from an event.
        deadline_s: seconds after which a call without an answer is a problem.
    """

    def __init__(
        self,
        driver: SwitchDriver,
        snapshots: Observable[Snapshot | None],
        announce: Callable[[str, str, bool], None],
        *,
        poll_s: float = POLL_S,
        settle_s: float = SETTLE_S,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._driver = driver
        self._snapshots = snapshots
        self._announce = announce
        self._poll_s = poll_s
        self._settle_s = settle_s
        self._deadline_s = deadline_s
        self._problem: str | None = None
        self._thread = CallThread("switches")
        self._levels: Mapping[str, SwitchLevel] = default_rules().switches
        self._faults: dict[_Key, SwitchFault] | None = None
        self._announced_s: dict[_Key, float] = {}
        self._events: Observable[None] = Observable(None)
        self.report: Observable[SwitchReport | None] = Observable(None)
        """What to report; None while it is unknown whether there are switches, and what state they have."""

    def configure(self, levels: Mapping[str, SwitchLevel]) -> None:
        """Apply the site's levels."""
        self._levels = levels
        self._judge()

    async def run(self) -> None:
        """Read until cancelled."""
        try:
            await self._find()
            if await self._open():
                is_announced = await self._subscribe()
                await self._poll(self._poll_s if is_announced else min(self._poll_s, UNANNOUNCED_POLL_S))
            await asyncio.Event().wait()  # there is nothing to do for this server
        finally:
            self._thread.close()

    async def _find(self) -> None:
        version = 0
        while (snapshot := self._snapshots.value) is None or snapshot.server.chip_type != CHIP_TYPE:
            version = await self._snapshots.newer_than(version)

    async def _open(self) -> bool:
        """Make the switches readable; False if this server has no library for that."""
        backoff = Backoff(first_s=1.0, limit_s=RETRY_LIMIT_S)
        while True:
            try:
                await self._answer(self._driver.open)
            except DriverError as error:
                if error.reason == "LibraryNotFound":
                    self.report.set(UNREADABLE_SWITCHES)
                    log.info("faults of switches are not reported: this server has no library for them")
                    return False
                self._note(error.message)
                await asyncio.sleep(backoff.next_s())
            else:
                return True

    async def _subscribe(self) -> bool:
        loop = asyncio.get_running_loop()

        def deliver(event: SwitchFault) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._take, event)

        try:
            await self._answer(lambda: self._driver.subscribe(deliver))
        except DriverError as error:
            log.info("the switches announce no faults, polling only", poll_s=UNANNOUNCED_POLL_S, error=error.message)
            return False
        return True

    async def _poll(self, period_s: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started_s = loop.time()
            try:
                faults = await self._answer(self._driver.read)
            except DriverError as error:
                self._note(error.message)  # what was read before stays reported
            else:
                self._note(None)
                self._replace(faults, started_s)
            await self._wait(started_s, period_s)

    async def _answer(self, function: Callable[[], _R]) -> _R:
        """Call the driver; a call that hangs is noted, and waited for."""
        call = self._thread.call(function)
        done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
        if not done:
            self._note(f"no answer within {self._deadline_s:g} s")
        return await call

    async def _wait(self, started_s: float, period_s: float) -> None:
        """Wait until the next list is due: a period after the last one, or when the latest event has settled."""
        loop = asyncio.get_running_loop()
        while True:
            version = self._events.version
            settled_s = max((at_s + self._settle_s for at_s in self._announced_s.values()), default=math.inf)
            left_s = min(started_s + period_s, settled_s) - loop.time()
            if left_s <= 0 or not await wait_for_change((self._events,), (version,), within_s=left_s):
                return

    def _note(self, problem: str | None) -> None:
        if problem is not None and problem != self._problem:
            log.warning("the switches can't be read", error=problem)
            if self._faults is None:
                self.report.set(UNREADABLE_SWITCHES)
        self._problem = problem

    def _take(self, event: SwitchFault) -> None:
        key = _key(event)
        self._announced_s[key] = asyncio.get_running_loop().time()
        faults = self._faults if self._faults is not None else {}
        if (key in faults) == (event.assertion == _RECOVERED):
            log.info("an event about a switch", fault=msgspec.structs.asdict(event))
        if event.assertion == _RECOVERED:
            faults.pop(key, None)
        else:
            faults.setdefault(key, event)
        self._faults = faults
        self._judge()
        self._events.set(None)

    def _replace(self, faults: tuple[SwitchFault, ...], started_s: float) -> None:
        listed = {_key(fault): fault for fault in faults}
        known = self._faults or {}
        for key, at_s in tuple(self._announced_s.items()):
            if at_s + self._settle_s <= started_s:
                del self._announced_s[key]
            elif key in known:
                listed.setdefault(key, known[key])
            else:
                listed.pop(key, None)
        # The time of a fault stays the one first seen: some are listed without.
        self._faults = {key: known.get(key, fault) for key, fault in listed.items()}
        self._judge()

    def _judge(self) -> None:
        if self._faults is None:
            return
        before, after = self.report.value, assess(self._faults.values(), self._levels)
        if after == before:
            return
        was = (before.node_status if before is not None else "") or "Healthy"
        if after.node_status != was:
            codes = ", ".join(sorted({fault.assembled_fault_code for fault in after.faults})) or "none"
            self._announce(
                "NPUSwitchHealthChanged",
                f"by the faults of its switches the node is {after.node_status}, before it was {was}; faults: {codes}",
                after.node_status != "Healthy",
            )
        self.report.set(after)


def _key(fault: SwitchFault) -> _Key:
    return (
        fault.assembled_fault_code,
        fault.peer_port_device,
        fault.peer_port_id,
        fault.switch_chip_id,
        fault.switch_port_id,
    )
