"""The steps of a reset, one after another, on a virtual clock."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ascend.chips import ChipSet
from device_plugin.reset.group_reset import GroupReset
from device_plugin.reset.steps import (
    BOOT_LIMIT_S,
    CALL_LIMIT_S,
    LAG_S,
    LIST_LIMIT_S,
    RECHECK_S,
    SETTLE_S,
    VERIFY_LIMIT_S,
    Command,
    ResetBudget,
    ResetPhase,
    View,
)

RING = 0b1111
FAULTY = View({2: "80A18008 (RestartNPU)"}, healthy=0b1011)
CLOSED = replace(FAULTY, closed=True, listed=True, recorded=True)
WELL = View({}, healthy=RING, read=RING)


class Bench:
    """A group of four chips, and what it announced."""

    def __init__(
        self, *, per_hour: int = 3, dry_run: bool = False, idle_s: float = 60.0, one_by_one: bool = False
    ) -> None:
        self.now_s = 1000.0
        self.said: list[str] = []
        self.sentences: list[str] = []
        self.group = GroupReset(
            RING, ResetBudget(per_hour), self._announce, idle_s=idle_s, dry_run=dry_run, one_by_one=one_by_one
        )

    def _announce(self, reason: str, sentence: str, warning: bool) -> None:  # noqa: FBT001 - a callback's plain word
        assert warning == (reason == "NPUResetFailed")
        self.said.append(reason)
        self.sentences.append(sentence)

    def look(self, view: View, after_s: float = 0.0) -> Command | None:
        self.now_s += after_s
        return self.group.look(view, self.now_s)

    def on_check(self, found: Sequence[str] | None = (), view: View = FAULTY) -> Command | None:
        return self.group.on_check(found, view, self.now_s)

    def withhold(self) -> None:
        """Go on until the chips are withheld."""
        assert self.look(FAULTY) is None
        assert self.look(FAULTY, 60.0) is Command.CHECK
        assert self.on_check() is None
        assert self.group.phase is ResetPhase.WITHHELD

    def begin(self) -> None:
        """Go on until the driver resets the chips."""
        self.withhold()
        assert self.look(CLOSED) is None
        assert self.look(CLOSED, SETTLE_S) is Command.CHECK
        assert self.on_check(view=CLOSED) is Command.RESET

    def verify(self, started: ChipSet = RING) -> None:
        """Go on from a returned reset until the chips are read again."""
        assert self.look(CLOSED) is Command.POLL
        self.group.on_reading(started, self.now_s)
        assert self.look(CLOSED) is Command.INITIALIZE
        self.group.on_initialization("", self.now_s)
        assert self.group.phase is ResetPhase.VERIFYING

    def fail(self) -> None:
        """A whole reset that the driver refuses."""
        self.begin()
        self.group.was_reset("the reset failed", self.now_s)
        self.verify()
        self.look(replace(CLOSED, read=RING))
        assert self.group.phase is ResetPhase.IDLE


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_reset_from_the_fault_to_the_end(bench: Bench) -> None:
    assert bench.look(FAULTY) is None
    assert bench.look(FAULTY, 59.9) is None
    assert (bench.group.withheld, bench.group.is_busy) == (0, False)
    assert bench.look(FAULTY, 0.1) is Command.CHECK
    bench.on_check()
    assert (bench.group.withheld, bench.group.muted, bench.group.is_busy) == (RING, 0, True)
    assert bench.look(CLOSED) is None
    assert bench.look(CLOSED, SETTLE_S) is Command.CHECK
    assert bench.on_check(view=CLOSED) is Command.RESET
    assert (bench.group.withheld, bench.group.muted) == (RING, RING)
    bench.group.was_reset("", bench.now_s)
    assert bench.look(CLOSED) is Command.POLL
    bench.group.on_reading(0b0111, bench.now_s)
    assert bench.look(CLOSED) is None
    assert bench.look(CLOSED, 1.0) is Command.POLL
    bench.group.on_reading(RING, bench.now_s)
    assert bench.look(CLOSED) is Command.INITIALIZE
    bench.group.on_initialization("", bench.now_s)
    assert (bench.group.withheld, bench.group.muted) == (RING, 0)
    bench.look(replace(WELL, read=0b0111))
    assert bench.group.withheld == RING
    bench.look(WELL)
    assert (bench.group.withheld, bench.group.manual, bench.group.is_busy) == (0, 0, False)
    assert bench.said == ["NPUWithheld", "NPUResetStarted", "NPUReset"]


def test_a_reset_is_counted_and_recorded_before_the_driver_is_called(bench: Bench) -> None:
    unrecorded = replace(CLOSED, recorded=False)
    bench.withhold()
    assert bench.look(unrecorded) is None
    assert len(bench.group.budget.resets) == 1
    assert bench.look(unrecorded, SETTLE_S) is None
    assert bench.look(CLOSED) is Command.CHECK
    assert bench.on_check(view=CLOSED) is Command.RESET
    assert len(bench.group.budget.resets) == 1


def test_a_reset_that_can_not_be_recorded_is_cancelled_and_does_not_count(bench: Bench) -> None:
    unrecorded = replace(CLOSED, recorded=False)
    bench.withhold()
    bench.look(unrecorded)
    bench.look(unrecorded, LIST_LIMIT_S - 1.0)
    assert bench.group.withheld == RING
    bench.look(unrecorded, 1.0)
    assert (bench.group.withheld, bench.group.budget.resets) == (0, ())
    assert bench.said == ["NPUWithheld", "NPUResetCancelled"]
    assert "the Node could not be written" in bench.sentences[-1]


def test_a_counted_reset_that_a_user_prevents_does_not_count(bench: Bench) -> None:
    bench.withhold()
    bench.look(CLOSED)
    assert bench.look(CLOSED, SETTLE_S) is Command.CHECK
    assert bench.on_check(["process 4711 uses Ascend910-0"], CLOSED) is None
    assert bench.group.budget.resets == ()


def test_a_group_in_use_waits_and_its_idle_time_starts_anew(bench: Bench) -> None:
    held = replace(FAULTY, obstacles=["pod default/a holds Ascend910-0"])
    bench.look(FAULTY)
    assert bench.look(held, 59.0) is None
    assert bench.look(FAULTY, 2.0) is None
    assert bench.look(FAULTY, 59.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK
    assert bench.said == ["NPUResetWaiting"]
    assert "pod default/a holds Ascend910-0" in bench.sentences[0]


@pytest.mark.parametrize("found", [["process 4711 uses Ascend910-0"], None])
def test_a_holder_that_only_others_know_keeps_the_group_from_being_withheld(
    bench: Bench, found: list[str] | None
) -> None:
    bench.look(FAULTY)
    bench.look(FAULTY, 60.0)
    assert bench.on_check(found) is None
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)
    assert bench.said == ["NPUResetWaiting"]


def test_a_pod_that_was_being_admitted_ends_the_attempt(bench: Bench) -> None:
    bench.withhold()
    assert bench.look(replace(CLOSED, obstacles=["pod default/a holds Ascend910-0"]), 1.0) is None
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)
    assert bench.said[-1] == "NPUResetCancelled"


@pytest.mark.parametrize(
    "late",
    [replace(CLOSED, listed=False), replace(CLOSED, closed=False), replace(CLOSED, admitting=True)],
    ids=["list", "snapshot", "admission"],
)
def test_withheld_chips_are_not_reset_while_a_pod_could_get_one(bench: Bench, late: View) -> None:
    bench.withhold()
    bench.look(CLOSED)
    assert bench.look(late, SETTLE_S) is None
    assert bench.look(CLOSED) is None
    assert bench.look(CLOSED, SETTLE_S - 0.1) is None
    assert bench.look(CLOSED, 0.1) is Command.CHECK


def test_chips_that_can_not_be_withheld_are_released(bench: Bench) -> None:
    bench.withhold()
    assert bench.look(replace(CLOSED, listed=False), LIST_LIMIT_S) is None
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)


def test_a_holder_found_by_the_last_check_prevents_the_reset(bench: Bench) -> None:
    bench.withhold()
    bench.look(CLOSED)
    bench.look(CLOSED, SETTLE_S)
    assert bench.on_check(["process 4711 uses Ascend910-1"], CLOSED) is None
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)


def test_a_holder_seen_during_the_last_check_prevents_the_reset(bench: Bench) -> None:
    bench.withhold()
    bench.look(CLOSED)
    bench.look(CLOSED, SETTLE_S)
    assert bench.on_check((), replace(CLOSED, obstacles=["pod default/a holds Ascend910-0"])) is None
    assert bench.group.withheld == 0


@pytest.mark.parametrize(
    "late",
    [replace(CLOSED, closed=False), replace(CLOSED, listed=False), replace(CLOSED, busy=True)],
    ids=["snapshot", "list", "another reset"],
)
def test_chips_that_a_pod_could_get_during_the_last_check_are_not_reset(bench: Bench, late: View) -> None:
    bench.withhold()
    bench.look(CLOSED)
    assert bench.look(CLOSED, SETTLE_S) is Command.CHECK
    assert bench.on_check((), late) is None
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)
    assert bench.said[-1] == "NPUResetCancelled"


@pytest.mark.parametrize("found", [["process 4711 uses Ascend910-0"], None])
def test_after_a_check_that_found_a_user_the_idle_time_starts_anew(bench: Bench, found: list[str] | None) -> None:
    bench.look(FAULTY)
    bench.look(FAULTY, 60.0)
    bench.on_check(found)
    assert bench.look(FAULTY) is None
    assert bench.look(FAULTY, 59.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK


def test_after_an_attempt_in_vain_idle_time_and_settling_start_anew(bench: Bench) -> None:
    bench.withhold()
    bench.look(CLOSED)
    bench.look(replace(CLOSED, obstacles=["pod default/a holds Ascend910-0"]), 1.0)
    assert bench.look(FAULTY) is None
    assert bench.look(FAULTY, 59.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK
    bench.on_check()
    assert bench.look(CLOSED) is None
    assert bench.look(CLOSED, SETTLE_S - 0.1) is None
    assert bench.look(CLOSED, 0.1) is Command.CHECK


@pytest.mark.parametrize("withheld", [False, True])
def test_between_two_attempts_there_is_a_pause_whatever_the_idle_time(*, withheld: bool) -> None:
    bench = Bench(idle_s=0.0)
    assert bench.look(FAULTY) is Command.CHECK
    if withheld:
        bench.on_check()
        bench.look(replace(CLOSED, obstacles=["pod default/a holds Ascend910-0"]), RECHECK_S)
    else:
        bench.on_check(["process 4711 uses Ascend910-0"])
    assert bench.look(FAULTY) is None
    assert bench.look(FAULTY, RECHECK_S - 0.1) is None
    assert bench.look(FAULTY, 0.1) is Command.CHECK


def test_a_fault_that_clears_by_itself_ends_the_attempt(bench: Bench) -> None:
    bench.withhold()
    bench.look(replace(WELL, closed=True, listed=True), 1.0)
    assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)


def test_a_refused_reset_is_tried_again_after_a_growing_wait(bench: Bench) -> None:
    bench.fail()
    assert (bench.group.withheld, bench.group.manual) == (0, 0b0100)
    bench.look(FAULTY)
    assert bench.look(FAULTY, 59.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK
    bench.on_check()
    bench.look(CLOSED)
    bench.look(CLOSED, SETTLE_S)
    assert bench.on_check(view=CLOSED) is Command.RESET
    bench.group.was_reset("the reset failed", bench.now_s)
    bench.verify()
    bench.look(replace(CLOSED, read=RING))
    bench.look(FAULTY)
    assert bench.look(FAULTY, 119.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK


def test_the_waits_begin_anew_once_the_fault_has_cleared(bench: Bench) -> None:
    bench.fail()
    bench.look(FAULTY, 60.0)
    bench.look(FAULTY, 60.0)
    bench.on_check()
    bench.look(CLOSED)
    bench.look(CLOSED, SETTLE_S)
    bench.on_check(view=CLOSED)
    bench.group.was_reset("the reset failed", bench.now_s)
    bench.verify()
    bench.look(replace(CLOSED, read=RING))
    bench.look(WELL, 1.0)
    bench.look(FAULTY)
    assert bench.look(FAULTY, 59.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK


def test_a_fault_that_is_still_there_after_a_reset_counts_as_a_failure(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(replace(CLOSED, read=RING))
    assert bench.group.withheld == RING
    bench.look(replace(CLOSED, read=RING), LAG_S)
    assert (bench.group.withheld, bench.group.manual) == (0, 0b0100)
    assert "80A18008" in bench.sentences[-1]
    bench.look(WELL, 1.0)
    assert bench.group.manual == 0


def test_a_list_of_codes_that_lags_behind_the_reset_is_no_failure(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(replace(CLOSED, read=RING))
    bench.look(WELL, LAG_S - 1.0)
    assert bench.said[-1] == "NPUReset"


def test_the_limit_per_hour_ends_the_attempts_and_asks_for_people() -> None:
    bench = Bench(per_hour=1)
    bench.begin()
    (began_s,) = bench.group.budget.resets
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(WELL)
    assert bench.group.manual == 0
    assert bench.look(FAULTY) is None
    assert bench.group.manual == 0b0100
    assert "limit" in bench.group.waits_for
    assert bench.look(FAULTY, began_s + 3599.0 - bench.now_s) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK


def test_a_reset_that_hangs_is_said_and_can_still_end_well(bench: Bench) -> None:
    bench.begin()
    bench.look(CLOSED, CALL_LIMIT_S - 1.0)
    assert not bench.group.hangs
    bench.look(CLOSED, 1.0)
    bench.look(CLOSED, 1000.0)
    assert (bench.group.hangs, bench.group.manual, bench.group.withheld) == (True, RING, RING)
    assert bench.said.count("NPUResetFailed") == 1
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(WELL)
    assert (bench.group.hangs, bench.group.manual, bench.group.withheld) == (False, 0, 0)


def test_a_chip_that_does_not_start_stays_withheld_alone_until_it_has(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.look(CLOSED)
    bench.group.on_reading(0b1011, bench.now_s)
    assert bench.look(CLOSED, BOOT_LIMIT_S) is Command.POLL
    bench.group.on_reading(0b1011, bench.now_s)
    assert bench.look(CLOSED) is Command.INITIALIZE
    bench.group.on_initialization("", bench.now_s)
    assert bench.group.muted == 0b0100
    bench.look(replace(WELL, read=0b1011, healthy=0b1011))
    assert (bench.group.withheld, bench.group.manual) == (0b0100, 0b0100)
    assert not bench.group.is_busy
    assert bench.look(replace(WELL, healthy=0b1011), 9.0) is None
    assert bench.look(replace(WELL, healthy=0b1011), 1.0) is Command.POLL
    bench.group.on_reading(RING, bench.now_s)
    assert bench.look(replace(WELL, healthy=0b1011)) is Command.INITIALIZE
    bench.group.on_initialization("", bench.now_s)
    bench.look(WELL)
    assert (bench.group.withheld, bench.group.manual) == (0, 0)


def test_of_two_chips_that_have_not_started_each_is_released_when_it_has(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.look(CLOSED)
    bench.look(CLOSED, BOOT_LIMIT_S)
    bench.group.on_reading(0b1001, bench.now_s)
    bench.group.on_initialization("", bench.now_s)
    bench.look(replace(WELL, read=0b1001, healthy=0b1001))
    assert (bench.group.withheld, bench.group.manual) == (0b0110, 0b0110)
    bench.look(replace(WELL, healthy=0b1001), 10.0)
    bench.group.on_reading(0b1011, bench.now_s)
    bench.group.on_initialization("", bench.now_s)
    bench.look(replace(WELL, healthy=0b1011))
    assert (bench.group.withheld, bench.said[-1]) == (0b0100, "NPUResetFailed")
    bench.look(replace(WELL, healthy=0b1011))
    assert bench.group.manual == 0b0100


def test_chips_are_withheld_while_their_health_is_held_back_after_a_reset(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(replace(WELL, held_back=True))
    assert bench.group.withheld == RING
    bench.look(WELL, 1.0)
    assert (bench.group.withheld, bench.said[-1]) == (0, "NPUReset")


def test_a_chip_that_can_not_be_read_after_a_reset_is_left_to_people(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(replace(WELL, read=0b1011))
    assert bench.group.withheld == RING
    bench.look(replace(WELL, read=0b1011, healthy=0b1011), VERIFY_LIMIT_S)
    assert (bench.group.withheld, bench.group.manual) == (0, 0b0100)
    bench.look(replace(WELL, healthy=0b1011), 10.0)
    assert bench.group.manual == 0b0100


def test_a_driver_that_can_not_be_initialized_again_releases_the_chips_to_their_health(bench: Bench) -> None:
    bench.begin()
    bench.group.was_reset("", bench.now_s)
    bench.look(CLOSED)
    bench.group.on_reading(RING, bench.now_s)
    assert bench.look(CLOSED) is Command.INITIALIZE
    bench.group.on_initialization("no answer", bench.now_s)
    assert bench.look(CLOSED, VERIFY_LIMIT_S) is Command.INITIALIZE
    bench.group.on_initialization("no answer", bench.now_s)
    bench.look(replace(CLOSED, read=RING))
    assert bench.group.withheld == 0
    assert "no answer" in bench.sentences[-1]


def test_a_dry_run_says_once_what_would_be_reset_and_withholds_nothing() -> None:
    bench = Bench(dry_run=True)
    for _ in range(5):
        assert bench.look(FAULTY) is None
        assert bench.look(FAULTY, 60.0) is Command.CHECK
        assert bench.on_check() is None
        assert (bench.group.phase, bench.group.withheld) == (ResetPhase.IDLE, 0)
    assert bench.said == ["NPUResetPlanned"]
    assert "Ascend910-2: 80A18008 (RestartNPU) needs a reset of Ascend910-0,Ascend910-1" in bench.sentences[0]


def test_changing_users_are_said_at_most_every_five_minutes(bench: Bench) -> None:
    for number in range(6):
        bench.look(replace(FAULTY, obstacles=[f"pod default/{number} holds Ascend910-0"]), 59.0)
    assert bench.said == ["NPUResetWaiting"]
    bench.look(replace(FAULTY, obstacles=["pod default/last holds Ascend910-0"]), 5.0)
    assert [sentence.partition(": pod ")[2] for sentence in bench.sentences] == [
        "default/0 holds Ascend910-0",
        "default/last holds Ascend910-0",
    ]


def test_a_group_waits_for_the_reset_of_another(bench: Bench) -> None:
    bench.look(FAULTY)
    assert bench.look(replace(FAULTY, busy=True), 60.0) is None
    assert bench.look(FAULTY, 1.0) is Command.CHECK
    assert bench.on_check(view=replace(FAULTY, busy=True)) is None
    assert bench.group.withheld == 0


def test_chips_found_starting_are_withheld_and_the_others_of_the_group_are_not(bench: Bench) -> None:
    bench.group.found_starting(0b110010, bench.now_s)
    assert (bench.group.withheld, bench.group.muted) == (0b0010, 0b0010)
    assert bench.look(WELL) is Command.POLL
    bench.group.on_reading(RING, bench.now_s)
    bench.look(WELL)
    bench.group.on_initialization("", bench.now_s)
    bench.look(replace(WELL, read=0b0010))
    assert bench.group.withheld == 0
    assert bench.said == ["NPUStarting", "NPUReset"]


def test_a_chip_found_starting_is_said_once_and_interrupts_no_other_step(bench: Bench) -> None:
    for _ in range(2):
        bench.group.found_starting(0b0010, bench.now_s)
    assert bench.said == ["NPUStarting"]
    bench.look(WELL)
    bench.group.on_reading(0b0010, bench.now_s)
    assert bench.group.phase is ResetPhase.INITIALIZING
    bench.group.found_starting(0b0100, bench.now_s)
    assert bench.group.phase is ResetPhase.INITIALIZING


# A driver that resets each chip alone.

BOTH = View(
    {1: "80A18008 (RestartNPU)", 2: "80A18008 (RestartNPU)"}, closed=True, listed=True, recorded=True, read=RING
)
SECOND = replace(BOTH, wanting={2: "80A18008 (RestartNPU)"}, healthy=0b1011)


def begun(view: View = BOTH) -> Bench:
    """A bench whose driver resets the first chip alone."""
    bench = Bench(one_by_one=True)
    bench.look(view)
    assert bench.look(view, 60.0) is Command.CHECK
    bench.on_check(view=view)
    bench.look(view)
    assert bench.look(view, SETTLE_S) is Command.CHECK
    assert bench.on_check(view=view) is Command.RESET
    assert bench.group.target == 1
    return bench


def test_the_chips_that_are_left_are_reset_in_the_same_attempt() -> None:
    bench = begun()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    assert bench.look(SECOND) is None  # the driver may have reset it too: its list of codes can be late
    assert bench.look(SECOND, LAG_S) is Command.CHECK
    assert bench.group.withheld == RING
    assert bench.on_check(view=SECOND) is Command.RESET
    assert (bench.group.target, bench.group.muted) == (2, RING)
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(WELL)
    assert (bench.group.withheld, bench.group.manual, bench.group.is_busy) == (0, 0, False)
    assert bench.said == ["NPUWithheld", "NPUResetStarted", "NPUResetStarted", "NPUReset"]
    assert "resetting next Ascend910-2" in bench.sentences[2]
    assert len(bench.group.budget.resets) == 1


def test_a_chip_that_came_back_without_its_fault_is_not_reset_again() -> None:
    bench = begun()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    assert bench.look(SECOND) is None
    assert bench.look(WELL, 1.0) is None
    assert bench.said == ["NPUWithheld", "NPUResetStarted", "NPUReset"]


def test_each_chip_is_reset_once_in_an_attempt() -> None:
    bench = begun()
    for _ in range(2):
        bench.group.was_reset("", bench.now_s)
        bench.verify()
        bench.look(BOTH, LAG_S)
        bench.on_check(view=BOTH)
    assert bench.said == ["NPUWithheld", "NPUResetStarted", "NPUResetStarted", "NPUResetFailed"]
    assert "after it there is Ascend910-1" in bench.sentences[-1]
    assert (bench.group.withheld, bench.group.manual, bench.group.called) == (0, 0b0110, 0)


def test_a_chip_that_is_not_reset_does_not_keep_the_others_from_it() -> None:
    bench = begun()
    bench.group.was_reset("the reset failed", bench.now_s)
    bench.verify()
    assert bench.look(BOTH) is Command.CHECK
    assert bench.on_check(view=BOTH) is Command.RESET
    assert bench.group.target == 2
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    bench.look(replace(BOTH, wanting={1: "80A18008 (RestartNPU)"}), LAG_S)
    assert "the driver did not reset it: the reset failed" in bench.sentences[-1]
    assert (bench.group.withheld, bench.group.manual) == (0, 0b0010)


def test_who_uses_the_chips_is_checked_before_each_of_them_is_reset() -> None:
    bench = begun()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    assert bench.look(SECOND, LAG_S) is Command.CHECK
    assert bench.on_check(["process 4711 uses Ascend910-3"], SECOND) is None
    assert bench.sentences[-1].endswith("Ascend910-2 is not reset, process 4711 uses Ascend910-3")
    assert (bench.group.withheld, bench.group.manual, bench.group.is_busy) == (0, 0b0100, False)


def test_a_fault_that_clears_before_the_last_check_ends_the_attempt_well() -> None:
    bench = begun()
    bench.group.was_reset("", bench.now_s)
    bench.verify()
    assert bench.look(SECOND, LAG_S) is Command.CHECK
    assert bench.on_check(view=replace(WELL, closed=True, listed=True)) is None
    assert bench.said == ["NPUWithheld", "NPUResetStarted", "NPUReset"]
    assert (bench.group.withheld, bench.group.manual) == (0, 0)
