"""Which chips are healthy: faults by event and by reading, silence, recovery, operators."""

import math
from collections.abc import Collection
from dataclasses import replace

import pytest

from ascend.chips import chip_set
from device_plugin.driver import LINK_DOWN
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import CARD_DROP, RESET_FINISHED, FaultLevel
from device_plugin.health.snapshot import EarlierState, FaultRecord
from device_plugin.health.upgrades import UpgradeReason
from tests.device_plugin.watch import (
    FREQUENT,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SUB_HEALTH,
    UNKNOWN,
    WALL_MS,
    Watch,
    moment,
)


def after(at_s: float) -> float:
    return math.nextafter(at_s, math.inf)


# From codes to health.


@pytest.mark.parametrize(
    ("code", "idle", "in_use"),
    [
        (NOT_HANDLE, True, True),
        (SUB_HEALTH, True, True),
        (0x80C98000, False, False),  # RestartRequest
        (0xA2301002, False, False),  # RestartBusiness
        (0x8C044E00, False, False),  # FreeRestartNPU
        (FREQUENT, False, False),  # RestartNPU
        (PRE_SEPARATE, False, True),
        (SEPARATE, False, False),
    ],
)
def test_the_level_of_a_fault_decides_whether_its_chip_is_healthy(code: int, *, idle: bool, in_use: bool) -> None:
    watch = Watch()
    watch.read(1, code)
    assert watch.chip(1).healthy is idle
    assert watch.chip(1, 0).healthy is in_use


def test_a_chip_kept_by_its_pod_is_unhealthy_once_the_pod_is_gone() -> None:
    watch = Watch()
    watch.event(1, PRE_SEPARATE)
    assert watch.chip(1, 0).healthy
    assert watch.why(2) == "Fault"
    assert watch.chip(3, 0).healthy


def test_a_further_fault_never_makes_a_chip_healthier() -> None:
    watch = Watch()
    watch.read(1, FREQUENT)
    assert watch.why(1, 0) == "Fault"
    watch.read(2, FREQUENT, PRE_SEPARATE)  # the more serious of the two, but it leaves a chip in use healthy
    assert watch.chip(2).level is FaultLevel.PRE_SEPARATE
    assert watch.why(2, 0) == "Fault"


def test_the_most_serious_fault_counts_and_is_named_first() -> None:
    watch = Watch()
    watch.event(1, NOT_HANDLE)
    watch.event(2, SEPARATE)
    watch.event(3, FREQUENT)
    chip = watch.chip(4)
    assert chip.level is FaultLevel.SEPARATE
    assert chip.faults == (
        FaultRecord(SEPARATE, "80E18402", WALL_MS + 2000, FaultLevel.SEPARATE),
        FaultRecord(FREQUENT, "80E18005", WALL_MS + 3000, FaultLevel.RESTART),
        FaultRecord(NOT_HANDLE, "80CD8003", WALL_MS + 1000, FaultLevel.NOT_HANDLE),
    )
    assert (chip.reason, chip.sentence) == ("Fault", "80E18402 (SeparateNPU), 80E18005 (RestartNPU)")


def test_an_unknown_code_is_judged_by_its_announced_severity() -> None:
    watch = Watch()
    watch.event(1, UNKNOWN, severity=1)
    assert watch.chip(1).level is FaultLevel.NOT_HANDLE
    watch.read(2, UNKNOWN)
    assert watch.chip(2).level is FaultLevel.NOT_HANDLE
    watch.event(3, UNKNOWN, severity=3)
    assert watch.chip(3).level is FaultLevel.SEPARATE


def test_the_highest_announced_severity_of_a_present_code_counts() -> None:
    watch = Watch()
    watch.event(1, UNKNOWN, severity=3)
    watch.event(1, UNKNOWN, severity=1)
    assert watch.chip(1).level is FaultLevel.SEPARATE


def test_an_unknown_code_that_was_not_announced_bars_the_chip() -> None:
    watch = Watch()
    watch.read(1, UNKNOWN)
    assert watch.chip(1).level is FaultLevel.SEPARATE


