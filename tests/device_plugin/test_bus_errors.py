"""Bus errors caused by a double-bit error of the chip's memory (docs/spec/faults.md#duration-rule)."""

import math
from dataclasses import replace

import pytest

from device_plugin.health.fault_rules import DurationRule, FaultRules, FrequencyRule
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import HBM_DOUBLE_BIT, FaultLevel
from tests.device_plugin.watch import WALL_MS, Watch

AIC, AIV = 0x80C98009, 0x80CB8009
LASTING = DurationRule(HBM_DOUBLE_BIT, 30, 30, FaultLevel.SEPARATE)
RULES = replace(default_rules(), duration={HBM_DOUBLE_BIT: (LASTING,)})


def with_counter(times: int) -> FaultRules:
    """Rules that raise a bus error that occurs this often."""
    rule = FrequencyRule(AIC, 1000, times, FaultLevel.MANUALLY_SEPARATE, None)
    return replace(RULES, frequency={AIC: (rule,)})


def faults(watch: Watch, at_s: float) -> set[int]:
    return {fault.code for fault in watch.chip(at_s).faults}


def after(at_s: float) -> float:
    return math.nextafter(at_s, math.inf)


@pytest.mark.parametrize("code", [AIC, AIV])
def test_a_bus_error_is_held_for_5_s_and_then_counts_from_its_start(code: int) -> None:
    watch = Watch(RULES)
    watch.event(10, code)
    watch.read(11, code)
    assert faults(watch, 15) == set()
    assert watch.chip(15).healthy
    assert watch.next_s(15) == after(15)
    (fault,) = watch.chip(after(15)).faults
    assert (fault.code, fault.since_ms) == (code, WALL_MS + 10_000)


def test_without_a_duration_rule_for_the_memory_error_nothing_is_held() -> None:
    watch = Watch()
    watch.event(10, AIC)
    assert faults(watch, 10) == {AIC}
    watch.event(11, HBM_DOUBLE_BIT)
    assert faults(watch, 20) == {AIC, HBM_DOUBLE_BIT}


@pytest.mark.parametrize("code", [AIC, AIV])
@pytest.mark.parametrize(
    ("bus_s", "memory_s", "dropped"),
    [(10, 15, True), (10, 15.001, False), (15, 10, True), (15.001, 10, False), (10, 10, True)],
)
def test_a_bus_error_within_5_s_of_the_memory_error_is_dropped(
    code: int, bus_s: float, memory_s: float, *, dropped: bool
) -> None:
    watch = Watch(RULES)
    for at_s, each in sorted([(bus_s, code), (memory_s, HBM_DOUBLE_BIT)]):
        watch.event(at_s, each)
    expected = {HBM_DOUBLE_BIT} | (set() if dropped else {code})
    assert faults(watch, 21) == expected
    watch.read(22, code, HBM_DOUBLE_BIT)
    assert faults(watch, 100) == expected


def test_a_bus_error_alone_in_the_first_reading_counts_at_once() -> None:
    watch = Watch(RULES, read=False)
    watch.read(1, AIC)
    assert faults(watch, 1) == {AIC}
    assert not watch.chip(1).healthy
    watch.event(2, HBM_DOUBLE_BIT)
    assert faults(watch, 2) == {AIC, HBM_DOUBLE_BIT}


def test_both_errors_in_the_first_reading_count_as_one() -> None:
    watch = Watch(RULES, read=False)
    watch.read(1, AIC, HBM_DOUBLE_BIT)
    assert faults(watch, 100) == {HBM_DOUBLE_BIT}


def test_a_bus_error_found_by_polling_is_held_as_well() -> None:
    watch = Watch(RULES)
    watch.read(10, AIC)
    assert faults(watch, 15) == set()
    assert faults(watch, after(15)) == {AIC}


def test_a_dropped_bus_error_that_occurs_again_later_counts() -> None:
    watch = Watch(RULES)
    watch.event(10, HBM_DOUBLE_BIT)
    watch.event(11, AIC)
    watch.event(12, AIC, "recover")
    watch.read(13, HBM_DOUBLE_BIT)
    watch.event(20, AIC)
    assert faults(watch, 25) == {HBM_DOUBLE_BIT}
    assert faults(watch, after(25)) == {HBM_DOUBLE_BIT, AIC}
    watch.event(30, AIC, "recover")
    assert faults(watch, 30) == {HBM_DOUBLE_BIT}


