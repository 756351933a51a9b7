"""Polls the driver off the event loop and reports to a listener.

Each chip has a thread of its own: a call that hangs occupies that thread only, no second call is started for its chip,
and the other chips are still read. The state of the hanging chip ages until the chip counts as unhealthy, because an
unknown state is not healthy. The driver's fault events arrive in between; polling also finds a fault whose event was
lost.

The driver lists only the cards that were ready when it was initialized. While it lacks one, it is initialized again:
for as long as the reference waits for cards at its start, the waiting times double up to a minute; later they are long,
because readings pause while the driver is initialized (docs/spec/dcmi.md#start).

A reset makes a chip drop off the bus, and some drivers announce faults meanwhile. If these were counted, the rules
would separate the chip because it was reset, so nothing of a muted chip is passed on but the end of a fault, which
nothing else may announce.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Hashable

import structlog

from ascend.chips import ChipSet, chip_ids, chip_name, chip_set, join_names
from ascend.errors import DriverError
from ascend.rate_limiters import Backoff
from device_plugin.chips.call_thread import CallThread
from device_plugin.chips.chip_reader import NOT_READ, ChipReader, Listener
from device_plugin.chips.subscription import Subscription
from device_plugin.driver import ChipState, Driver, FaultEvent, Inventory
from device_plugin.health.levels import RESET_FINISHED
from device_plugin.health.moment import Moment, present_moment

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

DISCOVER_S = 60.0
"""Seconds between two discoveries: so long it takes until a chip that was cut into vNPUs is seen to be."""

SOON_S = 10.0
"""Seconds between two discoveries while a card can't be read."""

LIMIT_S = 600.0
"""The reference's ``deviceResetTimeout``: how long it waits for all cards."""

RENEW_FIRST_S, RENEW_LIMIT_S, RENEW_SLOW_S = 1.0, 60.0, 600.0
"""The first wait before another initialization, the longest one within ``LIMIT_S``, and those after it."""

CONFIRM_S = 0.3
"""Seconds after a recover event until its chip is read, before its hold has passed: another fault with the same code
may still be present (docs/spec/faults.md#fault-events). The delay lets the driver's error list catch up with its
event."""