def test_an_announced_severity_is_forgotten_when_the_code_clears() -> None:
    watch = Watch()
    watch.event(1, UNKNOWN, severity=0)
    watch.read(4)
    watch.read(5, UNKNOWN)
    assert watch.chip(5).level is FaultLevel.SEPARATE


def test_an_unknown_code_is_not_hidden_by_a_known_one() -> None:
    watch = Watch()
    watch.read(1, NOT_HANDLE, UNKNOWN)
    assert watch.chip(1).level is FaultLevel.SEPARATE


def test_an_unknown_chip_and_an_event_of_it_are_ignored() -> None:
    watch = Watch()
    watch.event(1, SEPARATE, phy_id=5)
    watch.read(1, SEPARATE, phy_id=5)
    assert [(chip.chip_id, chip.healthy) for chip in watch.judge(1).chips] == [(0, True)]


def test_a_dropped_card_is_unhealthy_and_keeps_its_earlier_faults() -> None:
    watch = Watch()
    watch.read(1, SUB_HEALTH)
    watch.read(2, dropped=True)
    chip = watch.chip(2)
    assert [fault.code for fault in chip.faults] == [CARD_DROP, SUB_HEALTH]
    assert (chip.reason, chip.healthy) == ("CardDropped", False)
    watch.read(3, SUB_HEALTH)
    assert [(fault.code, fault.since_ms) for fault in watch.chip(3).faults] == [(SUB_HEALTH, WALL_MS + 1000)]


# Events and readings.


def test_a_fault_known_by_events_only_lasts_until_an_event_ends_it() -> None:
    watch = Watch(hold_s=0)
    watch.event(1, UNKNOWN, severity=0)
    watch.event(1, SEPARATE)
    watch.answer(2)
    watch.answer(3, dropped=True)
    assert watch.why(3) == "CardDropped"
    watch.answer(4)
    assert [fault.code for fault in watch.chip(4).faults] == [SEPARATE, UNKNOWN]
    watch.event(5, SEPARATE, "recover")
    watch.answer(6)
    assert watch.chip(6).healthy
    assert [(fault.code, fault.level) for fault in watch.chip(6).faults] == [(UNKNOWN, FaultLevel.NOT_HANDLE)]


def test_a_link_found_down_by_polling_comes_back_by_polling() -> None:
    watch = Watch(hold_s=0)
    watch.answer(1, link_up=False)
    assert [fault.code for fault in watch.chip(1).network_faults] == [LINK_DOWN]
    watch.answer(2, link_up=True)
    assert not watch.chip(2).network_faults
    watch.event(3, LINK_DOWN)
    watch.answer(4, link_up=True)  # the link may have been read before the event
    assert [fault.code for fault in watch.chip(4).network_faults] == [LINK_DOWN]
    watch.event(5, LINK_DOWN, "recover")
    watch.answer(6, link_up=True)
    assert not watch.chip(6).network_faults


def test_restoring_after_the_first_reading_is_an_error() -> None:
    watch = Watch()
    with pytest.raises(ValueError, match="before the first reading"):
        watch.book.restore(EarlierState(), moment(1))


def test_a_reset_ends_faults_known_by_events_only() -> None:
    watch = Watch(hold_s=0)
    watch.answer(1)
    watch.event(2, SEPARATE)
    watch.event(3, RESET_FINISHED, "once")
    watch.answer(4)
    assert watch.chip(4).healthy
    watch.read(5, SEPARATE)
    watch.event(6, RESET_FINISHED, "once")
    assert watch.why(6) == "Fault"  # a reading decides


def test_a_reading_finds_faults_and_recoveries_without_events() -> None:
    watch = Watch(hold_s=0)
    watch.read(5, SEPARATE)
    assert watch.why(5) == "Fault"
    watch.read(10)
    assert watch.chip(10).healthy


def test_a_reading_started_before_an_event_does_not_undo_it() -> None:
    watch = Watch(hold_s=0)
    watch.event(1.5, SEPARATE)
    watch.read(1)
    assert watch.why(2) == "Fault"
    watch.event(3.5, SEPARATE, "recover")
    watch.read(3, SEPARATE)
    assert watch.chip(4).healthy


