"""Sets of chips and lists of their names."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_ids, chip_set, join_names, join_names_sorted, parse_chip_name, parse_names
from ascend.errors import InvalidValue

ids = st.lists(st.integers(0, 255), unique=True)


@given(ids)
def test_a_chip_set_yields_its_ids_ascending(chips: list[int]) -> None:
    assert list(chip_ids(chip_set(chips))) == sorted(chips)


@given(ids)
def test_a_list_of_names_is_read_back_in_order(chips: list[int]) -> None:
    assert list(parse_names(join_names(chips))) == chips


def test_names_are_sorted_as_strings() -> None:
    # See docs/spec/node-report.md#device-list.
    assert join_names_sorted(range(16)).split(",")[:4] == ["Ascend910-0", "Ascend910-1", "Ascend910-10", "Ascend910-11"]
    assert join_names_sorted(range(16)).split(",")[-1] == "Ascend910-9"


def test_an_annotation_keeps_the_order_of_selection() -> None:
    assert join_names((10, 2)) == "Ascend910-10,Ascend910-2"


def test_an_empty_text_is_an_empty_list() -> None:
    assert parse_names("") == ()


NO_NAMES = (
    "|Ascend910|Ascend910-|Ascend910-01|Ascend910--1|Ascend910-2c-100-1|ascend910-1|Ascend910-256"
    "|Ascend910-１|Ascend910-1\n"
)


@pytest.mark.parametrize("name", NO_NAMES.split("|"))
def test_a_name_of_no_physical_chip_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="is not a chip name"):
        parse_chip_name(name)


@pytest.mark.parametrize("text", ["Ascend910-0,", ",", "Ascend910-0, Ascend910-1", "Ascend910-0,Ascend910-0"])
def test_a_malformed_list_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidValue, match=r"^huawei\.com/AscendReal: "):
        parse_names(text, "huawei.com/AscendReal")
