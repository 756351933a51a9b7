"""Faults that occur too often or last too long."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_set
from device_plugin.driver import LINK_DOWN
from device_plugin.health.damping import Damper, Damping
from device_plugin.health.fault_rules import DurationRule, FaultRules, FrequencyRule
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import FaultLevel
from device_plugin.health.upgrades import Debounce, UpgradeReason
from tests.device_plugin.builders import server
from tests.device_plugin.watch import FREQUENT, NOT_HANDLE, PRE_SEPARATE, WALL_MS, Watch, moment

CODE = NOT_HANDLE  # harmless by itself, so that the effect of a rule is visible


def rules_of(*rules: FrequencyRule | DurationRule) -> FaultRules:
    """The default levels with only these rules."""
    default = default_rules()
    frequency: dict[int, tuple[FrequencyRule, ...]] = {}
    duration: dict[int, tuple[DurationRule, ...]] = {}
    for rule in rules:
        if isinstance(rule, FrequencyRule):
            frequency[rule.code] = (*frequency.get(rule.code, ()), rule)
        else:
            duration[rule.code] = (*duration.get(rule.code, ()), rule)
    return FaultRules(default.chip, default.network, frequency, duration, default.spellings, default.switches)


def often(
    times: int, level: FaultLevel = FaultLevel.SEPARATE, release_s: int | None = 60, code: int = CODE
) -> FrequencyRule:
    return FrequencyRule(code, 100, times, level, release_s)


def lasting(fault_s: int, recover_s: int, level: FaultLevel = FaultLevel.SEPARATE, code: int = CODE) -> DurationRule:
    return DurationRule(code, fault_s, recover_s, level)


def blink(watch: Watch, at_s: float, code: int = CODE) -> None:
    """The fault occurs and clears at the same time."""
    watch.event(at_s, code)
    watch.event(at_s, code, "recover")


def after(at_s: float) -> float:
    return math.nextafter(at_s, math.inf)


# Duration.


def test_a_fault_counts_only_if_it_lasts_longer_than_the_time() -> None:
    for lasted_s, level in ((20.0, FaultLevel.NOT_HANDLE), (20.001, FaultLevel.PRE_SEPARATE)):
        watch = Watch()
        watch.event(7, LINK_DOWN)
        watch.event(7 + lasted_s, LINK_DOWN, "recover")
        watch.event(7 + lasted_s, LINK_DOWN)
        assert watch.chip(7 + lasted_s).network_level is level


def test_a_recovery_counts_only_if_it_lasts_longer_than_the_time() -> None:
    for gone_s, level in ((60.0, FaultLevel.PRE_SEPARATE), (60.001, FaultLevel.NOT_HANDLE)):
        watch = Watch()
        watch.event(7, LINK_DOWN)
        watch.event(100, LINK_DOWN, "recover")
        watch.event(100 + gone_s, LINK_DOWN)
        assert watch.chip(100 + gone_s).network_level is level


def test_the_alarm_has_the_time_at_which_it_was_due() -> None:
    watch = Watch()
    watch.event(7, LINK_DOWN)
    assert [why.time_ms for why in watch.judge(500).upgrade_reasons[0]] == [WALL_MS + 27_000]


def test_a_fault_that_occurred_once_does_not_last() -> None:
    watch = Watch(rules_of(lasting(5, 5)))
    watch.event(1, CODE, "once")
    assert watch.chip(100).level is FaultLevel.NOT_HANDLE


def test_a_fault_that_cleared_briefly_is_still_the_same_alarm() -> None:
    watch = Watch(rules_of(lasting(5, 5), often(2, FaultLevel.MANUALLY_SEPARATE, None)))
    watch.event(1, CODE)
    watch.event(10, CODE, "recover")
    watch.event(11, CODE)
    judged = watch.judge(100)
    assert [why.time_ms for why in judged.upgrade_reasons[0]] == [WALL_MS + 6000]
    assert judged.manually_separated == 0


def test_a_code_can_be_raised_several_times() -> None:
    watch = Watch(rules_of(lasting(5, 5, FaultLevel.PRE_SEPARATE), lasting(20, 5, FaultLevel.SEPARATE)))
    watch.event(1, CODE)
    levels = [watch.chip(at_s).level for at_s in (6, after(6), 21, after(21))]
    assert levels == [FaultLevel.NOT_HANDLE, FaultLevel.PRE_SEPARATE, FaultLevel.PRE_SEPARATE, FaultLevel.SEPARATE]
    assert [why.level for why in watch.judge(22).upgrade_reasons[0]] == [FaultLevel.PRE_SEPARATE, FaultLevel.SEPARATE]
    assert [fault.level for fault in watch.chip(22).faults] == [FaultLevel.SEPARATE]


def test_a_rule_never_makes_a_fault_less_serious_than_its_code() -> None:
    watch = Watch(rules_of(lasting(5, 5, FaultLevel.SUB_HEALTH, code=FREQUENT)))
    watch.event(1, FREQUENT)
    chip = watch.chip(10)
    assert chip.level is FaultLevel.RESTART
    assert [(fault.level, fault.since_ms) for fault in chip.faults] == [(FaultLevel.RESTART, WALL_MS + 1000)]


def debounced(turns: Sequence[tuple[float, bool]], rule: DurationRule, now_s: float) -> bool:
    """The definition: the state changes once the contrary was true without interruption for more than its time."""
    faulty = False
    ends = [at_s for at_s, _ in turns[1:]] + [now_s]
    run_s = 0.0
    before: bool | None = None
    for (at_s, present), end_s in zip(turns, ends, strict=True):
        run_s = run_s if present is before else at_s
        if present is not faulty and end_s - run_s > (rule.recover_s if faulty else rule.fault_s):
            faulty = present
        before = present
    return faulty


@given(
    st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1, max_size=30),
    st.integers(0, 6),
    st.integers(0, 6),
    st.integers(0, 8),
)
def test_the_debounced_state_follows_its_definition(
    steps: list[tuple[int, bool]], fault_s: int, recover_s: int, wait_s: int
) -> None:
    rule = lasting(fault_s, recover_s)
    debounce, now_s, turns = Debounce(rule), 0, []
    for pause_s, present in steps:
        now_s += pause_s
        debounce.advance(now_s)
        debounce.update(present=present, at=moment(now_s))
        turns.append((float(now_s), present))
    debounce.advance(now_s + wait_s)
    assert debounce.faulty is debounced(turns, rule, now_s + wait_s)


# Frequency.


def test_a_fault_that_occurs_too_often_separates_its_chip() -> None:
    watch = Watch(hold_s=0)
    blink(watch, 1, FREQUENT)
    blink(watch, 2, FREQUENT)
    assert watch.chip(2).healthy
    blink(watch, 3, FREQUENT)
    judged = watch.judge(1e8)
    assert judged.manually_separated == 1
    why = UpgradeReason(FREQUENT, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", WALL_MS + 3000)
    assert judged.upgrade_reasons == {0: (why,)}
    chip = judged.chips[0]
    assert chip.reason == "ManuallySeparated"
    assert chip.sentence == "80E18005 (ManuallySeparateNPU), separated until an operator puts it back"
    watch.book.release(chip_set([0]), moment(1e8))
    judged = watch.judge(1e8)
    assert (judged.manually_separated, judged.upgrade_reasons) == (0, {})
    assert judged.chips[0].healthy


def test_a_release_restarts_the_count() -> None:
    watch = Watch()
    for at_s in (1, 2, 3):
        blink(watch, at_s, FREQUENT)
    watch.book.release(1, moment(4))
    for at_s in (5, 6):
        blink(watch, at_s, FREQUENT)
    assert watch.judge(6).manually_separated == 0
    blink(watch, 7, FREQUENT)
    assert watch.judge(7).manually_separated == 1


@pytest.mark.parametrize(("last_s", "level"), [(101, FaultLevel.SEPARATE), (101.001, FaultLevel.NORMAL)])
def test_only_occurrences_within_the_window_count(last_s: float, level: FaultLevel) -> None:
    watch = Watch(rules_of(often(2)))
    blink(watch, 1)
    blink(watch, last_s)
    assert watch.chip(last_s).level is level


def test_a_fault_is_released_after_more_than_the_release_time() -> None:
    watch = Watch(rules_of(often(2)), hold_s=0)
    blink(watch, 1)
    watch.event(2, CODE)
    watch.event(5, CODE, "recover")
    assert watch.next_s(6) == after(65)
    assert watch.chip(65).level is FaultLevel.SEPARATE
    assert watch.chip(after(65)).healthy
    blink(watch, 70)
    assert watch.chip(70).healthy  # released occurrences no longer count


def test_a_present_fault_is_not_released() -> None:
    watch = Watch(rules_of(often(2)))
    blink(watch, 1)
    watch.event(2, CODE)
    assert watch.next_s(1000) == 1e9  # when the chip would be stale
    assert watch.chip(1000).level is FaultLevel.SEPARATE


def test_a_fault_that_occurs_again_renews_the_raise() -> None:
    watch = Watch(rules_of(often(3)))
    for at_s in (1, 2, 3, 50):
        blink(watch, at_s)
    assert [why.time_ms for why in watch.judge(50).upgrade_reasons[0]] == [WALL_MS + 50_000]
    assert watch.chip(110).level is FaultLevel.SEPARATE
    assert watch.chip(after(110)).level is FaultLevel.NORMAL


def test_a_fault_in_the_first_reading_is_not_a_new_occurrence() -> None:
    watch = Watch(rules_of(often(2)), read=False)
    watch.event(0, CODE)
    watch.read(1, CODE)
    watch.event(2, CODE, "recover")
    blink(watch, 3)
    assert watch.chip(3).level is FaultLevel.NORMAL
    blink(watch, 4)
    assert watch.chip(4).level is FaultLevel.SEPARATE


def test_a_fault_announced_before_the_discovery_counts_at_most_once() -> None:
    watch = Watch(rules_of(often(2)), read=False, discover=False)
    watch.read(1, CODE)
    watch.event(1, CODE)
    watch.discover(2)
    watch.event(2, CODE)  # no reading yet: it may have been present before
    watch.read(3, CODE)
    watch.event(4, CODE)
    assert watch.chip(4).level is FaultLevel.NOT_HANDLE
    watch.read(7)
    watch.event(8, CODE)
    assert watch.chip(8).level is FaultLevel.NOT_HANDLE
    watch.read(11)
    watch.event(12, CODE)
    assert watch.chip(12).level is FaultLevel.SEPARATE


def test_a_fault_of_a_chip_missing_for_a_while_counts_once() -> None:
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE)
    watch.book.on_discovery(replace(server(), chips=()), moment(2))
    watch.event(3, CODE)
    watch.discover(4)
    watch.read(5, CODE)
    watch.event(5, CODE)
    assert watch.chip(5).level is FaultLevel.NOT_HANDLE


def test_each_event_of_a_fault_that_occurs_once_counts() -> None:
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE, "once")
    watch.read(2, CODE)
    assert watch.chip(2).level is FaultLevel.NOT_HANDLE
    watch.event(3, CODE, "recover")
    watch.event(4, CODE, "once")
    assert watch.chip(4).level is FaultLevel.SEPARATE


def test_an_event_older_than_a_reading_still_counts() -> None:
    watch = Watch(rules_of(often(1)))
    watch.read(5)
    watch.event(4, CODE)
    chip = watch.chip(5)
    assert chip.level is FaultLevel.SEPARATE
    assert [fault.since_ms for fault in chip.faults] == [WALL_MS + 4000]


def test_a_fault_announced_as_over_but_still_read_is_not_a_new_one() -> None:
    # A chip can have the same fault in two places: the end of one is announced, and the code stays
    # (docs/spec/faults.md#fault-events).
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE)
    watch.event(5, CODE, "recover")
    watch.read(6, CODE)
    chip = watch.chip(6)
    assert chip.level is FaultLevel.NOT_HANDLE
    assert [fault.since_ms for fault in chip.faults] == [WALL_MS + 1000]
    watch.event(7, CODE, "recover")
    watch.event(8, CODE)
    watch.read(9, CODE)
    assert watch.chip(9).level is FaultLevel.SEPARATE  # announced as occurred, which counts


def test_a_fault_that_a_reading_cleared_counts_again() -> None:
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE)
    watch.event(5, CODE, "recover")
    watch.read(8)
    watch.read(9, CODE)
    assert watch.chip(9).level is FaultLevel.SEPARATE


def test_a_reading_started_before_the_announced_end_does_not_count() -> None:
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE)
    watch.event(5, CODE, "recover")
    watch.read(4, CODE)
    assert watch.chip(5).faults == ()
    watch.read(6, CODE)
    assert watch.chip(6).level is FaultLevel.NOT_HANDLE


def test_a_repeated_event_of_a_present_fault_counts_once() -> None:
    watch = Watch(rules_of(often(2)))
    watch.event(1, CODE)
    watch.event(2, CODE)
    watch.read(3, CODE)
    assert watch.chip(3).level is FaultLevel.NOT_HANDLE


def test_a_code_with_a_duration_rule_counts_only_if_it_lasts() -> None:
    watch = Watch()  # LINK_DOWN: 5 times in 24 h, each of more than 20 s
    for at_s in range(0, 1000, 100):
        blink(watch, at_s, LINK_DOWN)
    assert watch.judge(1000).manually_separated == 0
    for at_s in range(1000, 2000, 200):
        watch.event(at_s, LINK_DOWN)
        watch.event(at_s + 30, LINK_DOWN, "recover")
    judged = watch.judge(2000)
    assert judged.manually_separated == 1
    chip = judged.chips[0]
    # A network fault is not sent to the kubelet (docs/spec/faults.md#network-health).
    assert (chip.healthy, chip.network_level) == (True, FaultLevel.MANUALLY_SEPARATE)
    # It cleared 60 s after the last recovery, and is released 48 h after that.
    assert watch.next_s(2000) == after(1830 + 60 + 172_800)


def test_a_lasting_fault_counts_once_for_all_its_duration_rules() -> None:
    rules = rules_of(
        lasting(20, 5, FaultLevel.SUB_HEALTH),
        lasting(5, 9, FaultLevel.SUB_HEALTH),
        often(2, FaultLevel.PRE_SEPARATE, 60),
    )
    watch = Watch(rules)
    watch.event(1, CODE)
    assert watch.chip(50).level is FaultLevel.SUB_HEALTH
    watch.event(50, CODE, "recover")
    watch.event(70, CODE)
    assert watch.chip(76).level is FaultLevel.PRE_SEPARATE
    watch.event(100, CODE, "recover")
    watch.event(107, CODE)  # over for one of the rules, at 105, but not for the other
    assert watch.chip(500).level is FaultLevel.PRE_SEPARATE
    watch.event(500, CODE, "recover")
    assert watch.chip(569).level is FaultLevel.PRE_SEPARATE
    assert watch.chip(after(569)).level is FaultLevel.NORMAL


def test_a_release_before_a_fault_lasted_counts_without_a_judgement() -> None:
    watch = Watch(rules_of(lasting(5, 5, FaultLevel.SUB_HEALTH), often(2, FaultLevel.PRE_SEPARATE, 60)))
    for at_s in (1, 21):
        watch.event(at_s, CODE)
        watch.event(at_s + 10, CODE, "recover")
    assert watch.chip(31).level is FaultLevel.PRE_SEPARATE
    watch.event(95, CODE)  # released at 31 + 5 + 60 = 96; lasting from 100
    assert watch.chip(101).level is FaultLevel.SUB_HEALTH


def test_overlapping_rules_count_separately() -> None:
    watch = Watch(rules_of(often(2, FaultLevel.PRE_SEPARATE), often(4, FaultLevel.MANUALLY_SEPARATE, None)), hold_s=0)
    levels = []
    for at_s in (1, 2, 3, 4):
        blink(watch, at_s)
        levels.append(watch.chip(at_s).level)
    assert levels == [FaultLevel.NORMAL, FaultLevel.PRE_SEPARATE, FaultLevel.PRE_SEPARATE, FaultLevel.MANUALLY_SEPARATE]
    assert watch.chip(100).level is FaultLevel.MANUALLY_SEPARATE
    watch.book.release(1, moment(100))
    assert watch.chip(100).healthy


def test_present_faults_are_judged_again_by_changed_rules() -> None:
    watch = Watch(hold_s=0)
    watch.event(1, CODE)
    watch.event(1, PRE_SEPARATE)
    watch.book.configure(rules_of(lasting(10, 5), often(1)))
    assert watch.chip(2).level is FaultLevel.PRE_SEPARATE
    assert watch.chip(after(11)).level is FaultLevel.SEPARATE
    watch.event(20, PRE_SEPARATE, "recover")
    watch.book.configure(rules_of())
    assert (watch.chip(20).level, watch.judge(20).upgrade_reasons) == (FaultLevel.NOT_HANDLE, {})


def test_changed_rules_keep_separations_by_an_operator() -> None:
    for level, kept in ((FaultLevel.SEPARATE, 0), (FaultLevel.MANUALLY_SEPARATE, 1)):
        watch = Watch(rules_of(often(1, level)))
        blink(watch, 1)
        watch.book.configure(rules_of())
        assert len(watch.judge(1000).upgrade_reasons) == kept


def test_changed_rules_do_not_stop_a_pending_release() -> None:
    rules = rules_of(lasting(50, 5, FaultLevel.SUB_HEALTH), often(1))
    watch = Watch(rules)
    watch.event(1, CODE)
    watch.event(52, CODE, "recover")
    watch.event(80, CODE)
    watch.book.configure(rules)
    assert watch.chip(117).level is FaultLevel.SEPARATE
    assert watch.chip(after(117)).level is FaultLevel.NOT_HANDLE


def test_alarms_due_before_the_rules_changed_follow_the_old_rules() -> None:
    watch = Watch(rules_of(lasting(5, 5), often(1, FaultLevel.MANUALLY_SEPARATE, None)), count=2)
    watch.event(1, CODE)
    watch.read(20, phy_id=1)
    watch.book.configure(rules_of())
    assert watch.judge(20).manually_separated == 1


def test_a_rule_removed_while_its_fault_lasts_still_releases() -> None:
    watch = Watch(rules_of(lasting(5, 5, FaultLevel.SUB_HEALTH), often(1)), hold_s=0)
    watch.event(1, CODE)
    assert watch.chip(10).level is FaultLevel.SEPARATE
    watch.event(11, CODE, "recover")
    watch.book.configure(rules_of(often(1)))
    assert watch.chip(71).level is FaultLevel.SEPARATE
    assert watch.chip(after(71)).healthy


# Damping.


def test_a_damper_without_a_hold_follows_at_once() -> None:
    damper, damping = Damper(), Damping(0, 300)
    for at_s, bad in enumerate([True, False, True, False]):
        damper.update(bad=bad, now_s=at_s, damping=damping)
        assert damper.bad is bad


def test_a_damper_keeps_its_limit_after_a_million_relapses() -> None:
    assert Damping(1, 300).hold_after(1_000_000) == 300
    assert Damping(500, 300).hold_after(0) == 500
