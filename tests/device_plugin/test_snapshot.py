"""What is known of the chips after each reading."""

from hypothesis import given
from hypothesis import strategies as st

from ascend.products import ASCEND_910A
from device_plugin.driver import ChipReading, Reading
from device_plugin.rules.snapshot import Snapshot, age_out, take

CODES = ("80E18402", "80C98000", "A2")

chip_readings = st.builds(
    ChipReading,
    chip_id=st.integers(0, 7),
    healthy=st.booleans(),
    network_healthy=st.booleans(),
    fault_codes=st.lists(st.sampled_from(CODES), unique=True).map(tuple),
)
readings = st.lists(chip_readings, unique_by=lambda chip: chip.chip_id).map(
    lambda chips: Reading(ASCEND_910A, tuple(sorted(chips, key=lambda chip: chip.chip_id)))
)
histories = st.lists(readings, min_size=1, max_size=6)


def after(history: list[Reading]) -> Snapshot:
    """The snapshot after these readings, the n-th at n ms."""
    snapshot: Snapshot | None = None
    for now_ms, reading in enumerate(history):
        snapshot = take(reading, snapshot, now_ms)
    assert snapshot is not None
    return snapshot


@given(histories)
def test_every_chip_ever_seen_is_kept_and_one_not_seen_now_is_unhealthy(history: list[Reading]) -> None:
    snapshot = after(history)
    seen = {chip.chip_id for reading in history for chip in reading.chips}
    assert [chip.chip_id for chip in snapshot.chips] == sorted(seen)
    now = {chip.chip_id: chip for chip in history[-1].chips}
    for chip in snapshot.chips:
        if (reading := now.get(chip.chip_id)) is None:
            assert not chip.healthy
        else:
            assert (chip.healthy, chip.network_healthy) == (reading.healthy, reading.network_healthy)
            assert tuple(chip.faults) == reading.fault_codes


@given(histories)
def test_a_fault_keeps_the_time_it_was_first_seen_at_for_as_long_as_it_lasts(history: list[Reading]) -> None:
    first_seen: dict[tuple[int, str], int] = {}
    for now_ms, reading in enumerate(history):
        for chip in reading.chips:
            for code in CODES:
                if code in chip.fault_codes:
                    first_seen.setdefault((chip.chip_id, code), now_ms)
                else:
                    first_seen.pop((chip.chip_id, code), None)
    snapshot = after(history)
    assert {(chip.chip_id, code): ms for chip in snapshot.chips for code, ms in chip.faults.items()} == first_seen


@given(histories, st.integers(0, 1000))
def test_the_same_reading_again_changes_nothing(history: list[Reading], later_ms: int) -> None:
    snapshot = after(history)
    assert take(history[-1], snapshot, len(history) + later_ms) == snapshot


@given(histories, readings)
def test_what_has_aged_out_is_unhealthy_and_a_reading_makes_up_for_it(history: list[Reading], fresh: Reading) -> None:
    snapshot = after(history)
    aged = age_out(snapshot)
    assert (aged.all_chips, aged.healthy) == (snapshot.all_chips, 0)
    assert [chip.faults for chip in aged.chips] == [chip.faults for chip in snapshot.chips]
    assert take(fresh, aged, 99) == take(fresh, snapshot, 99)


@given(histories)
def test_the_sets_are_parts_of_all_chips(history: list[Reading]) -> None:
    snapshot = after(history)
    assert (snapshot.healthy | snapshot.network_unhealthy) & ~snapshot.all_chips == 0
