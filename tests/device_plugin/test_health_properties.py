"""Properties of the chips' health, for any driver and any operators."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from device_plugin.driver import LINK_DOWN, Assertion
from device_plugin.health.fault_rules import DurationRule, FaultRules, FrequencyRule
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.health_book import ReadmissionPolicy
from device_plugin.health.levels import CARD_DROP, HBM_DOUBLE_BIT, FaultLevel
from device_plugin.health.snapshot import Chip, Snapshot
from tests.device_plugin.watch import (
    FREQUENT,
    NOT_HANDLE,
    PRE_SEPARATE,
    SEPARATE,
    SUB_HEALTH,
    UNKNOWN,
    Watch,
    moment,
)

LISTED = (FREQUENT, NOT_HANDLE, PRE_SEPARATE, SEPARATE, SUB_HEALTH)
"""Faults that the driver's list of codes has for certain."""

KNOWN = (*LISTED, LINK_DOWN, 0x81078607)
AT_ONCE = (*KNOWN, UNKNOWN, HBM_DOUBLE_BIT)
CODES = (*AT_ONCE, 0x80C98009)  # the last is a bus error, which is held back for a while
LIMIT_S = 300.0


def quick_rules() -> FaultRules:
    """The default levels, with rules that are quick enough for short scripts; some codes have several."""
    default = default_rules()
    return replace(
        default,
        frequency={
            NOT_HANDLE: (
                FrequencyRule(NOT_HANDLE, 60, 2, FaultLevel.PRE_SEPARATE, 60),
                FrequencyRule(NOT_HANDLE, 90, 4, FaultLevel.SEPARATE, 80),
            ),
            LINK_DOWN: (FrequencyRule(LINK_DOWN, 600, 2, FaultLevel.MANUALLY_SEPARATE, 200),),
            FREQUENT: (FrequencyRule(FREQUENT, 100, 3, FaultLevel.MANUALLY_SEPARATE, None),),
        },
        duration={
            LINK_DOWN: (DurationRule(LINK_DOWN, 3, 5, FaultLevel.PRE_SEPARATE),),
            HBM_DOUBLE_BIT: (DurationRule(HBM_DOUBLE_BIT, 3, 5, FaultLevel.SEPARATE),),
            SUB_HEALTH: (
                DurationRule(SUB_HEALTH, 2, 2, FaultLevel.PRE_SEPARATE),
                DurationRule(SUB_HEALTH, 6, 4, FaultLevel.SEPARATE),
            ),
        },
    )


ASSERTIONS: dict[str, Assertion] = {"occur": "occur", "recover": "recover", "once": "once"}
Kind: TypeAlias = Literal["occur", "recover", "once", "read", "drop", "separate", "release", "readmit", "look"]


@dataclass(frozen=True)
class Step:
    """Something happens, ``pause_s`` after the step before."""

    pause_s: float
    kind: Kind
    codes: tuple[int, ...]
    severity: int
    late_s: float
    used: bool

    @property
    def code(self) -> int:
        return self.codes[0] if self.codes else SEPARATE


def steps(*kinds: Kind, codes: Sequence[int] = CODES, late: bool = True) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.builds(
            Step,
            pause_s=st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.0, 3.0, 7.0, 30.0, 100.0]),
            kind=st.sampled_from(kinds),
            codes=st.lists(st.sampled_from(codes), max_size=3, unique=True).map(tuple),
            severity=st.integers(0, 3),
            late_s=st.sampled_from([0.0, 0.3, 1.5]) if late else st.just(0.0),
            used=st.booleans(),
        ),
        max_size=25,
    )


ANYTHING = steps("occur", "recover", "once", "read", "drop", "separate", "release", "readmit", "look")


def tell(watch: Watch, step: Step, now_s: float) -> None:
    """Do a step; a late report is ``late_s`` old."""
    at_s = max(0.0, now_s - step.late_s)
    calls: dict[Kind, Callable[[], object]] = {
        "read": lambda: watch.read(at_s, *step.codes),
        "drop": lambda: watch.read(at_s, dropped=True),
        "separate": lambda: watch.book.separate(1, moment(now_s)),
        "release": lambda: watch.book.release(1, moment(now_s)),
        "readmit": lambda: watch.book.readmit(1, 1, moment(now_s)),
        "look": lambda: None,
    }
    assertion = ASSERTIONS.get(step.kind)
    if assertion is not None:
        watch.event(at_s, step.code, assertion, severity=step.severity)
    else:
        calls[step.kind]()