def test_a_reading_started_long_after_an_event_overrides_it() -> None:
    watch = Watch(hold_s=0)
    watch.event(1, SEPARATE)
    watch.read(4)
    assert watch.chip(4).healthy
    watch.event(5, SEPARATE)
    watch.event(6, SEPARATE, "recover")
    watch.read(7, SEPARATE)
    assert watch.why(7) == "Fault"


def test_readings_count_in_the_order_in_which_they_started() -> None:
    watch = Watch(hold_s=0)
    watch.read(2, SEPARATE)
    watch.read(1)
    assert watch.why(3) == "Fault"


def test_an_event_is_believed_until_the_list_of_codes_has_settled() -> None:
    watch = Watch()
    watch.read(2)
    watch.event(1, SEPARATE)
    for at_s in (2, 3, 3.9):
        watch.read(at_s)
        assert watch.why(at_s) == "Fault"
    watch.read(4)
    assert watch.why(4) == "Recovering"
    watch.read(6, UNKNOWN)
    watch.event(5, UNKNOWN, severity=1)
    assert watch.chip(6).level is FaultLevel.NOT_HANDLE


def test_a_fault_that_occurred_once_is_shown_until_the_next_reading() -> None:
    watch = Watch()
    watch.event(1, SUB_HEALTH, "once")
    assert watch.chip(4).level is FaultLevel.SUB_HEALTH
    watch.read(5)
    assert watch.chip(5).level is FaultLevel.NORMAL
    watch.event(6, SUB_HEALTH, "once")
    watch.read(7, SUB_HEALTH)
    watch.event(8, SUB_HEALTH, "recover")
    assert watch.chip(8).level is FaultLevel.NORMAL


# Network.


def test_a_lost_link_is_raised_after_20_s_and_not_sent_to_the_kubelet() -> None:
    watch = Watch()
    watch.event(10, LINK_DOWN)
    assert watch.chip(30).network_healthy
    assert watch.chip(30).network_level is FaultLevel.NOT_HANDLE
    assert watch.next_s(30) == after(30)
    seen = watch.judge(after(30))
    chip = seen.chips[0]
    assert (chip.healthy, chip.network_healthy, chip.reason) == (True, False, "")
    assert chip.sentence == "network: 81078603 (PreSeparateNPU)"
    # As in the reference's report: the time is that of the alarm (docs/spec/node-report.md#network-fault).
    assert chip.network_faults == (FaultRecord(LINK_DOWN, "81078603", WALL_MS + 30_000, FaultLevel.PRE_SEPARATE),)
    reason = UpgradeReason(LINK_DOWN, FaultLevel.PRE_SEPARATE, "FaultDuration", WALL_MS + 30_000)
    assert seen.upgrade_reasons == {0: (reason,)}
    assert seen.manually_separated == 0


def test_a_restored_link_is_healthy_after_60_s() -> None:
    watch = Watch(hold_s=0)
    watch.event(10, LINK_DOWN)
    watch.event(40, LINK_DOWN, "recover")
    assert not watch.chip(100).network_healthy
    chip = watch.chip(after(100))
    assert (chip.network_healthy, chip.network_faults) == (True, ())


def test_sub_health_makes_a_network_unhealthy_but_not_a_chip() -> None:
    watch = Watch()
    watch.read(1, 0x110000002)
    chip = watch.chip(1)
    assert (chip.healthy, chip.network_healthy, chip.network_level) == (True, False, FaultLevel.SUB_HEALTH)


def test_a_port_without_link_has_the_link_fault_unless_it_has_another() -> None:
    watch = Watch()
    watch.read(1, link_up=False)
    assert [fault.code for fault in watch.chip(1).network_faults] == [LINK_DOWN]
    watch.read(2, 0x81078607, link_up=False)
    assert [fault.code for fault in watch.chip(2).network_faults] == [0x81078607]
    watch.read(3, link_up=True)
    assert watch.chip(3).network_faults == ()


