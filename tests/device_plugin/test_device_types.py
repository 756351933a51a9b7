"""How devices are numbered and named, whole chips and vNPUs alike."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_ids, chip_set
from ascend.errors import InvalidValue
from ascend.vnpus import SUFFIXES, Vnpu
from device_plugin.device_types import MAX_VDEV_ID, WHOLE_CHIPS, DeviceType, number_of

TWO_CORES = DeviceType("2c")

types = st.sampled_from([WHOLE_CHIPS, *map(DeviceType, sorted(SUFFIXES.values()))])
chips = st.integers(0, 255)
vdev_ids = st.integers(100, MAX_VDEV_ID)


@given(types, chips, vdev_ids)
def test_a_name_stands_for_the_same_device(device_type: DeviceType, chip: int, vdev_id: int) -> None:
    number = number_of(Vnpu(device_type.suffix, chip, vdev_id)) if device_type.suffix else chip
    assert device_type.parse(device_type.device_name(number)) == number
    assert device_type.chip(number) == chip
    assert device_type.device_name(number).startswith(f"{device_type.name}-")
    assert device_type.resource == f"huawei.com/{device_type.name}"


@given(st.lists(st.tuples(chips, vdev_ids), unique=True, max_size=20))
def test_vnpus_are_sets_whose_chips_are_known(pairs: list[tuple[int, int]]) -> None:
    numbers = [number_of(Vnpu("2c", chip, vdev_id)) for chip, vdev_id in pairs]
    assert set(chip_ids(chip_set(numbers))) == set(numbers)
    assert TWO_CORES.chips(chip_set(numbers)) == chip_set(chip for chip, _ in pairs)
    assert list(TWO_CORES.parse_list(TWO_CORES.join(numbers), "list")) == numbers


def test_names_are_listed_in_the_given_or_in_string_order() -> None:
    numbers = TWO_CORES.parse_list("Ascend910-2c-101-1,Ascend910-2c-100-10", "list")
    assert TWO_CORES.join_sorted(numbers) == "Ascend910-2c-100-10,Ascend910-2c-101-1"
    assert TWO_CORES.parse_list("", "list") == ()


@pytest.mark.parametrize(
    "text",
    [
        "Ascend910-1",
        "Ascend910-4c-100-1",
        "Ascend910-2c-2048-1",
        "Ascend910-2c-100-1,Ascend910-2c-100-1",
        ",",
        ",".join(["x"] * 101),
    ],
)
def test_a_list_of_other_names_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"^list: "):
        TWO_CORES.parse_list(text, "list")


def test_numbers_have_their_noun() -> None:
    assert (WHOLE_CHIPS.count(1), WHOLE_CHIPS.count(2)) == ("1 chip", "2 chips")
    assert (TWO_CORES.count(1), TWO_CORES.count(2)) == ("1 vNPU of Ascend910-2c", "2 vNPUs of Ascend910-2c")
