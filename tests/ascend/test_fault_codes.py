"""What fault codes mean."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.fault_codes import action, explained, meaning_of
from device_plugin.health.levels import FaultLevel


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        ("80E01801", "uncorrectable error of its memory"),
        ("80CD8008", "level 2 buffer: uncorrectable (multiple bit) error"),
        ("80CB800A", "AI core (vector): time-out"),
        ("0x80b78000", "SLLC link: error"),
        ("80E0020B", "fault of: memory (HBM)"),
        ("8F180220", ""),
        ("110000002", ""),
        ("", ""),
    ],
)
def test_a_code_names_module_and_state_or_has_a_meaning_of_its_own(code: str, meaning: str) -> None:
    assert meaning_of(code) == meaning
    assert explained(code) == (f"{code} ({meaning})" if meaning else code)


@given(st.text() | st.from_regex(r"[0-9A-Fa-f]{7,9}", fullmatch=True))
def test_any_text_is_explained(code: str) -> None:
    assert explained(code).startswith(code)


@pytest.mark.parametrize("level", [level for level in FaultLevel if level.bars_new_use])
def test_there_is_something_to_do_about_every_level_that_bars_a_chip(level: FaultLevel) -> None:
    assert action(level.wire, in_use=False)
    assert action(level.wire, in_use=True).endswith(action(level.wire, in_use=False))