@pytest.mark.parametrize("link_up", [None, False])
def test_an_announced_loss_of_the_link_stays_without_a_fresh_answer(link_up: bool | None) -> None:  # noqa: FBT001 - a parameter
    watch = Watch()
    watch.event(10, LINK_DOWN)
    for at_s in (10.9, 14, 20, 29.9):
        watch.read(at_s, link_up=link_up)
        assert watch.chip(at_s).network_level is FaultLevel.NOT_HANDLE
    watch.read(30.1, link_up=link_up)
    assert watch.chip(30.1).network_level is FaultLevel.PRE_SEPARATE
    assert not watch.chip(30.1).network_healthy


def test_an_old_answer_about_the_link_does_not_end_its_announced_loss() -> None:
    watch = Watch()
    watch.event(300, LINK_DOWN)
    for at_s in (301, 310, 331):
        watch.read(at_s, link_up=True, link_s=299)
    assert not watch.chip(331).network_healthy
    watch.read(340, link_up=True, link_s=302.9)  # too soon after the event to be certain
    assert watch.chip(340).network_faults
    watch.read(350, link_up=True, link_s=303)
    watch.judge(350)
    assert watch.chip(350).network_level is FaultLevel.PRE_SEPARATE  # until it has been up for a minute
    assert watch.chip(411).network_level is FaultLevel.NORMAL


def test_an_old_answer_about_the_link_does_not_begin_its_loss_again() -> None:
    watch = Watch()
    watch.read(10, link_up=False, link_s=10)
    watch.event(12, LINK_DOWN, "recover")
    watch.read(13, link_up=False, link_s=10)
    assert watch.chip(13).network_faults == ()
    watch.read(20, link_up=False, link_s=19)
    assert [fault.code for fault in watch.chip(20).network_faults] == [LINK_DOWN]


def test_a_loss_of_the_link_ends_with_its_event_or_in_the_list_that_had_it() -> None:
    watch = Watch()
    watch.event(10, LINK_DOWN)
    watch.read(11)
    watch.event(12, LINK_DOWN, "recover")
    assert watch.chip(12).network_faults == ()
    watch.event(20, LINK_DOWN)
    watch.read(21, LINK_DOWN)
    watch.read(30)
    assert watch.chip(30).network_faults == ()


def test_an_announced_fault_of_the_port_stays_until_its_end_is_announced() -> None:
    watch = Watch()
    watch.event(10, 0x110000002)
    watch.read(100)
    assert not watch.chip(100).network_healthy
    watch.event(101, 0x110000002, "recover")
    watch.judge(101)
    assert watch.chip(102).network_healthy


def test_a_link_that_the_tool_found_down_stays_so_while_the_tool_fails() -> None:
    watch = Watch()
    watch.read(1, link_up=False)
    watch.read(2)
    assert [fault.code for fault in watch.chip(2).network_faults] == [LINK_DOWN]
    watch.read(3, link_up=True)
    assert watch.chip(3).network_faults == ()


# Silence.


def test_a_new_chip_is_healthy_as_soon_as_it_is_read() -> None:
    watch = Watch(read=False)
    assert watch.why(0) == "DriverSilent"
    watch.read(1)
    assert watch.chip(1).healthy


def test_a_chip_not_read_for_long_is_unhealthy_and_recovers_damped() -> None:
    watch = Watch(stale_s=10)
    assert watch.next_s(0) == 10
    assert watch.chip(math.nextafter(10, 0)).healthy
    chip = watch.chip(10)
    assert (chip.reason, chip.sentence) == ("DriverSilent", "the driver has not reported it for 10 s")
    assert chip.network_healthy
    watch.read(12)
    assert watch.why(12) == "Recovering"
    assert watch.next_s(12) == 13
    assert watch.chip(13).healthy