def test_a_dropped_bus_error_stays_dropped_while_it_is_read() -> None:
    watch = Watch(RULES)
    watch.event(10, HBM_DOUBLE_BIT)
    watch.event(11, AIC)
    watch.event(20, AIC, "recover")
    watch.read(20.3, HBM_DOUBLE_BIT, AIC)
    assert faults(watch, 60) == {HBM_DOUBLE_BIT}


def test_a_passed_bus_error_that_is_still_read_is_not_held_again() -> None:
    watch = Watch(RULES)
    watch.event(10, AIC)
    assert faults(watch, 16) == {AIC}
    watch.event(20, AIC, "recover")
    watch.read(20.3, AIC)
    assert faults(watch, 20.3) == {AIC}


def test_a_held_bus_error_that_is_still_read_keeps_its_start() -> None:
    lasting = DurationRule(AIC, 8, 1, FaultLevel.MANUALLY_SEPARATE)
    watch = Watch(replace(RULES, duration={**RULES.duration, AIC: (lasting,)}))
    watch.event(10, AIC)
    watch.event(12, AIC, "recover")
    watch.read(12.3, AIC)
    assert faults(watch, 15) == set()
    assert faults(watch, after(15)) == {AIC}
    watch.event(16, HBM_DOUBLE_BIT)  # more than 5 s after the bus error occurred
    assert faults(watch, 16) == {AIC, HBM_DOUBLE_BIT}
    assert watch.chip(18).level is not FaultLevel.MANUALLY_SEPARATE
    assert watch.chip(after(18)).level is FaultLevel.MANUALLY_SEPARATE


def test_occurrences_announced_out_of_order_are_passed_on_in_that_order() -> None:
    watch = Watch(RULES)
    watch.event(10, AIC, "once")
    watch.event(9.7, AIC)
    for at_s in (10, 14.8):
        assert watch.next_s(at_s) == after(15)
        assert faults(watch, at_s) == set()
    assert faults(watch, after(15)) == {AIC}


def test_held_errors_are_counted_when_passed_on_and_dropped_ones_never() -> None:
    watch = Watch(with_counter(2))
    for at_s in (10, 12):
        watch.event(at_s, AIC)
        watch.event(at_s + 1, AIC, "recover")
    watch.read(14)
    assert watch.chip(15).healthy
    assert watch.chip(after(15)).level is FaultLevel.NORMAL
    assert watch.chip(after(17)).level is FaultLevel.MANUALLY_SEPARATE

    watch = Watch(with_counter(2))
    watch.event(9, AIC, "once")
    watch.event(11, HBM_DOUBLE_BIT)
    watch.event(12, AIC, "once")
    watch.event(17, AIC, "once")
    assert faults(watch, 17) == {HBM_DOUBLE_BIT}
    assert faults(watch, 23) == {HBM_DOUBLE_BIT, AIC}
    assert watch.judge(23).manually_separated == 0


def test_rules_without_the_filter_release_what_is_held_or_dropped() -> None:
    for code_s, memory_s in ((10.0, 1.0), (10.0, 9.0)):
        watch = Watch(RULES)
        watch.event(memory_s, HBM_DOUBLE_BIT)
        watch.event(code_s, AIC)
        assert faults(watch, 11) == {HBM_DOUBLE_BIT}
        watch.book.configure(default_rules())
        assert faults(watch, 12) == {HBM_DOUBLE_BIT, AIC}


def test_other_rules_with_the_filter_change_nothing() -> None:
    watch = Watch(RULES)
    watch.event(9, HBM_DOUBLE_BIT)
    watch.event(10, AIC)
    lasting = replace(RULES, duration={**RULES.duration, AIC: (DurationRule(AIC, 1, 1, FaultLevel.SEPARATE),)})
    watch.book.configure(lasting)
    assert faults(watch, 100) == {HBM_DOUBLE_BIT}
