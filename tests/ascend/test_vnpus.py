"""The names and resources of vNPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import chip_of_vnpu
from ascend.errors import InvalidValue
from ascend.vnpus import SUFFIXES, Vnpu, parse_vnpu, resource_of, suffix_of

suffixes = st.sampled_from(sorted(SUFFIXES.values()))
vnpus = st.builds(Vnpu, suffixes, st.integers(0, 255), st.integers(100, 99999))


@given(vnpus)
def test_a_name_is_read_back(vnpu: Vnpu) -> None:
    assert parse_vnpu(vnpu.name) == vnpu
    assert chip_of_vnpu(vnpu.name) == vnpu.chip


@given(suffixes)
def test_a_resource_stands_for_a_size(suffix: str) -> None:
    assert suffix_of(resource_of(suffix)) == suffix


def test_names_are_those_of_mindcluster() -> None:
    # See docs/spec/vnpu.md#names-and-templates.
    vnpu = Vnpu("2c", 1, 100)
    assert (vnpu.name, vnpu.resource) == ("Ascend910-2c-100-1", "huawei.com/Ascend910-2c")
    assert Vnpu("10c.3cpu.16g.ndvpp", 0, 116).name == "Ascend910-10c.3cpu.16g.ndvpp-116-0"


NO_NAMES = (
    "|Ascend910-2c|Ascend910-2c-100|Ascend910-2c-100-256|Ascend910-2c-100-01|Ascend910-c-100-1|Ascend910-2-100-1"
    "|Ascend910-2c-1-1-1|Ascend910B-2c-100-1|Ascend910-2c-100-1 |Ascend910-2c-100-\uff11|Ascend910-3"
)


@pytest.mark.parametrize("name", NO_NAMES.split("|"))
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="is not a vNPU name"):
        parse_vnpu(name)


@pytest.mark.parametrize(
    "resource", ["huawei.com/Ascend910", "huawei.com/npu-core", "huawei.com/Ascend910-2", "huawei.com/Ascend910-2c-1"]
)
def test_other_resources_are_no_vnpus(resource: str) -> None:
    assert suffix_of(resource) is None