def test_a_chip_no_longer_discovered_stays_listed_as_unhealthy() -> None:
    watch = Watch(count=2, stale_s=10)
    watch.count = 1
    watch.discover(5)
    watch.read(5)
    watch.event(5, SEPARATE, phy_id=1)
    chips = watch.judge(5).chips  # at once, not when its last reading is too old
    assert [chip.reason for chip in chips] == ["", "DriverSilent"]
    assert (chips[1].in_doubt, chips[1].sentence) == (True, "the driver does not list it")
    watch.count = 2
    watch.discover(6)
    watch.read(6, phy_id=1)
    watch.judge(6)
    assert [chip.reason for chip in watch.judge(7).chips] == ["", ""]


def test_a_network_does_not_become_healthy_while_nothing_is_read() -> None:
    watch = Watch(stale_s=10)
    watch.read(1, 0x110000002)
    assert not watch.chip(1).network_healthy
    watch.event(10.5, 0x110000002, "recover")
    assert not watch.chip(11).network_healthy
    assert not watch.chip(100).network_healthy
    watch.read(200)
    watch.judge(200)
    assert watch.chip(201).network_healthy


def test_silence_hides_no_known_fault() -> None:
    watch = Watch(stale_s=10)
    watch.read(1, SEPARATE)
    assert watch.why(100) == "Fault"


# Recovery.


def test_a_recovered_chip_is_held_back_before_it_is_used_again() -> None:
    watch = Watch(hold_s=2)
    watch.event(1, SEPARATE)
    watch.event(5, SEPARATE, "recover")
    chip = watch.chip(5)
    assert (chip.reason, chip.level) == ("Recovering", FaultLevel.NORMAL)
    assert chip.sentence == "no fault, held back for 2 s before it is used again"
    assert watch.next_s(6) == 7
    assert watch.why(math.nextafter(7, 0)) == "Recovering"
    assert watch.chip(7).healthy


def test_a_fault_between_two_judgements_is_held_like_any_other() -> None:
    watch = Watch()
    watch.event(1, SEPARATE)
    watch.event(1.1, SEPARATE, "recover")
    assert watch.why(1.2) == "Recovering"


def test_a_slow_reading_does_not_shorten_the_hold() -> None:
    watch = Watch(hold_s=1)
    watch.event(1, SEPARATE)
    assert watch.why(10) == "Fault"
    watch.read(5)
    assert watch.next_s(10) == 11


def test_each_relapse_doubles_the_hold_until_a_long_quiet_time() -> None:
    watch = Watch(hold_s=1)

    def held_s(at_s: float) -> float:
        watch.event(at_s, SEPARATE)
        watch.event(at_s + 1, SEPARATE, "recover")
        due_s = watch.next_s(at_s + 1)
        assert due_s is not None
        assert watch.chip(due_s).healthy
        return due_s - at_s - 1

    assert [held_s(at_s) for at_s in (10, 20, 30, 40)] == [1, 2, 4, 8]
    assert held_s(60) == 16
    assert held_s(1000) == 1  # quiet for more than 300 s


def test_the_hold_has_a_limit() -> None:
    watch = Watch(hold_s=100)
    for at_s in (0, 1000, 1500, 2000):
        watch.event(at_s, SEPARATE)
        watch.event(at_s + 1, SEPARATE, "recover")
        watch.judge(at_s + 400)
    watch.event(2500, SEPARATE)
    watch.event(2501, SEPARATE, "recover")
    assert watch.next_s(2501) == 2801


def test_a_chip_in_use_that_stayed_healthy_recovers_without_a_hold() -> None:
    watch = Watch()
    watch.event(1, PRE_SEPARATE)
    watch.event(2, PRE_SEPARATE, "recover")
    assert watch.chip(2, 0).healthy
    assert watch.why(2) == "Recovering"


# Operators.


def test_an_operator_separates_and_releases_any_chip() -> None:
    watch = Watch(count=20)
    watch.book.separate(chip_set([17, 99]), moment(1))
    judged = watch.judge(1)
    assert judged.manually_separated == chip_set([17, 99])
    chip = judged.chips[17]
    assert (chip.reason, chip.level, chip.faults) == ("ManuallySeparated", FaultLevel.MANUALLY_SEPARATE, ())
    assert chip.sentence == "separated until an operator puts it back"
    why = UpgradeReason(0, FaultLevel.MANUALLY_SEPARATE, "FaultAutofill", WALL_MS + 1000)
    assert judged.upgrade_reasons == {17: (why,), 99: (why,)}
    watch.book.release(chip_set([17, 99]), moment(2))
    judged = watch.judge(2)
    assert (judged.manually_separated, judged.upgrade_reasons) == (0, {})
    assert judged.chips[17].healthy