class Scanner:
    """Keeps a listener informed about all chips.

    Args:
        driver: the driver to read.
        listener: receives chips, states and events.
        period_s: seconds between two readings of a chip.
        known: returns the chips that are known from before, and that the driver should list.
        discover_s: seconds between two discoveries of the chips; by default ``DISCOVER_S``.
        deadline_s: seconds after which a call counts as late.
        moment: returns the present time.
    """

    def __init__(
        self,
        driver: Driver,
        listener: Listener,
        *,
        known: Callable[[], ChipSet] = lambda: 0,
        period_s: float = 1.0,
        discover_s: float | None = None,
        deadline_s: float = 2.0,
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._driver = driver
        self._listener = listener
        self._known = known
        self.period_s = period_s
        self._discover_s = DISCOVER_S if discover_s is None else discover_s
        self._deadline_s = deadline_s
        self._moment = moment
        self._thread = CallThread("driver")
        self._subscription = Subscription(driver, deadline_s, moment)
        self._readers: dict[int, ChipReader] = {}
        self._gone: dict[int, ChipReader] = {}  # of chips no longer listed: one whose call hangs keeps its thread
        self._discovering: asyncio.Future[Inventory] | None = None
        self._server: Inventory | None = None
        self._renewals = Backoff(RENEW_FIRST_S, RENEW_LIMIT_S)
        self._discover_at_s = self._renew_at_s = 0.0
        self._lacking: tuple[Hashable, float] = (None, 0.0)  # what the next initialization is for, and since when
        self._read_s: dict[int, float] = {}  # when the last reading of a chip that was passed on began
        self.problem: str | None = "the driver has not been read yet"
        """Why no chip can be read; None while at least one can."""
        self.muted: ChipSet = 0
        """Chips that are being reset: they are not read, and what they say meanwhile is not passed on."""
        self.keeps_table = False
        """Whether the driver must not be initialized again: a card that is being reset would not be listed."""
        self.turned_s = 0.0
        """When the loop last turned, on the event loop's clock; it turns even while the driver hangs."""

    async def run(self, begin: asyncio.Event | None = None) -> None:
        """Scan until cancelled.

        Args:
            begin: set once chips may be read and events subscribed to; None to do so as soon as chips are found.
        """
        loop = asyncio.get_running_loop()
        subscription: asyncio.Task[None] | None = None
        try:
            await self._find_chips()
            while begin is not None and not begin.is_set():
                self.turned_s = loop.time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.period_s):
                        await begin.wait()
            if self._server is not None:
                self._plan_discovery(self._server)  # by now it is known which chips there were before
            subscription = asyncio.create_task(self._subscription.run(self._on_event))
            while True:
                self.turned_s = now_s = loop.time()
                if self._subscription.limit.take_lost():
                    self._listener.events_lost()
                self._poll()
                if now_s >= min(self._discover_at_s, self._renew_at_s) and self._discovering is None:
                    anew = now_s >= self._renew_at_s and not self.keeps_table
                    self._discover(anew=anew).add_done_callback(self._on_rediscovery)
                await asyncio.sleep(self.period_s)
        finally:
            if subscription is not None:
                subscription.cancel()
            for reader in (*self._readers.values(), *self._gone.values()):
                reader.close()
            self._readers.clear()
            self._thread.close()
            self._subscription.close()

    async def _find_chips(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(first_s=0.2, limit_s=5.0)
        started_s, anew = loop.time(), False
        while True:
            self.turned_s = loop.time()
            call = self._discovering or self._discover(anew=anew)
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                self._note(f"the driver does not answer within {self._deadline_s:g} s")
                continue
            self._discovering = None
            try:
                server = call.result()
            except DriverError as error:
                self._note(error.message)
            else:
                # With fewer chips than it has, the server would be taken for another product.
                known = self._known() & ~chip_set(chip.phy_id for chip in server.chips)
                if server.unidentified <= known.bit_count() or loop.time() >= started_s + LIMIT_S:
                    self._take(server)
                    return
                self._note("; ".join(server.problems))
                anew = True
            await asyncio.sleep(backoff.next_s())

    def _on_event(self, event: FaultEvent, at: Moment) -> None:
        chips = (reader.chip for reader in self._by_logic_id(event.logic_id))
        is_muted = any(chip.is_listed and self.muted >> chip.phy_id & 1 for chip in chips)
        if event.assertion == "recover" or not is_muted:
            self._listener.on_event(event, at)
        if event.code == RESET_FINISHED:
            self._read(event.logic_id)  # no event announces the end of the faults from before the reset
        if event.assertion == "recover":
            asyncio.get_running_loop().call_later(CONFIRM_S, self._read, event.logic_id)

    def _on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        if not self.muted >> phy_id & 1:
            self._read_s[phy_id] = at.mono_s
            self._listener.on_reading(phy_id, state, at)

    def read_since(self, since_s: float) -> ChipSet:
        """Return the chips whose last reading that was passed on began at this time or later."""
        return chip_set(phy_id for phy_id, read_s in self._read_s.items() if read_s >= since_s)

    def state(self, phy_id: int) -> ChipState | None:
        """Return the state of a chip as last read; None while it can't be read."""
        reader = self._readers.get(phy_id)
        return reader.state if reader is not None and reader.problem is None else None

    def _by_logic_id(self, logic_id: int) -> list[ChipReader]:
        return [reader for reader in self._readers.values() if reader.chip.logic_id == logic_id]

    def _read(self, logic_id: int) -> None:
        for reader in self._by_logic_id(logic_id):
            reader.poll(self._on_reading, self._moment(), self._deadline_s)

    def _discover(self, *, anew: bool) -> "asyncio.Future[Inventory]":
        self._discovering = self._thread.call(lambda: self._driver.discover(anew=anew))
        return self._discovering

    def _on_rediscovery(self, call: "asyncio.Future[Inventory]") -> None:
        self._discovering = None
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self._take(call.result())
        else:
            log.warning("the chips can't be listed", error=str(error))
            # An initialization that failed leaves no card that could be read, so the next one comes soon.
            now_s = asyncio.get_running_loop().time()
            self._discover_at_s = now_s + self._discover_s
            self._plan_renewal(now_s, str(error))

    def _take(self, server: Inventory) -> None:
        """Follow a discovery; a chip that is no longer listed is no longer read, so its state ages."""
        if server != self._server:
            log.info("discovered", product=server.chip_type, chip_count=len(server.chips), driver=server.driver_version)
            self._server = server
        self._plan_discovery(server)
        found = {chip.phy_id: chip for chip in server.chips}
        for phy_id in self._readers.keys() - found.keys():
            log.warning("a chip is no longer listed", chip=chip_name(phy_id))
            self._gone[phy_id] = self._readers.pop(phy_id)
        for phy_id, chip in found.items():
            if phy_id in self._readers:
                self._readers[phy_id].chip = chip
            elif (back := self._gone.pop(phy_id, None)) is not None:
                # Listed again: it starts over, but a call that has not returned is still waited for.
                back.chip, back.problem = chip, NOT_READ
                self._readers[phy_id] = back
            else:
                self._readers[phy_id] = ChipReader(self._driver, chip)
        self._listener.on_discovery(server, self._moment())

    async def initialize(self) -> None:
        """Initialize the driver again, and take over what it lists.

        Raises:
            DriverError: it can't be initialized.
        """
        while self._discovering is not None:
            await asyncio.wait((self._discovering,))
        call = self._discover(anew=True)
        call.add_done_callback(self._on_rediscovery)
        await asyncio.wait((call,))
        call.result()

    def _plan_discovery(self, server: Inventory) -> None:
        now_s = asyncio.get_running_loop().time()
        # A card that could not be read may answer soon.
        self._discover_at_s = now_s + (self._discover_s if server.is_complete else min(self._discover_s, SOON_S))
        lacking = self._known() & ~chip_set(chip.phy_id for chip in server.chips)
        if not (lacking or server.not_ready):
            self._lacking, self._renew_at_s = (None, 0.0), math.inf
            return
        is_new = self._lacking[0] != (lacking, server.not_ready)
        if self._plan_renewal(now_s, (lacking, server.not_ready)):
            (log.warning if is_new else log.debug)(
                "the driver does not list all cards, it will be initialized again",
                not_ready=server.not_ready,
                missing=join_names(chip_ids(lacking)),
                after_s=round(self._renew_at_s - now_s, 1),
            )

    def _plan_renewal(self, now_s: float, lacking: Hashable) -> bool:
        """Plan the next initialization; return whether none was planned yet."""
        if now_s < self._renew_at_s < math.inf:
            return False
        if lacking != self._lacking[0]:
            self._lacking = lacking, now_s
            self._renewals.reset()
        is_soon = now_s < self._lacking[1] + LIMIT_S
        self._renew_at_s = now_s + (self._renewals.next_s() if is_soon else RENEW_SLOW_S)
        return True

    def _poll(self) -> None:
        at = self._moment()
        readers = [reader for phy_id, reader in self._readers.items() if not self.muted >> phy_id & 1]
        for reader in readers:
            reader.poll(self._on_reading, at, self._deadline_s)
        problems = [reader.problem for reader in readers]
        self._note(problems[0] if problems and None not in problems else None)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem and problem not in {None, NOT_READ}:
            log.warning("the driver can't be read", error=problem)
        self.problem = problem
