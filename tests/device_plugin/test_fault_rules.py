"""The site's fault rules: the defaults, and which entries of a ConfigMap apply."""

import importlib.resources
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_plugin.driver import LINK_DOWN
from device_plugin.health.fault_rules import NO_RULES, DurationRule, FaultRules, FrequencyRule
from device_plugin.health.fault_rules_file import default_rules, read_rules
from device_plugin.health.levels import FaultLevel
from device_plugin.health.switch_faults import SwitchLevel

FREQUENCY = {
    "EventId": ["80E18005"],
    "TimeWindow": 3600,
    "Times": 2,
    "FaultHandling": "PreSeparateNPU",
    "ReleaseTimeWindow": 60,
}
DURATION = {"EventId": ["80E18005"], "FaultTimeout": 5, "RecoverTimeout": 7, "FaultHandling": "SeparateNPU"}


def read_codes(codes: Any) -> tuple[FaultRules, tuple[str, ...]]:
    return read_rules({"faultCode.json": json.dumps(codes)}, default_rules())


def read_custom(**custom: Any) -> tuple[FaultRules, tuple[str, ...]]:
    return read_rules({"faultCustomization.json": json.dumps(custom)}, default_rules())


def test_the_default_rules_are_those_of_an_installation() -> None:
    rules = default_rules()
    assert len(rules.frequency) == 43
    assert rules.frequency[0x80A18008] == (FrequencyRule(0x80A18008, 86_400, 2, FaultLevel.MANUALLY_SEPARATE, None),)
    assert rules.frequency[0x80E18005] == (FrequencyRule(0x80E18005, 86_400, 3, FaultLevel.MANUALLY_SEPARATE, None),)
    assert rules.frequency[LINK_DOWN] == (FrequencyRule(LINK_DOWN, 86_400, 5, FaultLevel.MANUALLY_SEPARATE, 172_800),)
    assert rules.duration == {LINK_DOWN: (DurationRule(LINK_DOWN, 20, 60, FaultLevel.PRE_SEPARATE),)}


def test_the_default_rules_have_the_format_of_the_config_map() -> None:
    shipped = json.loads(importlib.resources.files("device_plugin.health").joinpath("fault_defaults.json").read_bytes())
    data = {key: json.dumps(content) for key, content in shipped.items()}
    assert read_rules(data, NO_RULES) == (default_rules(), ())


def test_without_any_key_the_defaults_apply() -> None:
    assert read_rules({}, default_rules()) == (default_rules(), ())


def test_a_list_of_codes_replaces_the_whole_table() -> None:
    rules, refused = read_codes({"SeparateNPUCodes": ["0ABC"], "SubHealthFaultCodes": ["def"]})
    assert refused == ()
    assert rules.chip == {0xABC: FaultLevel.SEPARATE, 0xDEF: FaultLevel.SUB_HEALTH}
    assert (rules.spell(0xABC), rules.spell(0xDEF), rules.spell(0x020000002)) == ("0ABC", "DEF", "020000002")
    assert rules.frequency == default_rules().frequency


def test_network_codes_apply_to_the_network_in_whichever_list_they_are() -> None:
    rules, refused = read_codes(
        {
            "PreSeparateNPUCodes": ["81078603"],
            "RestartNPUCodes": ["81078607"],
            "NotHandleFaultNetworkCodes": ["110000002"],
            "SeparateNPUNetworkCodes": ["110000002", "80E18005"],
        }
    )
    assert rules.chip == {}
    assert rules.network == {
        LINK_DOWN: FaultLevel.PRE_SEPARATE,
        0x81078607: FaultLevel.NOT_HANDLE,
        0x110000002: FaultLevel.SEPARATE,
    }
    assert refused == ("faultCode.json: SeparateNPUNetworkCodes: '80E18005' is not a network code",)
    assert rules.level(0x110001024) is FaultLevel.PRE_SEPARATE  # a network code that is in no default list


def test_an_invalid_code_is_refused_and_the_others_apply() -> None:
    rules, refused = read_codes({"SeparateNPUCodes": ["xyz", 7, "", "1" * 17, "ABC"], "Nonsense": []})
    assert rules.chip == {0xABC: FaultLevel.SEPARATE}
    assert refused == (
        'faultCode.json: "Nonsense" is not a list of codes',
        'faultCode.json: SeparateNPUCodes: "xyz" is not a fault code in hex',
        "faultCode.json: SeparateNPUCodes: 7 is not a fault code in hex",
        'faultCode.json: SeparateNPUCodes: "" is not a fault code in hex',
        'faultCode.json: SeparateNPUCodes: "11111111111111111" is not a fault code in hex',
    )


