"""The scanner with drivers that fail, hang and recover; driver calls run in real threads."""

import asyncio
import math
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from ascend.base_device_infos import ChipAddress
from ascend.chips import ChipSet
from ascend.errors import DriverError
from device_plugin.chips import scanner as scan_module
from device_plugin.chips import subscription
from device_plugin.chips.scanner import Scanner
from device_plugin.chips.subscription import EventLimit
from device_plugin.driver import Assertion, ChipFacts, ChipState, FaultEvent, Inventory
from device_plugin.health.moment import Moment
from tests.device_plugin.api import running, until
from tests.device_plugin.builders import server

FAULT = ChipState(codes=(0x80E18402,))
EVENT = FaultEvent(3, 0x80E18402, "occur", 2)


class ScriptedDriver:
    """A driver with the test's answers; a chip or the whole driver hangs on request."""

    def __init__(self) -> None:
        self.server: Inventory | Exception = server()
        self.states: dict[int, ChipState | Exception] = {}
        self.calls: list[int] = []
        self.initialized = 0
        self.subscribed: Callable[[FaultEvent], None] | None = None
        self.announces = True
        self.refused = 0
        self.takes_subscribers = threading.Event()
        self.takes_subscribers.set()
        self._free: dict[int | None, threading.Event] = {}

    def hang(self, chip_id: int | None = None) -> None:
        self._free[chip_id] = threading.Event()

    def answer(self, chip_id: int | None = None) -> None:
        self._free.pop(chip_id).set()

    def discover(self, *, anew: bool = False) -> Inventory:
        self.initialized += anew
        self._wait(None)
        if isinstance(self.server, Exception):
            raise self.server
        return self.server

    def read(self, chip: ChipFacts) -> ChipState:
        self.calls.append(chip.phy_id)
        self._wait(chip.phy_id)
        state = self.states.get(chip.phy_id, ChipState())
        if isinstance(state, Exception):
            raise state
        return state

    def subscribe(self, on_event: Callable[[FaultEvent], None]) -> None:
        if not self.announces:
            self.refused += 1
            raise DriverError("dcmi_subscribe_fault_event: not supported")
        self.takes_subscribers.wait(30.0)
        self.subscribed = on_event

    def _wait(self, chip_id: int | None) -> None:
        if (free := self._free.get(chip_id)) is not None:
            free.wait(30.0)


class Heard:
    """A listener that records."""

    def __init__(self) -> None:
        self.servers: list[Inventory] = []
        self.states: dict[int, list[tuple[ChipState, Moment]]] = {}
        self.events: list[FaultEvent] = []
        self.losses = 0

    def on_discovery(self, server: Inventory, at: Moment) -> None:
        assert at.mono_s > 0
        self.servers.append(server)

    def on_reading(self, phy_id: int, state: ChipState, at: Moment) -> None:
        self.states.setdefault(phy_id, []).append((state, at))

    def on_event(self, event: FaultEvent, at: Moment) -> None:
        assert at.mono_s > 0
        self.events.append(event)

    def events_lost(self) -> None:
        self.losses += 1

    def count(self, chip_id: int) -> int:
        return len(self.states.get(chip_id, ()))


class Rig:
    def __init__(
        self, *, discover_s: float = 1000.0, deadline_s: float = 0.05, period_s: float = 0.002, known: ChipSet = 0
    ) -> None:
        self.driver = ScriptedDriver()
        self.heard = Heard()
        self.scanner = Scanner(
            self.driver,
            self.heard,
            known=lambda: known,
            period_s=period_s,
            discover_s=discover_s,
            deadline_s=deadline_s,
        )

    def announce(self, event: FaultEvent) -> None:
        assert self.driver.subscribed is not None
        self.driver.subscribed(event)


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_every_chip_is_read_periodically(rig: Rig) -> None:
    assert rig.scanner.problem == "the driver has not been read yet"
    async with running(rig.scanner.run()):
        await until(lambda: all(rig.heard.count(chip_id) > 3 for chip_id in range(8)))
        rig.driver.states[5] = FAULT
        await until(lambda: rig.heard.states[5][-1][0] == FAULT)
        await until(lambda: rig.scanner.problem is None)
    assert rig.heard.servers == [server()]


async def test_chips_are_discovered_but_not_read_before_the_scan_may_start(rig: Rig) -> None:
    begin = asyncio.Event()
    async with running(rig.scanner.run(begin)):
        await until(lambda: rig.heard.servers)
        turned_s = rig.scanner.turned_s
        await until(lambda: rig.scanner.turned_s > turned_s + 5 * rig.scanner.period_s)
        assert (rig.driver.calls, rig.driver.subscribed) == ([], None)
        begin.set()
        await until(lambda: all(rig.heard.count(chip_id) for chip_id in range(8)))
        await until(lambda: rig.driver.subscribed is not None)


