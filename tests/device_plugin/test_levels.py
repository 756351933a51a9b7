"""The levels of faults, by code and by severity."""

import pytest

from ascend.errors import InvalidValue
from device_plugin.driver import LINK_DOWN
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import CARD_DROP, NETWORK_CODES, FaultLevel

# One code of each class of the default table, and the size of the class; one code is in two classes.
CLASSES = {
    FaultLevel.NOT_HANDLE: (0x80CD8003, 130),
    FaultLevel.SUB_HEALTH: (0x80818C06, 12),
    FaultLevel.RESTART_REQUEST: (0x80C98000, 33),
    FaultLevel.RESTART_BUSINESS: (0x80E01801, 24),
    FaultLevel.FREE_RESTART: (0x8C044E00, 23),
    FaultLevel.RESTART: (0x80E18005, 162),
    FaultLevel.PRE_SEPARATE: (0x8118043C, 199),
    FaultLevel.SEPARATE: (0x80E18402, 215),
}


def test_levels_are_ordered_by_severity() -> None:
    order = (
        "NormalNPU NotHandleFault SubHealthFault RestartRequest RestartBusiness FreeRestartNPU RestartNPU "
        "PreSeparateNPU SeparateNPU ManuallySeparateNPU"
    )
    assert " ".join(level.wire for level in sorted(FaultLevel)) == order


@pytest.mark.parametrize("level", FaultLevel)
def test_a_level_is_found_by_its_name(level: FaultLevel) -> None:
    assert FaultLevel.of_wire(level.wire) is level


def test_an_unknown_level_name_is_refused() -> None:
    with pytest.raises(InvalidValue, match="'Separate' is not a level"):
        FaultLevel.of_wire("Separate")


@pytest.mark.parametrize("level", CLASSES)
def test_the_default_table_has_every_class(level: FaultLevel) -> None:
    rules = default_rules()
    code, count = CLASSES[level]
    assert sum(each is level for each in rules.chip.values()) == count
    assert rules.level(code) is level


def test_network_codes_have_levels_of_their_own() -> None:
    rules = default_rules()
    levels = {rules.spell(code): rules.level(code) for code in NETWORK_CODES}
    assert levels == {
        "81078603": FaultLevel.NOT_HANDLE,
        "81078607": FaultLevel.NOT_HANDLE,
        "110000002": FaultLevel.SUB_HEALTH,
        "110001024": FaultLevel.PRE_SEPARATE,
    }
    assert not NETWORK_CODES & rules.chip.keys()


def test_a_code_in_two_classes_has_the_more_serious_level() -> None:
    assert default_rules().level(0xA2301001) is FaultLevel.SEPARATE  # in RestartBusiness as well


def test_a_dropped_card_has_the_level_restart_npu_by_default() -> None:
    assert default_rules().level(CARD_DROP) is FaultLevel.RESTART


@pytest.mark.parametrize(
    ("severity", "level"),
    [
        (None, FaultLevel.SEPARATE),
        (0, FaultLevel.NOT_HANDLE),
        (1, FaultLevel.NOT_HANDLE),
        (2, FaultLevel.SEPARATE),
        (3, FaultLevel.SEPARATE),
    ],
)
def test_an_unknown_code_is_harmless_only_if_its_severity_is(severity: int | None, level: FaultLevel) -> None:
    assert default_rules().level(0xDEAD, severity) is level


def test_the_severity_of_a_known_code_has_no_effect() -> None:
    assert default_rules().level(0x80E18402, 0) is FaultLevel.SEPARATE


def test_codes_are_spelled_as_configured() -> None:
    rules = default_rules()
    assert rules.spell(0x020000002) == "020000002"
    assert rules.spell(LINK_DOWN) == "81078603"
    assert rules.spell(0xABC) == "ABC"


def test_only_a_level_of_the_right_kind_bars() -> None:
    assert [level.bars_use for level in sorted(FaultLevel)] == [False, False, False, *[True] * 4, False, True, True]
    assert [level.bars_new_use for level in sorted(FaultLevel)] == [False] * 3 + [True] * 7
    assert [level.bars_network for level in sorted(FaultLevel)] == [False] * 2 + [True] * 8