def test_a_chip_separated_by_rule_and_operator_stays_separated_when_the_rule_ends() -> None:
    frequent = UpgradeReason(LINK_DOWN, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS)
    watch = restored(Watch(read=False, discover=False, hold_s=0), 1, frequent)
    watch.read(0)
    assert watch.judge(10).manually_separated == 1
    assert watch.chip(10).healthy  # the rule bars the port only
    watch.book.separate(1, moment(11))
    assert watch.why(11) == "ManuallySeparated"
    assert watch.judge(200_000).manually_separated == 1
    assert watch.why(200_000) == "ManuallySeparated"
    watch.book.release(1, moment(200_001))
    assert watch.judge(200_001).manually_separated == 0
    assert watch.chip(200_001).healthy


def test_a_released_chip_with_another_fault_stays_unhealthy() -> None:
    watch = Watch()
    watch.book.separate(1, moment(1))
    watch.event(2, SEPARATE)
    watch.judge(2)
    watch.book.release(1, moment(3))
    assert watch.why(3) == "Fault"


def test_releasing_a_chip_that_is_not_separated_changes_nothing() -> None:
    watch = Watch()
    watch.event(1, SEPARATE)
    watch.event(2, SEPARATE, "recover")
    watch.book.release(1, moment(2))
    assert watch.why(2) == "Recovering"


def test_with_manual_readmission_a_recovered_chip_awaits_it() -> None:
    watch = Watch(count=2, readmission="manual")
    watch.event(1, SEPARATE)
    assert watch.judge(1).awaiting_readmission == 0
    watch.event(2, SEPARATE, "recover")
    assert watch.judge(2).awaiting_readmission == 0
    judged = watch.judge(3)
    assert (judged.awaiting_readmission, judged.chips[0].reason) == (1, "AwaitingReadmission")
    assert watch.next_s(3) == 1e9
    watch.book.readmit(0b11, 0, moment(4))
    assert watch.chip(4).healthy
    assert watch.judge(4).awaiting_readmission == 0


def test_a_chip_with_a_fault_cannot_be_readmitted() -> None:
    watch = Watch(readmission="manual")
    watch.event(1, SEPARATE)
    watch.book.readmit(1, 0, moment(2))
    watch.event(3, SEPARATE, "recover")
    watch.judge(3)
    assert watch.why(10) == "AwaitingReadmission"


def test_a_network_port_awaits_readmission_separately() -> None:
    watch = Watch(readmission="manual")
    watch.read(1, 0x110000002)
    watch.read(2)
    watch.judge(2)
    judged = watch.judge(3)
    chip = judged.chips[0]
    assert (chip.healthy, chip.network_healthy) == (True, False)
    assert (judged.awaiting_readmission, judged.network_awaiting_readmission) == (0, 1)
    watch.book.readmit(1, 0, moment(4))
    assert not watch.chip(4).network_healthy
    watch.book.readmit(0, 1, moment(5))
    assert watch.chip(5).network_healthy


def test_a_chip_kept_by_its_pod_through_a_fault_needs_no_readmission() -> None:
    watch = Watch(readmission="manual", hold_s=0)
    watch.event(1, PRE_SEPARATE)
    assert watch.chip(1, 0).healthy
    watch.event(2, PRE_SEPARATE, "recover")
    assert watch.chip(2).healthy
    watch.event(3, PRE_SEPARATE)
    assert watch.why(3) == "Fault"
    watch.event(4, PRE_SEPARATE, "recover")
    assert watch.why(4) == "AwaitingReadmission"


