"""The scanner and drivers that fail, hang and come back; drivers run in real threads."""

import threading
from dataclasses import replace

import pytest

from ascend.errors import DriverError
from ascend.products import ASCEND_910A
from device_plugin.driver import ChipReading, Reading
from device_plugin.rules.snapshot import Snapshot, age_out, take
from device_plugin.scan import Scanner
from device_plugin.state.observable import Observable
from tests.device_plugin.api import running, until

EIGHT = Reading(ASCEND_910A, tuple(ChipReading(chip_id) for chip_id in range(8)))
BROKEN = replace(EIGHT, chips=(replace(EIGHT.chips[0], healthy=False, fault_codes=("80E18402",)), *EIGHT.chips[1:]))


class ScriptedDriver:
    """Answers what the test says, and hangs while it is told to."""

    def __init__(self) -> None:
        self.reading = EIGHT
        self.error: Exception | None = None
        self.calls = 0
        self.answers = threading.Event()
        self.answers.set()

    def read(self) -> Reading:
        self.calls += 1
        self.answers.wait(30.0)
        if self.error is not None:
            raise self.error
        return self.reading


class Rig:
    def __init__(self, *, stale_s: float = 1000.0, deadline_s: float = 0.05) -> None:
        self.driver = ScriptedDriver()
        self.snapshots: Observable[Snapshot | None] = Observable(None)
        self.scanner = Scanner(
            self.driver, self.snapshots, period_s=0.001, deadline_s=deadline_s, stale_s=stale_s, now_ms=lambda: 1234
        )

    @property
    def healthy(self) -> int | None:
        return self.snapshots.value.healthy if self.snapshots.value is not None else None

    def fail(self, *, hanging: bool) -> None:
        if hanging:
            self.driver.answers.clear()
        else:
            self.driver.error = DriverError("no such device")

    def recover(self) -> None:
        self.driver.error = None
        self.driver.answers.set()


both_ways = pytest.mark.parametrize("hanging", [False, True], ids=["it raises", "it hangs"])


async def test_the_first_reading_is_published() -> None:
    rig = Rig()
    assert rig.scanner.problem == "the driver has not been read yet"
    async with running(rig.scanner.run()):
        await rig.snapshots.newer_than(0)
        assert rig.snapshots.value == take(EIGHT, None, 1234)
        await until(lambda: rig.scanner.problem is None)


async def test_unchanged_readings_publish_nothing_and_a_changed_one_does() -> None:
    rig = Rig()
    async with running(rig.scanner.run()):
        await until(lambda: rig.driver.calls > 20)
        assert rig.snapshots.version == 1
        rig.driver.reading = BROKEN
        await rig.snapshots.newer_than(1)
        assert rig.healthy == 0xFE
        seen = rig.driver.calls
        await until(lambda: rig.driver.calls > seen + 20)
        assert rig.snapshots.version == 2


@pytest.mark.parametrize(
    ("error", "said"),
    [(DriverError("no such device"), "no such device"), (KeyError("dcmi"), "KeyError: 'dcmi'")],
)
async def test_a_driver_that_raises_is_a_problem_and_what_was_known_stays(error: Exception, said: str) -> None:
    rig = Rig()
    async with running(rig.scanner.run()):
        await rig.snapshots.newer_than(0)
        rig.driver.error = error
        await until(lambda: rig.scanner.problem == said)
        assert (rig.snapshots.version, rig.healthy) == (1, 0xFF)


async def test_a_driver_that_hangs_is_a_problem_and_is_called_no_second_time() -> None:
    rig = Rig()
    problems = set()
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem is None)
        rig.driver.answers.clear()

        def complained_of_thrice() -> bool:
            if "has not answered for" in (rig.scanner.problem or ""):
                problems.add(rig.scanner.problem)
            return len(problems) >= 3

        await until(lambda: "has not answered for" in (rig.scanner.problem or ""))
        calls = rig.driver.calls
        await until(complained_of_thrice)
        assert rig.driver.calls == calls
        assert (rig.snapshots.version, rig.healthy) == (1, 0xFF)
        rig.recover()
        await until(lambda: rig.scanner.problem is None and rig.driver.calls > calls)


@both_ways
async def test_a_driver_silent_for_too_long_leaves_no_chip_healthy_until_it_answers(*, hanging: bool) -> None:
    rig = Rig(stale_s=0.2)
    async with running(rig.scanner.run()):
        await rig.snapshots.newer_than(0)
        known = rig.snapshots.value
        assert known is not None
        rig.fail(hanging=hanging)
        await rig.snapshots.newer_than(1)
        assert rig.snapshots.value == age_out(known)
        assert rig.healthy == 0
        rig.recover()
        await until(lambda: rig.healthy == 0xFF)
        await until(lambda: rig.scanner.problem is None)


@both_ways
async def test_a_driver_that_never_answered_publishes_nothing(*, hanging: bool) -> None:
    rig = Rig(stale_s=0.0)
    rig.fail(hanging=hanging)
    async with running(rig.scanner.run()):
        await until(lambda: rig.scanner.problem not in {None, "the driver has not been read yet"})
        assert rig.snapshots.version == 0
        rig.recover()
        await rig.snapshots.newer_than(0)


async def test_it_ends_while_the_driver_hangs() -> None:
    rig = Rig()
    rig.driver.answers.clear()
    async with running(rig.scanner.run()) as scanning:
        await until(lambda: rig.driver.calls == 1)
    assert scanning.done()
    threads = [each for each in threading.enumerate() if each.name == "driver"]
    assert threads
    assert all(each.daemon for each in threads)
    rig.driver.answers.set()
    await until(lambda: not any(each.is_alive() for each in threads))