async def test_a_reading_has_the_time_of_its_start(rig: Rig) -> None:
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(2))
        rig.driver.hang(2)
        asked = len(rig.driver.calls)
        await until(lambda: 2 in rig.driver.calls[asked:])
        before = rig.heard.count(2)
        rest = rig.heard.count(7)
        await until(lambda: rig.heard.count(7) > rest + 10)
        latest = rig.heard.states[7][-1][1]
        rig.driver.answer(2)
        await until(lambda: rig.heard.count(2) > before)
        assert rig.heard.states[2][before][1] < latest


async def test_a_chip_that_hangs_is_not_read_again_and_delays_no_other(rig: Rig) -> None:
    rig.driver.hang(3)
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(7) > 50)
        assert rig.driver.calls.count(3) == 1
        assert rig.heard.count(3) == 0
        assert rig.scanner.problem is None
        rig.driver.answer(3)
        await until(lambda: rig.heard.count(3) > 3)


async def test_a_driver_that_serialises_its_calls_and_hangs_is_a_problem(rig: Rig) -> None:
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem is None)
        for chip_id in range(8):
            rig.driver.hang(chip_id)
        await until(lambda: rig.scanner.problem == "the driver does not answer within 0.05 s")
        for chip_id in range(8):
            rig.driver.answer(chip_id)
        await until(lambda: rig.scanner.problem is None)


async def test_one_unreadable_chip_is_no_problem_of_the_driver(rig: Rig) -> None:
    rig.driver.states[0] = DriverError("card 0 is gone")
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(1) > 5)
        assert rig.scanner.problem is None
        assert rig.heard.count(0) == 0
        rig.driver.states.clear()
        await until(lambda: rig.heard.count(0) > 0)


@pytest.mark.parametrize(
    ("error", "message"),
    [(DriverError("no such device"), "no such device"), (KeyError("dcmi"), "KeyError: 'dcmi'")],
)
async def test_a_missing_driver_is_retried_until_it_answers(rig: Rig, error: Exception, message: str) -> None:
    rig.driver.server = error
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem == message)
        rig.driver.server = server()
        await until(lambda: rig.heard.count(0))


async def test_a_discovery_that_hangs_is_not_started_twice(rig: Rig) -> None:
    rig.driver.hang()
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem == "the driver does not answer within 0.05 s")
        rig.driver.answer()
        await until(lambda: rig.heard.count(0))
    assert len(rig.heard.servers) == 1


async def test_events_are_passed_on_from_any_thread(rig: Rig) -> None:
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.subscribed is not None)
        assert rig.driver.subscribed is not None
        library = threading.Thread(target=rig.driver.subscribed, args=(EVENT,))
        library.start()
        await until(lambda: rig.heard.events == [EVENT])
        library.join()


async def test_an_event_after_the_end_is_ignored(rig: Rig) -> None:
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.subscribed is not None)
    assert rig.driver.subscribed is not None
    rig.driver.subscribed(EVENT)


async def test_of_a_storm_of_events_as_many_as_in_the_reference_are_passed_on(rig: Rig) -> None:
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.subscribed is not None)
        for _ in range(1000):
            rig.announce(EVENT)
        await until(lambda: len(rig.heard.events) == 1000)
        read = rig.heard.count(0)
        await until(lambda: rig.heard.count(0) > read + 3)
        assert rig.heard.losses == 0
        for _ in range(5000):
            rig.announce(EVENT)
        await until(lambda: rig.heard.losses)
        assert len(rig.heard.events) == 1000


def test_a_minute_after_a_storm_events_are_passed_on_again() -> None:
    now_s = 0.0
    limit = EventLimit(lambda: now_s)
    assert sum(limit.admits() for _ in range(3000)) == 1000
    assert (limit.take_lost(), limit.take_lost()) == (True, False)
    now_s = 59.9
    assert not limit.admits()
    now_s = 60.0
    assert limit.admits()
    assert limit.take_lost()  # the one before


async def test_a_refused_subscription_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscription, "RETRY_FIRST_S", 0.01)
    rig = Rig()
    rig.driver.announces = False
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.refused > 2)
        rig.driver.announces = True
        await until(lambda: rig.driver.subscribed is not None)
        rig.announce(EVENT)
        await until(lambda: rig.heard.events == [EVENT])


async def test_faults_are_found_without_events(rig: Rig) -> None:
    rig.driver.announces = False
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(0) > 3)
        rig.driver.states[0] = FAULT
        await until(lambda: rig.heard.states[0][-1][0] == FAULT)


