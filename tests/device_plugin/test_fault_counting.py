"""A fault counts once, whatever the order in which its events and the driver's list of codes show it."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ascend.chips import chip_ids
from device_plugin.driver import LINK_DOWN, ChipState, FaultEvent
from device_plugin.driver.simulated_events import SimulatedEvents
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.health.active_faults import SETTLE_S, ActiveFaults, FaultTransition
from device_plugin.health.levels import FaultLevel
from sandbox.cluster import save_server
from tests.device_plugin.api import until
from tests.device_plugin.watch import SEPARATE, Watch, moment
from tests.device_plugin.whole import whole_node

TWICE = 0x80A18008  # 2 times in 24 h separate a chip for good
LATEST_S = SETTLE_S - 0.1
START_S = 10.0

delays = st.floats(0, LATEST_S)


@dataclass(frozen=True)
class Fault:
    """A fault that is present for a while, and the delays of its two events; None if one is lost."""

    pause_s: float
    duration_s: float
    occur_delay_s: float | None
    recover_delay_s: float | None


@dataclass(frozen=True)
class Reading:
    """A reading, ``pause_s`` after the end of the one before; it shows the list of ``lag_s`` before its start."""

    pause_s: float
    duration_s: float
    lag_s: float


@dataclass
class Story:
    """What happens to a chip, in the order in which the plugin learns it; the first reading finds no fault."""

    faults: list[Fault]
    readings: list[Reading]
    chip: ActiveFaults = field(default_factory=ActiveFaults)

    def tell(self) -> list[FaultTransition]:
        """Return what the chip makes of it."""
        transitions = list(self.chip.read(ChipState(), moment(0)))
        for at_s, what in self.arrivals:
            if isinstance(what, FaultEvent):
                transitions += self.chip.announce(what, moment(at_s))
            else:
                transitions += self.chip.read(what, moment(at_s))
        return transitions

    @property
    def arrivals(self) -> list[tuple[float, FaultEvent | ChipState]]:
        """When each event came or reading started, in the order in which the plugin learns of them."""
        arrivals = sorted([*self._events(), *self._readings()], key=lambda arrival: arrival[0])
        return [(at_s, what) for _, at_s, what in arrivals]

    @property
    def times(self) -> list[tuple[float, float]]:
        """From when to when each fault is present."""
        times, now_s = [], START_S
        for fault in self.faults:
            now_s += fault.pause_s
            times.append((now_s, now_s := now_s + fault.duration_s))
        return times

    def _events(self) -> list[tuple[float, float, FaultEvent | ChipState]]:
        found: list[tuple[float, float, FaultEvent | ChipState]] = []
        sent_s = 0.0
        for fault, (began_s, ended_s) in zip(self.faults, self.times, strict=True):
            if fault.occur_delay_s is not None:
                sent_s = max(sent_s, began_s + fault.occur_delay_s)  # events keep their order
                found.append((sent_s, sent_s, FaultEvent(0, TWICE, "occur", 2)))
            if fault.recover_delay_s is not None:
                sent_s = max(sent_s, ended_s + fault.recover_delay_s)
                found.append((sent_s, sent_s, FaultEvent(0, TWICE, "recover", 2)))
        return found

    def _readings(self) -> list[tuple[float, float, FaultEvent | ChipState]]:
        found: list[tuple[float, float, FaultEvent | ChipState]] = []
        now_s, shown_s = START_S, 0.0
        for reading in self.readings:
            now_s += reading.pause_s
            shown_s = max(shown_s, now_s - reading.lag_s)  # the list never goes back
            present = any(began_s <= shown_s < ended_s for began_s, ended_s in self.times)
            found.append((now_s + reading.duration_s, now_s, ChipState((TWICE,) if present else ())))
            now_s += reading.duration_s
        return found


def faults_of(delay: st.SearchStrategy[float | None]) -> st.SearchStrategy[list[Fault]]:
    lengths = st.floats(0.01, 8)
    return st.lists(st.builds(Fault, lengths, lengths, delay, delay), max_size=6)


readings = st.lists(st.builds(Reading, st.floats(0.01, 4), st.floats(0, 1.5), delays), max_size=40)


def occurrences(transitions: list[FaultTransition]) -> int:
    return sum(each.present and each.counts for each in transitions)


@given(faults_of(delays), readings)
def test_with_all_events_every_fault_counts_exactly_once(faults: list[Fault], readings: list[Reading]) -> None:
    assert occurrences(Story(faults, readings).tell()) == len(faults)


@given(faults_of(delays | st.none()), readings)
def test_no_fault_counts_twice_even_if_events_are_lost(faults: list[Fault], readings: list[Reading]) -> None:
    assert occurrences(Story(faults, readings).tell()) <= len(faults)


@given(faults_of(delays | st.none()), readings)
@example([Fault(1, 1, 0, None)], [])
def test_after_a_quiet_time_the_chip_has_the_faults_of_the_list(faults: list[Fault], readings: list[Reading]) -> None:
    story = Story(faults, readings)
    transitions = story.tell()
    for late_s in range(1, 5):
        transitions += story.chip.read(ChipState(), moment(1000 + late_s))
    assert story.chip.codes == {}
    for before, after in pairwise(each.present for each in transitions):
        assert before != after
    assert not transitions or not transitions[-1].present


@given(st.lists(st.tuples(st.floats(3.1, 20), st.floats(3.1, 20)), max_size=6))
def test_without_events_every_fault_the_list_shows_counts_once(times: list[tuple[float, float]]) -> None:
    faults = [Fault(pause_s, duration_s, None, None) for pause_s, duration_s in times]
    readings = [Reading(1, 0, 0)] * 250
    assert occurrences(Story(faults, readings).tell()) == len(faults)


@given(faults_of(delays | st.none()), readings)
def test_two_faults_separate_a_chip_for_good_and_one_does_not(faults: list[Fault], readings: list[Reading]) -> None:
    watch = Watch()
    for at_s, what in Story(faults, readings).arrivals:
        if isinstance(what, FaultEvent):
            watch.event(at_s, what.code, what.assertion)
        else:
            watch.read(at_s, *(what.codes or ()))
    is_separated = bool(watch.judge(1000).manually_separated)
    if all(fault.occur_delay_s is not None and fault.recover_delay_s is not None for fault in faults):
        assert is_separated == (len(faults) >= 2)
    else:
        assert len(faults) >= 2 or not is_separated


def test_an_event_ahead_of_the_list_is_one_fault() -> None:
    watch = Watch()
    watch.event(10.0, TWICE)
    watch.read(10.6)
    assert watch.why(10.6) == "Fault"
    watch.read(11.6, TWICE)
    assert watch.judge(11.6).manually_separated == 0


def test_an_event_behind_the_list_is_one_fault() -> None:
    watch = Watch()
    watch.read(10, TWICE)
    watch.read(11)
    watch.event(11.5, TWICE)
    watch.event(11.6, TWICE, "recover")
    assert watch.judge(11.7).manually_separated == 0
    watch.event(13, TWICE)
    assert [*chip_ids(watch.judge(13).manually_separated)] == [0]


def test_after_lost_events_readings_alone_are_believed() -> None:
    watch = Watch()
    watch.event(1, SEPARATE)
    watch.event(1, LINK_DOWN)
    watch.book.events_lost()
    watch.read(1.5)
    assert watch.why(1.5) == "Recovering"
    assert watch.chip(1.5).network_level is FaultLevel.NORMAL


@pytest.mark.parametrize(("delay_s", "code_delay_s"), [(0.0, 1.5), (1.5, 0.0)], ids=["event first", "list first"])
async def test_one_fault_does_not_separate_a_chip_of_the_whole_plugin(
    folder: Path, delay_s: float, code_delay_s: float
) -> None:
    async with whole_node(folder) as whole:
        simulated = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
        simulated.events = SimulatedEvents(delay_s, code_delay_s)
        save_server(simulated, whole.node.state_file)
        async with whole.plugin(recovery_hold_s=0.1) as plugin:
            whole.node.edit_chip(3, fault_codes=[f"{TWICE:X}"])
            await until(lambda: whole.offers_chips(0xF7))
            whole.node.edit_chip(3, fault_codes=[])
            await until(whole.offers_chips)
            snapshot = plugin.snapshots.value
            assert snapshot is not None
            assert snapshot.manually_separated == 0
