"""What annotations say of AI cores: a vNPU that is cut for a pod, or whole chips."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import ALLOCATED, PREDICATE_TIME, REAL, Grant
from ascend.chips import MAX_CHIP_ID
from ascend.cores import Cut, is_made, parse_cores, parse_cut, parse_made
from ascend.errors import InvalidValue
from ascend.pod_devices import read_cores_grant, read_held
from ascend.takes import Take
from ascend.templates import RESOURCE_CORES, TEMPLATES
from ascend.vnpus import Vnpu

CUTS = st.builds(Cut, st.integers(0, MAX_CHIP_ID), st.sampled_from(sorted(TEMPLATES)))


@given(CUTS, st.integers(100, 200), st.integers(0, 20))
def test_a_part_is_written_and_read_back_as_it_is_chosen_and_made(cut: Cut, vdev_id: int, group: int) -> None:
    take = Take.part(cut)
    written = Grant.of(take, 7).annotations()
    assert written == {RESOURCE_CORES: f"{cut.chip}-{cut.template}", PREDICATE_TIME: "7"}
    grant = read_cores_grant(written, take.cores)
    assert grant is not None
    assert (grant.take, grant.predicate_time) == (take, 7)
    assert (take.names, take.vnpus, take.is_whole, take.occupied) == ((cut.name,), (cut.name,), False, 1 << cut.chip)
    made = f"{Vnpu(cut.size.suffix, cut.chip, vdev_id).name}_{group}"
    assert is_made(made)
    assert parse_made(made) == cut
    # What was written and what was made of it are one.
    for real in ({}, {REAL: made}, {REAL: made.rpartition("_")[0]}):
        held = read_held(written | real)
        assert (held.chips, held.vnpus, held.cuts, held.occupied) == (0, (), (cut,), take.occupied)
    assert read_held({REAL: made}).cuts == (cut,)


@given(st.lists(st.integers(0, MAX_CHIP_ID), min_size=1, max_size=16, unique=True))
def test_whole_chips_are_written_by_number(chips: list[int]) -> None:
    take = Take.whole(chips, cores=20 * len(chips))
    written = Grant.of(take, 7).annotations()
    assert written[RESOURCE_CORES] == ",".join(map(str, chips))
    assert ALLOCATED not in written
    grant = read_cores_grant(written, take.cores)
    assert grant is not None
    assert grant.take == take
    real = ",".join(f"Ascend910-{chip}" for chip in chips)
    held = read_held(written | {REAL: real})
    assert (held.chips, held.cuts) == (take.chip_set, ())


@pytest.mark.parametrize(
    "text", ["", "0,", "a", "0,0", "00", "256", "0-", "0-vir07_1c", "0-vir05_1c_16g-1", "-1", "0 1", "0-vir05_1c_16g,1"]
)
def test_malformed_lists_are_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=RESOURCE_CORES):
        parse_cores(text)
    with pytest.raises(InvalidValue):
        parse_cut(text)


@pytest.mark.parametrize("name", ["Ascend910-2c-100-0_1", "Ascend910-5c.1cpu.16g-100_1", "Ascend910-0_1", "_1"])
def test_names_of_what_no_template_makes_are_refused(name: str) -> None:
    assert is_made(name)
    with pytest.raises(InvalidValue):
        parse_made(name)


@given(st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    for annotations in ({RESOURCE_CORES: text}, {REAL: text}, {RESOURCE_CORES: "0", REAL: text}):
        try:
            read_held(annotations)
        except InvalidValue:
            continue


def test_a_pod_without_the_annotation_has_no_grant() -> None:
    assert read_cores_grant({}, 5) is None
    assert not is_made("Ascend910-2c-100-0")