def test_silence_and_an_operators_own_separation_need_no_readmission() -> None:
    watch = Watch(readmission="manual", stale_s=10)
    assert watch.why(10) == "DriverSilent"
    watch.read(11)
    watch.judge(11)
    assert watch.chip(12).healthy
    watch.book.separate(1, moment(13))
    assert watch.why(13) == "ManuallySeparated"
    watch.book.release(1, moment(14))
    assert watch.chip(14).healthy


def test_reloaded_settings_take_effect() -> None:
    watch = Watch(hold_s=1, stale_s=10)
    watch.book.tune(hold_s=5, stale_s=20)
    watch.event(1, SEPARATE)
    watch.event(2, SEPARATE, "recover")
    assert watch.next_s(2) == 7
    assert watch.next_s(7) == 20


# Restarts.


def restored(
    watch: Watch, separated: int = 0, *reasons: UpgradeReason, awaiting: int = 0, harmless: Collection[int] = ()
) -> Watch:
    """A watch that starts at 0 s with this state of an earlier plugin."""
    reasons_by_chip = {0: reasons} if reasons else {}
    watch.book.restore(EarlierState(separated, reasons_by_chip, awaiting, awaiting, {0: harmless}), moment(0))
    watch.discover(0)
    return watch


def test_a_chip_listed_as_separated_without_a_reason_is_separated() -> None:
    watch = restored(Watch(read=False, discover=False), 1)
    watch.read(0)
    assert watch.why(0) == "ManuallySeparated"
    assert [why.kind for why in watch.judge(0).upgrade_reasons[0]] == ["FaultAutofill"]


def test_upgrade_reasons_survive_a_restart_unchanged() -> None:
    autofill = UpgradeReason(0, FaultLevel.MANUALLY_SEPARATE, "FaultAutofill", WALL_MS - 5000)
    frequent = UpgradeReason(FREQUENT, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS - 4000)
    watch = restored(Watch(read=False, discover=False), 1, autofill, frequent)
    watch.read(0)
    assert watch.judge(0).upgrade_reasons == {0: (autofill, frequent)}
    assert watch.chip(0).faults == (FaultRecord(FREQUENT, "80E18005", WALL_MS - 4000, FaultLevel.MANUALLY_SEPARATE),)


def test_a_chip_released_between_two_plugins_is_released() -> None:
    frequent = UpgradeReason(FREQUENT, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS - 4000)
    watch = restored(Watch(read=False, discover=False), 0, frequent)
    watch.read(0)
    assert watch.chip(0).healthy
    assert watch.judge(0).upgrade_reasons == {}


def test_an_upgrade_reason_that_no_rule_can_release_is_dropped() -> None:
    gone = UpgradeReason(UNKNOWN, FaultLevel.PRE_SEPARATE, "FaultFrequency", WALL_MS)
    short = UpgradeReason(UNKNOWN, FaultLevel.PRE_SEPARATE, "FaultDuration", WALL_MS)
    watch = restored(Watch(read=False, discover=False), 0, gone, short)
    assert watch.judge(0).upgrade_reasons == {}


def test_a_separation_by_frequency_is_released_by_the_wall_clock() -> None:
    release_s = 172_800
    frequent = UpgradeReason(
        LINK_DOWN, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS - 1000 * (release_s - 60)
    )
    watch = restored(Watch(read=False, discover=False, hold_s=0), 1, frequent)
    watch.read(0)
    assert watch.judge(60).manually_separated == 1
    assert not watch.chip(60).network_healthy
    assert watch.next_s(60) == after(60)
    assert watch.judge(after(60)).manually_separated == 0
    assert watch.chip(after(60)).network_healthy


def test_a_chip_cordoned_while_no_plugin_ran_is_not_released_by_the_rule_that_separated_it() -> None:
    frequent = UpgradeReason(LINK_DOWN, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS)
    watch = Watch(read=False, discover=False, hold_s=0)
    watch.book.restore(EarlierState(1, {0: (frequent,)}, cordoned=1), moment(0))
    watch.discover(0)
    watch.read(0)
    assert watch.why(0) == "ManuallySeparated"
    assert watch.judge(200_000).manually_separated == 1


