"""Fault events of the real driver, from threads of the library."""

import contextlib
import os
import queue
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from ascend.errors import DriverError
from device_plugin.driver import FaultEvent
from device_plugin.driver.dcmi import DcmiDriver
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeDcmi, ascend_910b


def listen(driver: DcmiDriver) -> "queue.Queue[FaultEvent]":
    events: queue.Queue[FaultEvent] = queue.Queue()
    driver.subscribe(events.put)
    return events


def next_of(events: "queue.Queue[FaultEvent]") -> FaultEvent:
    return events.get(timeout=10)


def test_a_fault_is_announced_when_it_occurs_and_when_it_clears(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(4))
    fake.chip(1).codes = (0x80E18400,)  # present before: no event
    events = listen(DcmiDriver())
    fake.chip(3).codes = {0x80E18402: 3}
    assert next_of(events) == FaultEvent(3, 0x80E18402, "occur", 3)
    fake.chip(3).codes = {0x81078603: 1}
    assert next_of(events) == FaultEvent(3, 0x80E18402, "recover", 3)
    assert next_of(events) == FaultEvent(3, 0x81078603, "occur", 1)
    fake.chip(1).codes = ()
    assert next_of(events) == FaultEvent(1, 0x80E18400, "recover", 2)


def test_the_chip_of_an_event_is_its_logic_id(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(2))
    fake.chip(1).logic = 200
    events = listen(DcmiDriver())
    fake.chip(1).codes = (0xFFFF_FFFF,)
    assert next_of(events) == FaultEvent(200, 0xFFFF_FFFF, "occur", 2)


def test_an_event_without_duration_has_the_assertion_once(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    events = listen(DcmiDriver())
    fake.event(0, 0x8C2FA009, assertion=2, severity=0)
    assert next_of(events) == FaultEvent(0, 0x8C2FA009, "once", 0)


def test_events_that_are_not_faults_or_unknown_are_ignored(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    events = listen(DcmiDriver())
    fake.event(0, 1, assertion=1, kind=9)
    fake.event(0, 2, assertion=7)
    fake.event(0, 0, assertion=1)
    fake.event(0, 3, assertion=1)
    assert next_of(events).code == 3


def test_events_that_are_ignored_do_not_fill_the_log(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    with structlog.testing.capture_logs() as logs:
        events = listen(DcmiDriver())
        for number in range(200):
            fake.event(0, 0x80E18005, assertion=3 + number % 50)
        fake.event(0, 3, assertion=1)
        assert next_of(events).code == 3
    assert 0 < len(logs) <= 20


def test_a_listener_that_fails_loses_only_that_event(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    events: queue.Queue[FaultEvent] = queue.Queue()

    def fail_once(event: FaultEvent) -> None:
        if event.code == 1:
            raise ValueError("not mine")
        events.put(event)

    with structlog.testing.capture_logs() as logs:
        DcmiDriver().subscribe(fail_once)
        fake.event(0, 1, assertion=1)
        fake.event(0, 2, assertion=1)
        assert next_of(events).code == 2
    assert [line["event"] for line in logs if line["log_level"] == "error"] == ["an event is lost"]


def test_a_lost_event_is_found_by_polling(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    driver = DcmiDriver()
    chip = driver.discover().chips[0]
    events = listen(driver)
    fake.set(lose_events=True)
    fake.chip(0).codes = (0x80E18402,)
    assert driver.read(chip).codes == (0x80E18402,)
    fake.event(0, 7, assertion=1)
    assert next_of(events).code == 7
    assert events.empty()


def test_an_unsupported_subscription_is_not_retried(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    pauses: list[float] = []
    driver = DcmiDriver(pause=pauses.append)
    with (
        fake.fail("dcmi_subscribe_fault_event", -8255),
        pytest.raises(DriverError, match=r"^dcmi_subscribe_fault_event: -8255 \(not supported\)$"),
    ):
        listen(driver)
    assert (pauses, fake.calls()["dcmi_subscribe_fault_event"]) == ([], 1)


def test_a_failed_subscription_is_tried_three_times(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    pauses: list[float] = []
    driver = DcmiDriver(pause=pauses.append)
    with fake.fail("dcmi_subscribe_fault_event", -8005), pytest.raises(DriverError, match="-8005"):
        listen(driver)
    assert (pauses, fake.calls()["dcmi_subscribe_fault_event"]) == ([1.0, 1.0], 3)


def test_a_subscription_that_succeeds_late_works(make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(1))
    with contextlib.ExitStack() as refusal:
        refusal.enter_context(fake.fail("dcmi_subscribe_fault_event", -8005))
        events = listen(DcmiDriver(pause=lambda _seconds: refusal.close()))
    assert fake.calls()["dcmi_subscribe_fault_event"] == 2
    fake.event(0, 5, assertion=1)
    assert next_of(events).code == 5


LISTENER = """
import sys, threading
import structlog
from device_plugin.driver.dcmi import DcmiDriver

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
seen = threading.Event()
driver = DcmiDriver()
print(len(driver.discover().chips), flush=True)
driver.subscribe(lambda event: (print(f"{event.code:X}", flush=True), seen.set()))
seen.wait(20)
"""


def test_another_process_gets_events_and_can_end_while_they_arrive(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(8))
    with subprocess.Popen(
        [sys.executable, "-c", LISTENER], env={**os.environ, **fake.environment()}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "8\n"
        number = 0
        while process.poll() is None and number < 5000:
            number += 1
            fake.chip(0).codes = (0x80E18402,) if number % 2 else ()
        assert process.wait(20) == 0
        assert process.stdout.readline() == "80E18402\n"