def play(watch: Watch, script: Sequence[Step]) -> list[tuple[float, bool, Snapshot]]:
    """The time of each step, whether the chip was in use, and the snapshot after it."""
    seen, now_s = [], 0.0
    for step in script:
        now_s += step.pause_s
        tell(watch, step, now_s)
        seen.append((now_s, step.used, watch.judge(now_s, *([0] if step.used else []))))
    return seen


def quick(readmission: ReadmissionPolicy = "automatic", **options: bool) -> Watch:
    return Watch(quick_rules(), stale_s=20, readmission=readmission, **options)


READMISSIONS = st.sampled_from(["automatic", "manual"])
FIRST_READ = st.fixed_dictionaries({"read": st.booleans()})


@given(ANYTHING, READMISSIONS, FIRST_READ)
def test_the_same_input_gives_the_same_health(
    script: list[Step], who: ReadmissionPolicy, read: dict[str, bool]
) -> None:
    assert play(quick(who, **read), script) == play(quick(who, **read), script)


@given(ANYTHING, READMISSIONS)
def test_nothing_changes_before_next_s(script: list[Step], who: ReadmissionPolicy) -> None:
    watch = quick(who)
    now_s = 0.0
    for step in script:
        now_s += step.pause_s
        tell(watch, step, now_s)
        used = [0] if step.used else []
        seen, next_s = watch.judge(now_s, *used), watch.next_s(now_s)
        assert next_s is None or next_s > now_s
        # Judging once more, now or just before the next change, gives the same.
        assert (watch.judge(now_s, *used), watch.next_s(now_s)) == (seen, next_s)
        if next_s is not None and step.kind == "look":
            now_s = math.nextafter(next_s, 0)
            assert (watch.judge(now_s, *used), watch.next_s(now_s)) == (seen, next_s)
    for _ in range(60):
        next_s = watch.next_s(now_s)
        if next_s is None:
            return
        assert next_s > now_s
        now_s = next_s
    raise AssertionError("the health changes for ever although nothing happens")


@given(ANYTHING, READMISSIONS, FIRST_READ)
def test_no_chip_with_a_fault_that_bars_it_is_healthy(
    script: list[Step], who: ReadmissionPolicy, read: dict[str, bool]
) -> None:
    for _, used, seen in play(quick(who, **read), script):
        chip = seen.chips[0]
        levels = [fault.level for fault in chip.faults]
        assert chip.level == max(
            [*levels, FaultLevel.MANUALLY_SEPARATE] if chip.reason == "ManuallySeparated" else levels,
            default=FaultLevel.NORMAL,
        )
        if chip.healthy:
            assert not any(level.bars_use or (level.bars_new_use and not used) for level in levels)
        if chip.network_healthy:
            assert not any(fault.level.bars_network for fault in chip.network_faults)
        assert bool(chip.sentence) is not (chip.healthy and chip.network_healthy)
        assert not (chip.healthy and seen.awaiting_readmission and not used)
        assert not (chip.network_healthy and seen.network_awaiting_readmission)


@given(steps("occur", "recover", "read", "drop", codes=AT_ONCE, late=False))
def test_a_present_fault_takes_effect_at_once(script: list[Step]) -> None:
    watch = quick()
    present: set[int] = set()
    now_s = 0.0
    for step in script:
        now_s += max(step.pause_s, 0.1)
        tell(watch, step, now_s)
        if step.kind == "read":
            present = set(step.codes)
        elif step.kind == "drop":
            present.add(CARD_DROP)
        elif step.kind == "occur":
            present.add(step.code)
        else:
            present.discard(step.code)
        chip = watch.chip(now_s)
        assert {fault.code for fault in (*chip.faults, *chip.network_faults)} >= present
        if present & {FREQUENT, PRE_SEPARATE, SEPARATE, CARD_DROP}:
            assert not chip.healthy


