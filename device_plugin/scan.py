"""Reads the driver again and again, off the event loop, and tells what it found.

Every chip has a thread of its own: a call that hangs keeps its thread, no second one is started beside it, and the
other chips are read on. The chip's state then grows old, until it counts as unhealthy: unknown is not healthy. Events
of the driver come in between; polling is the net underneath, which also catches an event that was lost. As long as all
is calm the net has wider meshes: a chip without a fault is only glanced at, by one call every few seconds.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable

import structlog

from ascend.chips import ChipSet, chip_name
from ascend.errors import AscendError, DriverError
from ascend.kube.backoff import Backoff
from device_plugin.driver import ChipState, Driver, FaultEvent, Inventory
from device_plugin.reader import Listener, Reader
from device_plugin.rules.levels import RESET_FINISHED
from device_plugin.rules.verdict import Moment
from device_plugin.state.calm import Calm
from device_plugin.threads import CallThread

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def present_moment() -> Moment:
    """Now, by both clocks."""
    return Moment(time.monotonic(), time.time_ns() // 1_000_000)


CONFIRM_S = 0.3
"""How long after a fault was announced to be over its chip is read, before its hold has passed: another fault of the
same code may be there still (spec/node-agent.md §4.5). The driver is given a moment to agree with itself."""

LATE_S = 2.0
"""How much later than its reading a fault may be announced without the event counting as lost."""

CALM_DISCOVERIES = 5
"""So many times as seldom is it looked what chips there are while all is calm."""


class Scanner:
    """Keeps a listener informed of all chips.

    Args:
        driver: what to read.
        listener: who is told.
        period_s: time between polls of a chip.
        calm_s: time between glances at a chip while all is calm.
        discover_s: time between looks at what chips there are, unless all is calm.
        deadline_s: how long a call may take before it counts as late.
        recovering: the chips that are watched until they count as healthy again; they are never only glanced at.
        moment: the clocks.
    """

    def __init__(
        self,
        driver: Driver,
        listener: Listener,
        *,
        period_s: float = 1.0,
        calm_s: float = 4.0,
        discover_s: float = 60.0,
        deadline_s: float = 2.0,
        recovering: Callable[[], ChipSet] = lambda: 0,
        moment: Callable[[], Moment] = present_moment,
    ) -> None:
        self._driver = driver
        self._listener = listener
        self.period_s = period_s
        self.calm_s = calm_s
        self._discover_s = discover_s
        self._deadline_s = deadline_s
        self._recovering = recovering
        self._moment = moment
        self._thread = CallThread("driver")
        # Apart, so that a driver that is slow to take a subscriber holds up neither readings nor discoveries.
        self._subscribing = CallThread("subscription")
        self._readers: dict[int, Reader] = {}
        self._gone: dict[int, Reader] = {}  # of chips that were there once; one that owes an answer keeps its thread
        self._calm = Calm()
        self._turn = 0
        self._discovering: asyncio.Future[Inventory] | None = None
        self._server: Inventory | None = None
        self.problem: str | None = "the driver has not been read yet"
        """Why nothing is known of the chips; None as long as at least one can be read."""
        self.turned_s = 0.0
        """When the loop came round last, by the event loop's clock: it does so whatever the driver does."""

    async def run(self, begin: asyncio.Event | None = None) -> None:
        """Scan until cancelled.

        Args:
            begin: chips are read, and faults heard of, once it is set; without it, as soon as they are found.
        """
        subscription: asyncio.Task[None] | None = None
        try:
            await self._find_chips()
            while begin is not None and not begin.is_set():
                self.turned_s = asyncio.get_running_loop().time()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.period_s):
                        await begin.wait()
            subscription = asyncio.create_task(self._subscribe())
            loop = asyncio.get_running_loop()
            discovered_s = loop.time()
            while True:
                self.turned_s = loop.time()
                self._poll()
                if loop.time() >= discovered_s + self._discovery_s() and self._discovering is None:
                    discovered_s = loop.time()
                    self._discover().add_done_callback(self._rediscovered)
                await asyncio.sleep(self.period_s)
        finally:
            if subscription is not None:
                subscription.cancel()
            for reader in (*self._readers.values(), *self._gone.values()):
                reader.close()
            self._readers.clear()
            self._thread.close()
            self._subscribing.close()

    async def _find_chips(self) -> None:
        backoff = Backoff(first_s=0.2, limit_s=5.0)
        while True:
            self.turned_s = asyncio.get_running_loop().time()
            call = self._discovering or self._discover()
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                self._note(f"the driver does not answer within {self._deadline_s:g} s")
                continue
            try:
                self._take(call.result())
            except DriverError as error:
                self._discovering = None
                self._note(error.message)
                await asyncio.sleep(backoff.next_s())
            else:
                self._discovering = None
                return

    async def _subscribe(self) -> None:
        loop = asyncio.get_running_loop()

        def hear(event: FaultEvent) -> None:
            at = self._moment()
            try:
                loop.call_soon_threadsafe(self._announced, event, at)
            except RuntimeError:
                return  # the loop has ended meanwhile; nobody listens any more

        call = self._subscribing.call(lambda: self._driver.subscribe(hear))
        try:
            done, _ = await asyncio.wait((call,), timeout=self._deadline_s)
            if not done:
                log.warning("the driver does not answer who wants to hear of faults, polling alone meanwhile")
            await call
        except AscendError as error:
            log.info("the driver announces no faults, polling alone", poll_s=self.period_s, error=str(error))
        else:
            self._calm.announced = True
            log.info("the driver announces faults", poll_s=self.period_s, calm_poll_s=self.calm_s)
        finally:
            call.cancel()

    def _announced(self, event: FaultEvent, at: Moment) -> None:
        self._calm.stir(self._moment().mono_s)
        for reader in self._of(event.logic_id):
            reader.hear(event, at)
        self._listener.announced(event, at)
        if event.code == RESET_FINISHED:
            self._look_at(event.logic_id)  # nobody announces the end of what it had before
        if event.assertion == "recover":
            asyncio.get_running_loop().call_later(CONFIRM_S, self._look_at, event.logic_id)

    def _of(self, logic_id: int) -> list[Reader]:
        return [reader for reader in self._readers.values() if reader.chip.logic_id == logic_id]

    def _look_at(self, logic_id: int) -> None:
        for reader in self._of(logic_id):
            reader.poll(self._listener, self._moment(), self._deadline_s)

    def _changed(self, reader: Reader, before: tuple[ChipState, Moment] | None, state: ChipState) -> None:
        """A chip is otherwise than it was; a fault that came should be announced about now."""
        self._calm.stir(self._moment().mono_s)
        if before is None or before[0].dropped or not self._calm.announced:
            return
        if codes := set(state.codes or ()) - set(before[0].codes or ()):
            since_s = before[1].mono_s - LATE_S
            asyncio.get_running_loop().call_later(LATE_S, self._expect, reader, codes, since_s)

    def _expect(self, reader: Reader, codes: set[int], since_s: float) -> None:
        missed = sorted(code for code in codes if reader.heard_s.get(code, since_s - 1.0) < since_s)
        if missed:
            self._calm.miss(self._moment().mono_s)
            log.warning(
                "the driver did not announce a fault; chips are read often for an hour",
                chip=chip_name(reader.chip.phy_id),
                codes=[f"{code:08X}" for code in missed],
            )

    def _discovery_s(self) -> float:
        complete = self._server is not None and self._server.complete and not self._gone
        quiet = all(reader.problem is None for reader in self._readers.values())
        calm = complete and quiet and self._calm.holds(self._moment().mono_s)
        return self._discover_s * (CALM_DISCOVERIES if calm else 1)

    def _discover(self) -> "asyncio.Future[Inventory]":
        self._discovering = self._thread.call(self._driver.discover)
        return self._discovering

    def _rediscovered(self, call: "asyncio.Future[Inventory]") -> None:
        self._discovering = None
        if call.cancelled():
            return
        error = call.exception()
        if error is None:
            self._take(call.result())
        else:
            log.warning("the chips can't be listed", error=str(error))

    def _take(self, server: Inventory) -> None:
        """Follow what was discovered; a chip that is gone is read no more and grows old."""
        if server != self._server:
            log.info("discovered", product=server.chip_type, chips=len(server.chips), driver=server.driver_version)
            self._server = server
            self._calm.stir(self._moment().mono_s)
        found = {chip.phy_id: chip for chip in server.chips}
        for phy_id in self._readers.keys() - found.keys():
            log.warning("a chip is no longer there", chip=chip_name(phy_id))
            self._gone[phy_id] = self._readers.pop(phy_id)
        for phy_id, chip in found.items():
            if phy_id in self._readers:
                self._readers[phy_id].chip = chip
            elif (back := self._gone.pop(phy_id, None)) is not None:
                back.begin_anew(chip)
                self._readers[phy_id] = back
            else:
                self._readers[phy_id] = Reader(self._driver, chip, self._changed)
        self._listener.discovered(server, self._moment())

    def _poll(self) -> None:
        at = self._moment()
        calm, recovering = self._calm.holds(at.mono_s), self._recovering()
        # Chips have their turns one after the other, so that one trouble of all is seen by the first of them.
        self._turn += 1
        turns = max(1, int(self.calm_s / self.period_s))
        for number, (phy_id, reader) in enumerate(self._readers.items()):
            glance = calm and reader.is_quiet and not recovering >> phy_id & 1
            if not glance or (self._turn + number) % turns == 0:
                reader.poll(self._listener, at, self._deadline_s, glance=glance)
        problems = [reader.problem for reader in self._readers.values()]
        self._note(problems[0] if problems and None not in problems else None)

    def _note(self, problem: str | None) -> None:
        if problem != self.problem and problem not in {None, "not read yet"}:
            log.warning("the driver can't be read", error=problem)
        self.problem = problem