async def test_chips_are_read_while_the_subscription_hangs() -> None:
    rig = Rig(discover_s=0.02)
    rig.driver.takes_subscribers.clear()
    async with running(rig.scanner.run()):
        await until(lambda: all(rig.heard.count(chip_id) > 3 for chip_id in range(8)))
        await until(lambda: len(rig.heard.servers) > 2)
        assert rig.driver.subscribed is None
        rig.driver.takes_subscribers.set()
        await until(lambda: rig.driver.subscribed is not None)
        assert rig.driver.subscribed is not None
        rig.driver.subscribed(EVENT)
        await until(lambda: rig.heard.events == [EVENT])


async def test_a_chip_whose_fault_is_announced_as_over_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "CONFIRM_S", 0.01)
    rig = Rig(period_s=1000.0)
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(3) == 1 and rig.driver.subscribed is not None)
        assert rig.driver.subscribed is not None
        rig.driver.subscribed(EVENT)
        rig.driver.subscribed(replace(EVENT, assertion="recover"))
        await until(lambda: rig.heard.count(3) == 2)
        assert [rig.heard.count(chip_id) for chip_id in (2, 4)] == [1, 1]


async def test_a_chip_whose_reset_is_announced_is_read_at_once() -> None:
    rig = Rig(period_s=1000.0)
    rig.driver.states[3] = FAULT
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(3) == 1 and rig.driver.subscribed is not None)
        rig.driver.states.clear()
        rig.announce(FaultEvent(3, 0x8C2FA009, "once", 0))
        await until(lambda: rig.heard.count(3) == 2)
        assert rig.heard.states[3][1][0] == ChipState()
        assert [rig.heard.count(chip_id) for chip_id in (2, 4)] == [1, 1]


async def test_chips_that_come_go_or_change_are_followed() -> None:
    rig = Rig(discover_s=0.02)
    seven = server(*(ChipFacts(chip_id, chip_id) for chip_id in range(7)))
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(7))
        rig.driver.server = seven
        await until(lambda: rig.heard.servers[-1] == seven)
        gone = rig.heard.count(7)
        before = rig.heard.count(0)
        await until(lambda: rig.heard.count(0) > before + 20)
        assert rig.heard.count(7) <= gone + 1  # an answer may have been pending
        moved = replace(seven, chips=tuple(replace(each, address=ChipAddress("10.0.0.1")) for each in seven.chips))
        rig.driver.server = moved
        await until(lambda: rig.heard.servers[-1] == moved)
        rig.driver.server = DriverError("busy")
        before = rig.heard.count(0)
        await until(lambda: rig.heard.count(0) > before + 20)
        assert rig.heard.servers[-1] == moved
        rig.driver.server = server()
        await until(lambda: rig.heard.count(7) > gone + 1)


async def test_the_driver_is_initialized_again_until_no_card_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "RENEW_FIRST_S", 0.01)
    rig = Rig()
    rig.driver.server = replace(server(), not_ready=1)
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.initialized > 3)
        rig.driver.server = server()
        await until(lambda: rig.heard.servers[-1] == server())
        initialized = rig.driver.initialized
        read = rig.heard.count(0)
        await until(lambda: rig.heard.count(0) > read + 20)
        assert rig.driver.initialized == initialized


async def test_the_driver_is_initialized_again_while_a_known_chip_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "RENEW_FIRST_S", 0.01)
    rig = Rig(known=0b1_1111_1111)
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.initialized > 1)
        rig.driver.server = server(*(ChipFacts(each, each) for each in range(9)))
        await until(lambda: rig.heard.count(8))


async def test_chips_without_ids_are_waited_for_before_the_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "LIMIT_S", 0.2)
    rig = Rig()
    incomplete = replace(server(), not_ready=1, unidentified=1, problems=("1 of 8 cards was not ready",))
    rig.driver.server = incomplete
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem == "1 of 8 cards was not ready")
        assert rig.heard.servers == []
        await until(lambda: rig.heard.servers == [incomplete])  # not for longer than the reference
    assert rig.driver.initialized


async def test_chips_without_ids_that_are_known_from_before_are_not_waited_for() -> None:
    rig = Rig(known=0b1_1111_1111)
    rig.driver.server = replace(server(), not_ready=1, unidentified=1, problems=("1 of 9 cards was not ready",))
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.servers)


async def test_a_failed_initialization_is_soon_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "RENEW_FIRST_S", 0.01)
    rig = Rig(discover_s=0.01)
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.servers)
        rig.driver.server = DriverError("dcmi_init: -8005")
        await until(lambda: rig.driver.initialized > 1)