@given(
    steps("occur", "recover", "read", codes=KNOWN, late=False),
    st.permutations(range(len(CODES))),
    st.lists(st.sampled_from(["occur", "recover", "once"]), min_size=len(CODES), max_size=len(CODES)),
)
def test_the_order_of_simultaneous_events_does_not_matter(
    script: list[Step], order: list[int], assertions: list[Assertion]
) -> None:
    first, second = quick(), quick()
    play(first, script)
    play(second, script)
    at_s = sum(step.pause_s for step in script) + 1
    for index in range(len(CODES)):
        first.event(at_s, CODES[index], assertions[index])
    for index in order:
        second.event(at_s, CODES[index], assertions[index])
    for wait_s in (0, 0.5, 3.5, 10, 100, 1000):
        assert first.judge(at_s + wait_s) == second.judge(at_s + wait_s)


@given(steps("occur", "recover", "once", "read", "drop", codes=LISTED), st.lists(st.sampled_from(LISTED), max_size=3))
def test_events_and_readings_agree_after_a_quiet_time(script: list[Step], codes: list[int]) -> None:
    rules = replace(quick_rules(), frequency={})
    announced, polled = Watch(rules, stale_s=20), Watch(rules, stale_s=20)
    play(announced, script)
    play(polled, [step for step in script if step.kind in {"read", "drop"}])
    end_s = sum(step.pause_s for step in script) + 1
    for watch in (announced, polled):
        for at_s in range(0, 1000, 10):
            watch.read(end_s + at_s, *codes)
            watch.judge(end_s + at_s)
    assert ageless(announced.chip(end_s + 999)) == ageless(polled.chip(end_s + 999))


def ageless(chip: Chip) -> Chip:
    """The chip without the times of its faults: an event has them more exactly."""
    own = tuple(replace(fault, since_ms=0) for fault in chip.faults)
    network = tuple(replace(fault, since_ms=0) for fault in chip.network_faults)
    return replace(chip, faults=own, network_faults=network)


def without_counting() -> FaultRules:
    return replace(default_rules(), frequency={}, duration={})


def returns_s(watch: Watch, script: Sequence[Step]) -> list[float]:
    """The times at which the chip became healthy, judged after each step and at each ``next_s``."""
    returned_s, healthy, now_s = [], True, 0.0
    for step in script:
        step_s = now_s + step.pause_s
        while now_s < step_s:
            due_s = watch.next_s(now_s)
            now_s = step_s if due_s is None else min(due_s, step_s)
            if now_s == step_s:
                tell(watch, step, now_s)
            before, healthy = healthy, watch.chip(now_s).healthy
            if healthy and not before:
                returned_s.append(now_s)
    return returned_s


@given(
    steps("occur", "recover", "once", "read", "drop", codes=(SEPARATE, FREQUENT, UNKNOWN)).map(
        lambda script: [replace(step, pause_s=max(step.pause_s, 0.1)) for step in script]
    ),
    st.integers(1, 20),
)
def test_a_flapping_chip_recovers_at_most_logarithmically_often(script: list[Step], times: int) -> None:
    returned_s = returns_s(Watch(without_counting(), hold_s=1.0), script * times)
    for first, start_s in enumerate(returned_s):
        for count, end_s in enumerate(returned_s[first:], start=1):
            # Only so many doublings fit into the limit of the hold, 300 s; after that the hold may start over.
            lasted_s = end_s - start_s
            assert count <= (1 + lasted_s / LIMIT_S) * (2 + math.log2(1 + min(lasted_s, LIMIT_S)))


def test_a_fault_that_flaps_for_ever_changes_the_health_a_few_times() -> None:
    watch = Watch(without_counting(), hold_s=1.0)
    seen = [True]
    for at_s in range(1, 1200):
        watch.event(at_s, SEPARATE, "occur" if at_s % 6 == 0 else "recover")
        seen.append(watch.chip(at_s).healthy)
    assert sum(now is not before for before, now in itertools.pairwise(seen)) == 2 * 3 + 1