def test_a_value_that_is_not_a_list_leaves_its_level_unchanged() -> None:
    rules, refused = read_codes({"SeparateNPUCodes": "80E18402", "RestartNPUCodes": ["ABC"]})
    assert rules.level(0x80E18402) is FaultLevel.SEPARATE
    assert len(rules.chip) == 216
    assert refused == ('faultCode.json: SeparateNPUCodes is "80E18402", not a list; the default applies',)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000])
def test_an_unreadable_key_leaves_the_default(text: str) -> None:
    data = {"faultCode.json": text, "faultCustomization.json": text, "SwitchFaultCode.json": text, "PollInterval": text}
    rules, refused = read_rules(data, default_rules())
    assert rules == default_rules()
    assert [sentence.split(" ")[0].rstrip(":") for sentence in refused] == [
        "faultCode.json",
        "faultCustomization.json",
        "SwitchFaultCode.json",
        "PollInterval",
    ]


def test_levels_of_switch_faults_are_read_entry_by_entry() -> None:
    defaults = default_rules().switches
    assert Counter(level.name for level in defaults.values()) == {
        "NOT_HANDLE": 12,
        "SUB_HEALTH": 8,
        "RESTART_REQUEST": 1,
        "SEPARATE": 9,
    }
    lists = {
        "NotHandleFaultCodes": ["[0x00F1FEF5,155912,npu,na]", "[0x1,na,npu,na]", 3, "[0x08520003,na,npu,na]"],
        "PreSeparateFaultCodes": ["[0x08520003,na,npu,na]"],
        "SeparateFaultCodes": "all",
        "RestartFaultCodes": [],
    }
    rules, refused = read_rules({"SwitchFaultCode.json": json.dumps(lists)}, default_rules())
    separated = {code: level for code, level in defaults.items() if level is SwitchLevel.SEPARATE}
    assert rules.switches == {
        "[0x00f1fef5,155912,npu,na]": SwitchLevel.SEPARATE,
        "[0x08520003,na,npu,na]": SwitchLevel.SEPARATE,
        **separated,
    }
    assert refused == (
        "SwitchFaultCode.json: 'RestartFaultCodes' is not a list of switch faults",
        "SwitchFaultCode.json: NotHandleFaultCodes: '[0x1,na,npu,na]' is not of the form [0x00f1fef5,155912,npu,na]",
        "SwitchFaultCode.json: NotHandleFaultCodes: '3' is not of the form [0x00f1fef5,155912,npu,na]",
        "SwitchFaultCode.json: SeparateFaultCodes is 'all', not a list; the default applies",
    )


def test_an_unknown_key_is_named() -> None:
    assert read_rules({"faultcode.json": "{}"}, default_rules())[1] == (
        '"faultcode.json" is not a key of the fault rules',
    )


@pytest.mark.parametrize(
    ("text", "good"), [("30", True), ("3600", True), ("29", False), ("3601", False), ("-5", False), ("5 min", False)]
)
def test_the_poll_interval_is_checked_and_changes_nothing(text: str, *, good: bool) -> None:
    rules, refused = read_rules({"PollInterval": text}, default_rules())
    assert rules == default_rules()
    expected = (
        f'PollInterval is "{text}", not a whole number of seconds from 30 to 3600; the setting has no effect here'
    )
    assert refused == (() if good else (expected,))


def test_a_sites_rules_replace_the_defaults() -> None:
    rules, refused = read_custom(FaultFrequency=[FREQUENCY], FaultDuration=[DURATION], GraceTolerance={})
    assert refused == ()
    assert rules.frequency == {0x80E18005: (FrequencyRule(0x80E18005, 3600, 2, FaultLevel.PRE_SEPARATE, 60),)}
    assert rules.duration == {0x80E18005: (DurationRule(0x80E18005, 5, 7, FaultLevel.SEPARATE),)}
    assert rules.chip == default_rules().chip