def test_the_waiting_times_double_and_become_long_after_ten_minutes() -> None:
    scanner, now_s = Rig().scanner, 0.0
    waits = []

    def wait_s(lacking: str) -> float:
        assert scanner._plan_renewal(now_s, lacking)
        return round(scanner._renew_at_s - now_s, 6)

    while now_s < 4000:
        waits.append(wait_s("card 5"))
        now_s = scanner._renew_at_s
    assert all(0.5 * 2**number <= waited_s <= 2**number for number, waited_s in enumerate(waits[:6]))
    assert max(waited_s for waited_s in waits if waited_s != 600) <= 60
    assert waits[-4:] == [600] * 4
    assert 600 <= sum(waited_s for waited_s in waits if waited_s != 600) <= 660
    assert wait_s("card 6") <= 1


async def test_a_chip_that_hangs_comes_and_goes_has_one_thread() -> None:
    ending = set(threading.enumerate())  # threads of earlier tests end without being waited for
    rig = Rig(discover_s=0.004)
    rig.driver.hang(7)
    seven = server(*(ChipFacts(chip_id, chip_id) for chip_id in range(7)))
    async with running(rig.scanner.run()):
        for _ in range(5):
            for listed in (server(), seven):
                rig.driver.server = listed
                await until(lambda: rig.heard.servers and rig.heard.servers[-1] == listed)  # noqa: B023 - used before the next iteration
        rig.driver.server = server()
        await until(lambda: rig.heard.servers[-1] == server())
        assert rig.driver.calls.count(7) == 1
        assert sum(thread.name == "chip 7" for thread in set(threading.enumerate()) - ending) == 1
        rig.driver.answer(7)
        await until(lambda: rig.heard.count(7) > 1)


async def test_a_hanging_driver_does_not_delay_the_end(rig: Rig) -> None:
    for chip_id in range(8):
        rig.driver.hang(chip_id)
    async with running(rig.scanner.run()):
        await until(lambda: len(rig.driver.calls) == 8)
    for chip_id in range(8):
        rig.driver.answer(chip_id)


async def test_a_muted_chip_is_not_read_and_a_problem_of_it_is_none() -> None:
    rig = Rig()
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.count(3) and rig.heard.count(4))
        rig.scanner.muted = 1 << 3
        rig.driver.states[3] = DriverError("it is being reset")
        read = rig.driver.calls.count(3)
        before = rig.heard.count(4)
        await until(lambda: rig.heard.count(4) > before + 20)
        assert rig.driver.calls.count(3) <= read + 1
        assert rig.scanner.problem is None
        rig.driver.states.clear()
        rig.scanner.muted = 0
        before = rig.heard.count(3)
        await until(lambda: rig.heard.count(3) > before)


async def test_what_a_muted_chip_says_is_no_fault_but_the_end_of_one_is_heard() -> None:
    rig = Rig(period_s=1000.0)
    rig.driver.server = server(ChipFacts(3, 7), ChipFacts(4, 8))
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.subscribed and rig.heard.count(3) and rig.heard.count(4))
        rig.scanner.muted = 1 << 3
        assertions: list[tuple[int, Assertion]] = [(7, "occur"), (7, "once"), (7, "recover"), (8, "occur"), (9, "once")]
        events = [FaultEvent(logic_id, 0x40F84E00, assertion, 3) for logic_id, assertion in assertions]
        for event in events:
            rig.announce(event)
        await until(lambda: len(rig.heard.events) == 3)
        assert rig.heard.events == events[2:]


async def test_a_reading_that_began_before_its_chip_was_muted_is_not_passed_on() -> None:
    rig = Rig()
    rig.driver.hang(3)
    async with running(rig.scanner.run()):
        await until(lambda: 3 in rig.driver.calls and rig.heard.count(4))
        rig.scanner.muted = 1 << 3
        rig.driver.answer(3)
        since_s = rig.heard.states[4][-1][1].mono_s
        await until(lambda: rig.heard.count(4) > 20)
        assert rig.heard.count(3) == 0
        assert rig.scanner.read_since(since_s) >> 3 & 0b11 == 0b10
        assert rig.scanner.read_since(math.inf) == 0


async def test_the_driver_is_not_initialized_again_while_its_table_is_kept() -> None:
    rig = Rig(discover_s=0.02)
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.servers)
        rig.scanner.keeps_table = True
        rig.driver.server = replace(server(), not_ready=1)
        listed = len(rig.heard.servers)
        await until(lambda: len(rig.heard.servers) > listed + 20)
        assert rig.driver.initialized == 0
        rig.scanner.keeps_table = False
        await until(lambda: rig.driver.initialized)


async def test_the_driver_is_initialized_on_request() -> None:
    rig = Rig()
    async with running(rig.scanner.run()):
        await until(lambda: rig.heard.servers)
        listed = len(rig.heard.servers)
        await rig.scanner.initialize()
        assert (rig.driver.initialized, len(rig.heard.servers)) == (1, listed + 1)
        rig.driver.server = DriverError("dcmi_init: -8005")
        with pytest.raises(DriverError, match="-8005"):
            await rig.scanner.initialize()
