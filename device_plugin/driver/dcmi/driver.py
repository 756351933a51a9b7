"""The driver of real chips: discovery, readings and fault events, through Huawei's library."""

import ctypes
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from ascend.errors import DriverError
from device_plugin.driver import (
    LINK_DOWN,
    ChipFacts,
    ChipState,
    Division,
    FaultEvent,
    Inventory,
    VirtualNpu,
)
from device_plugin.driver.dcmi.calls import FATAL, NOT_EXISTING, STARTED, Calls, Observe, Place
from device_plugin.driver.dcmi.discovery import Discovery
from device_plugin.driver.dcmi.dividing_calls import DividingCalls
from device_plugin.driver.dcmi.errors import NOT_READY, DcmiError
from device_plugin.driver.dcmi.events import make_handler
from device_plugin.driver.dcmi.library import load
from device_plugin.driver.dcmi.port_tool import LinkTool, PortCounters
from device_plugin.driver.dcmi.survey import SYSFS
from device_plugin.driver.telemetry import Label, Quantity, Reading, Values

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

_ATTEMPTS = 3
_CODE_FAILURES = 30

DiePolicy: TypeAlias = Literal["union", "independent"]
_DIE_POLICIES: dict[DiePolicy, int] = {"union": 0, "independent": 1}


