"""The templates of dynamic vNPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.templates import TEMPLATES, Divisible, Media, divisible

KINDS = {
    "910B1": ("Ascend910B", 25, 64),
    "910B2": ("Ascend910B", 24, 64),
    "910B3": ("Ascend910B", 20, 64),
    "910B4": ("Ascend910B", 20, 32),
    "910B4-1": ("Ascend910B", 20, 64),
    "A3 with 24 cores": ("Ascend910A3", 24, 64),
    "A3 with 20 cores": ("Ascend910A3", 20, 64),
}


def kind(name: str) -> Divisible:
    found = divisible(*KINDS[name])
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("910B1", (6, 12)),
        ("910B2", (6, 12)),
        ("910B3", (5, 10)),
        ("910B4-1", (5, 10)),
        ("910B4", (5, 10)),
        ("A3 with 24 cores", (6, 12)),
        ("A3 with 20 cores", (5, 10)),
    ],
)
def test_requests_of_parts_are_those_of_the_makers_table(name: str, parts: tuple[int, ...]) -> None:
    # See docs/spec/vnpu.md#valid-requests-for-cores.
    assert kind(name).parts == parts


@given(st.sampled_from(sorted(KINDS)), st.integers(1, 16))
def test_a_multiple_of_a_chips_cores_is_whole_chips(name: str, chips: int) -> None:
    chip = kind(name)
    assert chip.whole_chips(chips * chip.cores) == chips
    assert all(not chip.whole_chips(chips * chip.cores + rest) for rest in range(1, chip.cores))


@pytest.mark.parametrize(
    ("media", "template"),
    [(Media.ALL, "vir10_4c_16g_m"), (Media.SHARED, "vir10_3c_16g"), (Media.NONE, "vir10_3c_16g_nm")],
)
def test_the_media_units_choose_the_template_of_910b4(media: Media, template: str) -> None:
    # See docs/spec/vnpu.md#choice-of-the-template.
    found = kind("910B4").template(10, media)
    assert found is not None
    assert found.name == template
    assert kind("910B3").template(10, media) == (TEMPLATES["vir10_3c_32g"] if media is Media.SHARED else None)


def test_910a_chips_are_not_divisible() -> None:
    assert divisible("Ascend910", 32, 32) is None