def test_a_code_can_have_several_rules() -> None:
    rules, _ = read_custom(FaultFrequency=[FREQUENCY, {**FREQUENCY, "Times": 9, "FaultHandling": "SeparateNPU"}])
    assert [rule.times for rule in rules.frequency[0x80E18005]] == [2, 9]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"EventId": []}, "EventId is [], not a list of codes"),
        ({"EventId": ["80E18005", "zz"]}, 'EventId: "zz" is not a fault code in hex'),
        ({"TimeWindow": 59}, "TimeWindow is 59, not a whole number from 60 to 864000"),
        ({"TimeWindow": 864_001}, "TimeWindow is 864001, not a whole number from 60 to 864000"),
        ({"Times": 0}, "Times is 0, not a whole number from 1 to 100"),
        ({"Times": 101}, "Times is 101, not a whole number from 1 to 100"),
        ({"Times": True}, "Times is true, not a whole number from 1 to 100"),
        ({"Times": None}, "Times is missing, not a whole number from 1 to 100"),
        ({"ReleaseTimeWindow": 59}, "ReleaseTimeWindow is 59, not a whole number from 60 to 4294967296"),
        ({"ReleaseTimeWindow": 0}, "ReleaseTimeWindow is missing, only ManuallySeparateNPU can do without"),
        ({"FaultHandling": "NormalNPU"}, 'FaultHandling is "NormalNPU", not a level to raise a fault to'),
        ({"FaultHandling": "Separate"}, "'Separate' is not a level of faults"),
    ],
)
def test_a_frequency_rule_out_of_bounds_is_refused_and_the_others_apply(change: dict[str, Any], sentence: str) -> None:
    other = {**FREQUENCY, "EventId": ["ABC"]}
    rules, refused = read_custom(FaultFrequency=[{**FREQUENCY, **change}, other])
    assert set(rules.frequency) == {0xABC}
    assert len(refused) == 1
    assert refused[0].startswith(f"faultCustomization.json: FaultFrequency[0]: {sentence}")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"FaultTimeout": -1}, "FaultTimeout is -1, not a whole number from 0 to 600"),
        ({"FaultTimeout": 601}, "FaultTimeout is 601, not a whole number from 0 to 600"),
        ({"FaultTimeout": 2.5}, "FaultTimeout is 2.5, not a whole number from 0 to 600"),
        ({"RecoverTimeout": 86_401}, "RecoverTimeout is 86401, not a whole number from 0 to 86400"),
        ({"FaultHandling": "ManuallySeparateNPU"}, "FaultHandling is ManuallySeparateNPU, which only an operator"),
    ],
)
def test_a_duration_rule_out_of_bounds_is_refused_and_the_others_apply(change: dict[str, Any], sentence: str) -> None:
    other = {**DURATION, "EventId": ["ABC"]}
    rules, refused = read_custom(FaultDuration=[{**DURATION, **change}, other, "x"])
    assert set(rules.duration) == {0xABC}
    assert refused[0].startswith(f"faultCustomization.json: FaultDuration[0]: {sentence}")
    assert refused[1] == 'faultCustomization.json: FaultDuration[2]: "x" is not an object'


@pytest.mark.parametrize(
    ("code", "fault_s", "recover_s"), [("81078603", 20, 60), ("80E01801", 30, 0), ("80C98008", 0, 0)]
)
def test_a_duration_rule_without_a_timeout_has_the_documented_default(code: str, fault_s: int, recover_s: int) -> None:
    for field in ("FaultTimeout", "RecoverTimeout"):
        entry = {"EventId": [code], "FaultTimeout": 5, "RecoverTimeout": 7, "FaultHandling": "SeparateNPU"}
        for written in ({key: value for key, value in entry.items() if key != field}, {**entry, field: None}):
            rules, refused = read_custom(FaultDuration=[written])
            assert refused == ()
            ((rule,),) = rules.duration.values()
            expected = (fault_s, 7) if field == "FaultTimeout" else (5, recover_s)
            assert (rule.fault_s, rule.recover_s) == expected


def test_rules_that_are_not_a_list_leave_the_default() -> None:
    rules, refused = read_custom(FaultFrequency={}, FaultDuration=[], Other=1)
    assert (rules.frequency, rules.duration) == (default_rules().frequency, {})
    assert refused == (
        'faultCustomization.json: "Other" is not a kind of rule',
        "faultCustomization.json: FaultFrequency is {}, not a list; the default applies",
    )


texts = st.text('aF0x,{}[]"é', max_size=6) | st.sampled_from(["80E18005", "SeparateNPU", "ManuallySeparateNPU"])
scalars = st.none() | st.booleans() | st.sampled_from([0, 1, 60, -1, 10**30, 1.5, 1e400]) | texts
rule_fields = ["EventId", "Times", "TimeWindow", "ReleaseTimeWindow", "FaultTimeout", "FaultHandling"]
list_fields = ["FaultFrequency", "FaultDuration", "SeparateNPUCodes", "x"]
fields = st.sampled_from(rule_fields + list_fields)
json_values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(fields, inner, max_size=4), max_leaves=12
)
keys = st.sampled_from(["faultCode.json", "faultCustomization.json", "PollInterval", "x"])


@given(st.dictionaries(keys, json_values.map(json.dumps) | texts))
def test_any_content_is_read_or_refused_but_never_crashes(data: dict[str, str]) -> None:
    rules, refused = read_rules(data, NO_RULES)
    assert isinstance(rules, FaultRules)
    assert all(len(sentence) < 500 for sentence in refused)