def test_a_long_fault_survives_a_restart_and_ends_60_s_after_it_clears() -> None:
    lasting = UpgradeReason(LINK_DOWN, FaultLevel.PRE_SEPARATE, "FaultDuration", WALL_MS - 1000)
    watch = restored(Watch(read=False, discover=False, hold_s=0), 0, lasting)
    assert not watch.chip(1).network_healthy
    watch.read(5)
    assert not watch.chip(65).network_healthy
    assert watch.chip(after(65)).network_healthy
    watch = restored(Watch(read=False, discover=False, hold_s=0), 0, lasting)
    watch.read(5, LINK_DOWN)
    assert watch.judge(1000).upgrade_reasons == {0: (lasting,)}


def test_a_harmless_unknown_code_stays_so_over_a_restart() -> None:
    watch = restored(Watch(read=False, discover=False), harmless=[UNKNOWN])
    watch.read(0, UNKNOWN, 0xBEEF)
    assert [(fault.code, fault.level) for fault in watch.chip(0).faults] == [
        (0xBEEF, FaultLevel.SEPARATE),
        (UNKNOWN, FaultLevel.NOT_HANDLE),
    ]
    watch.read(1, UNKNOWN)
    assert watch.chip(1).level is FaultLevel.NOT_HANDLE
    watch.event(2, UNKNOWN, severity=3)
    assert watch.chip(2).level is FaultLevel.SEPARATE
    watch = restored(Watch(read=False, discover=False), harmless=[UNKNOWN])
    watch.read(0, UNKNOWN)
    watch.read(1)
    watch.read(2, UNKNOWN)
    assert watch.chip(2).level is FaultLevel.SEPARATE


def test_a_sites_rules_override_what_was_harmless_before_a_restart() -> None:
    watch = restored(Watch(read=False, discover=False), harmless=[SEPARATE])
    watch.read(0, SEPARATE)
    assert watch.chip(0).level is FaultLevel.SEPARATE


def test_a_code_harmless_by_rules_alone_is_not_once_they_omit_it() -> None:
    watch = Watch(read=False, discover=False)
    watch.book.configure(replace(default_rules(), chip={UNKNOWN: FaultLevel.NOT_HANDLE}))
    watch = restored(watch, harmless=[UNKNOWN])
    watch.read(0, UNKNOWN)
    assert watch.chip(0).level is FaultLevel.NOT_HANDLE
    watch.book.configure(default_rules())
    assert watch.judge(1).chips[0].level is FaultLevel.SEPARATE


def test_chips_that_await_readmission_still_do_after_a_restart() -> None:
    watch = restored(Watch(read=False, discover=False, readmission="manual"), awaiting=1)
    judged = watch.judge(0)
    assert (judged.awaiting_readmission, judged.network_awaiting_readmission) == (1, 1)
    watch.read(0)
    assert watch.why(0) == "AwaitingReadmission"
    watch = restored(Watch(read=False, discover=False), awaiting=1)
    watch.read(0)
    assert watch.chip(0).healthy


# A reset by this program.


@pytest.mark.parametrize("code", [FREQUENT, LINK_DOWN])
def test_after_a_reset_the_next_reading_decides_whatever_was_announced_before(code: int) -> None:
    watch = Watch(hold_s=0, count=2)
    for phy_id in (0, 1):
        watch.event(5.0, code, phy_id=phy_id)
    watch.book.was_reset(chip_set((0,)), moment(6.0))
    for phy_id in (0, 1):
        watch.read(6.5, phy_id=phy_id)
    assert not watch.chip(6.5).faults + watch.chip(6.5).network_faults
    other = watch.chip(6.5, phy_id=1)
    assert [fault.code for fault in (*other.faults, *other.network_faults)] == [code]


def test_a_reset_ends_the_faults_of_a_driver_with_events_only() -> None:
    watch = Watch(hold_s=0, read=False)
    watch.answer(0)
    watch.event(1.0, SEPARATE)
    watch.book.was_reset(chip_set((0, 7)), moment(2.0))
    watch.answer(3.0)
    assert watch.chip(3.0).healthy