class DcmiDriver:
    """The chips of this server, through ``libdcmi.so``.

    ``discover`` must be called first: it finds and loads the library. A call may hang in the kernel; it then blocks
    only its own thread, and during discovery only its card.

    Args:
        library: the library; None to search it as the loader would (docs/spec/dcmi.md#library).
        observe: called with the name and the duration in seconds of every library call, in the thread that made it.
        links: reads the link state of network ports.
        counters: reads their counters.
        sysfs: where sysfs is mounted.
        die_policy: whether containers get the dies of an A3 card together; None to leave it as it is.
        card_deadline_s: how long the discovery waits for a card; after that, its last answer is used.
        pause: waits between attempts to subscribe.
        bind: gives the loaded library's functions Python's values.
    """

    def __init__(
        self,
        library: Path | None = None,
        *,
        observe: Observe = lambda _call, _seconds: None,
        links: LinkTool | None = None,
        counters: PortCounters | None = None,
        sysfs: Path = SYSFS,
        die_policy: DiePolicy | None = None,
        card_deadline_s: float = 5.0,
        pause: Callable[[float], None] = time.sleep,
        bind: Callable[[ctypes.CDLL, Observe], DividingCalls] = DividingCalls,
    ) -> None:
        self._bind = bind
        self._path = library
        self._observe = observe
        self._links = links if links is not None else LinkTool()
        self._counters = counters if counters is not None else PortCounters()
        self._pause = pause
        self._die_policy = die_policy  # None once it is set
        self._opening = threading.Lock()
        self._calls: DividingCalls | None = None
        self._ready = False
        self._discovery = Discovery(sysfs, card_deadline_s)
        self._codes_reported = False  # by any chip, since the start
        self._code_failures: Counter[Place] = Counter()

    def discover(self, *, anew: bool = False) -> Inventory:
        """Return the chips of this server.

        For a card that does not answer, the result has its last answer, or only the ids if it never answered.

        Args:
            anew: whether to initialize the library again first.

        Raises:
            DriverError: the library can't be used, or no chip of the 910 family answers; says why. The next call starts
                over.
        """
        calls = self._open(anew=anew)
        try:
            return self._discovery.inventory(calls)
        except DriverError:
            self._ready = False
            raise

    def read(self, chip: ChipFacts) -> ChipState:
        """Return the state of a chip.

        Raises:
            DriverError: the chip can't be read; says why.
        """
        if self._discovery.is_gone(chip):
            return ChipState(dropped=True)
        calls, place = self._load_chip(chip), (chip.card_id, chip.device_id)
        health = self._health(calls, place)
        if health == NOT_EXISTING:
            return ChipState(dropped=True)
        if health is not None and health > FATAL:
            raise DriverError(f"the driver rates its health as {health}, and its interface has 0 to {FATAL} only")
        codes = self._codes(calls, place, silent=health is None)
        link_up, link_s = self._links.answer(chip.phy_id)
        return ChipState(codes=codes, link_up=link_up, link_s=link_s, fatal=health == FATAL)

    def measure(self, chip: ChipFacts, reading: Reading) -> Values:
        """Return the values of a reading; see ``MeasuringDriver``."""
        if reading is Reading.LINK_UPS:
            return {Quantity.LINK_UPS: float(self._counters.link_ups(chip.phy_id))}
        return self._load_chip(chip).measure((chip.card_id, chip.device_id), reading)

    def describe(self, chip: ChipFacts, label: Label) -> str:
        """Return what identifies a chip; see ``MeasuringDriver``."""
        return self._load_chip(chip).describe((chip.card_id, chip.device_id), label)

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        """Announce the fault events of all chips from now on, from threads of the library; see ``Driver``."""
        calls = self._open()
        handler = make_handler(lambda event: on_event(self._refresh_link(event)))
        for attempt in itertools.count(1):
            try:
                calls.subscribe(handler)
                return
            except DcmiError as error:
                if error.permanent or attempt == _ATTEMPTS:
                    raise
            self._pause(1.0)

    def partner_cards(self, server: Inventory) -> dict[int, int | None]:
        """Return which cards are reset together; a card whose partner can't be read is left out."""
        partners: dict[int, int | None] = {}
        for chip in server.chips if server.chip_type == "Ascend910A3" else ():
            if chip.is_listed and chip.card_id not in partners:
                try:
                    partner = self._load_chip(chip).brother_card((chip.card_id, chip.device_id))
                except DcmiError as error:
                    log.warning("the card that is reset with another is unknown", error=error.message)
                else:
                    partners[chip.card_id] = partner if partner >= 0 else None
        return partners

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        """Return the ids of the processes that use a chip; see ``ResettingDriver``."""
        return self._load_chip(chip).processes((chip.card_id, chip.device_id))

    def reset(self, chip: ChipFacts) -> None:
        """Reset a chip and the chips of its reset group; see ``ResettingDriver``."""
        self._load_chip(chip).reset((chip.card_id, chip.device_id))

    def has_started(self, chip: ChipFacts) -> bool:
        """Return whether a chip has started; one whose boot status can't be read has if it answers."""
        calls, place = self._load_chip(chip), (chip.card_id, chip.device_id)
        try:
            return calls.boot_status(place) == STARTED
        except DcmiError:
            return self._health(calls, place) not in {None, NOT_EXISTING}

    def division(self, chip: ChipFacts) -> Division:
        """Return how a chip is cut; see ``DividingDriver``."""
        return self._load_chip(chip).division((chip.card_id, chip.device_id), chip.phy_id)

    def create_vnpu(self, chip: ChipFacts, template: str) -> VirtualNpu:
        """Cut a vNPU out of a chip; see ``DividingDriver``."""
        return self._load_chip(chip).create_vnpu((chip.card_id, chip.device_id), chip.phy_id, template)

    def destroy_vnpu(self, chip: ChipFacts, vdev_id: int) -> None:
        """Give the parts of a vNPU back to its chip; see ``DividingDriver``."""
        self._load_chip(chip).destroy_vnpu((chip.card_id, chip.device_id), vdev_id)

    def _load_chip(self, chip: ChipFacts) -> DividingCalls:
        if self._calls is None:
            raise DriverError("chips are used before they are discovered")
        if not chip.is_listed:
            raise DriverError("the driver does not list its card")
        return self._calls

    def _refresh_link(self, event: FaultEvent) -> FaultEvent:
        """Return the event, after having the link of its chip read if that is concerned."""
        if event.code == LINK_DOWN:
            for phy_id in self._discovery.with_logic_id(event.logic_id):
                self._links.suspect(phy_id)
        return event

    def _open(self, *, anew: bool = False) -> DividingCalls:
        with self._opening:
            if self._calls is None:
                self._calls = self._bind(load(self._path), self._observe)
            if anew or not self._ready:
                self._ready = False
                self._calls.init()
                self._ready = True
                self._discovery.initializations += 1
            self._set_die_policy(self._calls)
            return self._calls

    def _set_die_policy(self, calls: Calls) -> None:
        if self._die_policy is None:
            return
        try:
            calls.set_die_policy(_DIE_POLICIES[self._die_policy])
        except DcmiError as error:
            if error.permanent:
                self._die_policy = None  # not an A3 server
            else:
                log.warning("the policy of dies can't be set", policy=self._die_policy, error=error.message)
            return
        log.info("the policy of dies is set", policy=self._die_policy)
        self._die_policy = None
        calls.init()  # which cards count as ready depends on it

    def _health(self, calls: Calls, place: Place) -> int | None:
        """Return the driver's health value; None if the call fails for another reason than the chip."""
        try:
            return calls.health(place)
        except DcmiError as error:
            return NOT_EXISTING if error.code == NOT_READY else None

    def _codes(self, calls: Calls, place: Place, *, silent: bool) -> tuple[int, ...] | None:
        """Return the fault codes; None if this driver reports faults by events only, and the chip answers."""
        try:
            codes = calls.fault_codes(place)
        except DcmiError as error:
            if silent:
                raise
            # The library replaces most errors, "not supported" included, by one and the same. So a call counts as not
            # supported if it has never succeeded for any chip.
            self._code_failures[place] += 1
            if error.permanent or (not self._codes_reported and self._code_failures[place] >= _CODE_FAILURES):
                return None
            raise
        self._codes_reported = True
        return codes
