"""The driver of real chips: what they are, how they are, and what befalls them, by Huawei's library."""

import itertools
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog

from ascend.annotations import UNKNOWN
from ascend.errors import DriverError
from device_plugin.driver import Assertion, ChipFacts, ChipState, FaultEvent, Inventory
from device_plugin.driver.dcmi.calls import Calls, Observe, Place, event_of
from device_plugin.driver.dcmi.errors import NOT_READY, DcmiError
from device_plugin.driver.dcmi.library import load
from device_plugin.driver.dcmi.link import LinkTool
from device_plugin.driver.dcmi.structures import EventHandler
from device_plugin.driver.dcmi.survey import SYSFS, Facts, Surveyed, survey_card

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_TRIES = 3
_FAULT = 0
_ASSERTIONS: dict[int, Assertion] = {0: "recover", 1: "occur", 2: "once"}

_HANDLERS: list[Any] = []
"""The library may call a handler until the process ends, so none is ever let go."""


class DcmiDriver:
    """The chips of this server, by ``libdcmi.so``.

    ``discover`` comes first: it finds and loads the library. A call may hang in the kernel; it then holds up only
    its own thread, and a card that hangs while chips are discovered only itself.

    Args:
        library: the library; None to look for it as the loader would (spec/node-agent.md §3.1).
        observe: told the name and the seconds of every call of the library, from the thread that made it.
        links: asks for the state of network ports.
        sysfs: where sysfs is mounted.
        card_deadline_s: how long a card may take to tell of its chips; after that, what it told before is believed.
        pause: waits between tries to subscribe.
    """

    def __init__(
        self,
        library: Path | None = None,
        *,
        observe: Observe = lambda _call, _seconds: None,
        links: LinkTool | None = None,
        sysfs: Path = SYSFS,
        card_deadline_s: float = 5.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = library
        self._observe = observe
        self._links = links if links is not None else LinkTool()
        self._sysfs = sysfs
        self._card_deadline_s = card_deadline_s
        self._pause = pause
        self._opening = threading.Lock()
        self._calls: Calls | None = None
        self._ready = False
        self._facts = Facts()
        self._surveys: dict[int, threading.Thread] = {}
        self._surveyed: dict[int, tuple[Surveyed, ...]] = {}
        self._problems: dict[int, str] = {}

    def discover(self) -> Inventory:
        """What chips there are.

        A card that does not answer contributes what it last told, and nothing if it never did.

        Raises:
            DriverError: the library can't be used, or no chip of the 910 family answers; says why. Worth trying again:
                the next call begins at the beginning.
        """
        calls = self._open()
        try:
            return self._inventory(calls, calls.cards())
        except DriverError:
            self._ready = False
            raise

    def read(self, chip: ChipFacts) -> ChipState:
        """How one chip is now.

        Raises:
            DriverError: the driver does not tell; says why.
        """
        if self._calls is None:
            raise DriverError("chips are read before they are discovered")
        calls, place = self._calls, (chip.card_id, chip.device_id)
        try:
            silent = self._silent(calls, place)
            codes = self._codes(calls, place, silent=silent)
        except DcmiError as error:
            if error.code == NOT_READY:
                return ChipState(dropped=True)
            raise
        return ChipState(codes=codes, link_up=self._links.up(chip.phy_id))

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce the faults of every chip from now on, from threads of the library.

        Raises:
            DriverError: the driver announces none, or refuses to.
        """
        calls = self._open()
        handler = EventHandler(_relay(on_event))
        _HANDLERS.append(handler)  # before it is given away: a call that fails may have kept it
        for attempt in itertools.count(1):
            try:
                calls.subscribe(handler)
                return
            except DcmiError as error:
                if error.permanent or attempt == _TRIES:
                    raise
            self._pause(1.0)

    def _open(self) -> Calls:
        with self._opening:  # what hangs in here has no chip yet
            if self._calls is None:
                self._calls = Calls(load(self._path), self._observe)
            if not self._ready:
                self._calls.init()
                self._ready = True
            return self._calls

    def _inventory(self, calls: Calls, cards: list[int]) -> Inventory:
        version = self._facts.get("driver version", calls.version, "")
        self._survey(calls, cards)
        chips: dict[int, Surveyed] = {}
        for surveyed in itertools.chain.from_iterable(self._surveyed.get(card, ()) for card in cards):
            facts = surveyed.facts
            if (other := chips.setdefault(facts.phy_id, surveyed)) is not surveyed:
                log.error(
                    "two chips with one physical id", phy_id=facts.phy_id, card=facts.card_id, kept=other.facts.card_id
                )
        found = [chips[phy_id] for phy_id in sorted(chips)]
        kinds = [each.kind for each in found if each.kind is not None]
        if not kinds:
            raise DriverError(self._why_none(cards, found))
        if len(set(kinds)) > 1:
            log.error("chips of several kinds; the first counts", kinds=sorted(set(kinds)))
        super_pod = next((each.super_pod for each in found if each.super_pod is not None), None)
        return Inventory(
            chip_type=kinds[0],
            chips=tuple(each.facts for each in found),
            driver_version=version,
            ai_cores=next((each.ai_cores for each in found if each.ai_cores), 0),
            board_id=next((each.board_id for each in found if each.board_id), 0),
            super_pod_id=super_pod.super_pod_id if super_pod is not None else UNKNOWN,
            server_index=super_pod.server_index if super_pod is not None else UNKNOWN,
        )

    def _survey(self, calls: Calls, cards: list[int]) -> None:
        """Ask all cards at once. One that hangs keeps its thread, and no second one is started beside it."""

        def survey(card: int) -> None:
            known = self._surveyed.get(card, ())
            try:
                self._surveyed[card], problem = survey_card(calls, self._facts, card, known, self._sysfs)
            except DriverError as error:
                problem = error.message
            self._complain(card, problem)

        for card in cards:
            running = self._surveys.get(card)
            if running is None or not running.is_alive():
                self._surveys[card] = threading.Thread(target=survey, args=(card,), name=f"card {card}", daemon=True)
                self._surveys[card].start()
        deadline_s = time.monotonic() + self._card_deadline_s
        for card in cards:
            self._surveys[card].join(max(0.0, deadline_s - time.monotonic()))
            if self._surveys[card].is_alive():
                self._complain(card, f"card {card} has not answered for {self._card_deadline_s} s")

    def _complain(self, card: int, problem: str) -> None:
        before = self._problems.get(card, "")
        self._problems[card] = problem
        if problem and problem != before:
            log.error("a card does not tell of its chips", card=card, error=problem)

    def _why_none(self, cards: list[int], found: list[Surveyed]) -> str:
        if not cards:
            return "the driver lists no card"
        if found:
            names = sorted({f"{each.facts.chip_name!r} on board {each.board_id:#x}" for each in found})
            return f"no chip of the 910 family: {', '.join(names)}"
        return "no card tells of its chips: " + "; ".join(sorted({*self._problems.values()} - {""}))

    def _silent(self, calls: Calls, place: Place) -> bool:
        """Whether the call that shows a card drop tells nothing.

        Raises:
            DcmiError: the chip has dropped off.
        """
        try:
            calls.health(place)
        except DcmiError as error:
            if error.code == NOT_READY:
                raise
            return True
        return False

    def _codes(self, calls: Calls, place: Place, *, silent: bool) -> tuple[int, ...] | None:
        try:
            return calls.fault_codes(place)
        except DcmiError as error:
            if error.permanent and not silent:
                return None  # this driver tells faults by events only, and the chip does answer
            raise


def _relay(on_event: Callable[[FaultEvent], None]) -> Callable[[Any], None]:
    """What the library calls: a handler of its events that hands ours on, and lets no error into C."""

    def relay(pointer: Any) -> None:
        try:
            event = event_of(pointer)
            if event is None or event.type != _FAULT:
                return
            fault = event.dms_event
            assertion = _ASSERTIONS.get(fault.assertion)
            if assertion is None:
                log.warning("event of unknown meaning", code=f"{fault.event_id:X}", assertion=fault.assertion)
                return
            on_event(FaultEvent(fault.deviceid, fault.event_id, assertion, fault.severity))
        except Exception:
            log.exception("event lost")

    return relay
