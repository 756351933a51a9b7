"""Reads the site's fault rules from the ConfigMap ``kube-system/mindx-dl-fault-config``, entry by entry.

An invalid entry is refused with a sentence, the others apply. The defaults have the same form and are shipped beside
this module (docs/spec/faults.md#fault-rules).
"""

import functools
import importlib.resources
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from ascend.errors import UNREADABLE, InvalidValue
from device_plugin.driver import LINK_DOWN
from device_plugin.health.fault_rules import NO_RULES, DurationRule, FaultRules, FrequencyRule
from device_plugin.health.levels import HBM_DOUBLE_BIT, NETWORK_CODES, FaultLevel
from device_plugin.health.switch_faults import read_switch_levels

_Rule = TypeVar("_Rule", bound=FrequencyRule | DurationRule)


CODES_FILE = "faultCode.json"
CUSTOM_FILE = "faultCustomization.json"
SWITCH_FILE = "SwitchFaultCode.json"
POLL_INTERVAL = "PollInterval"
"""How often the reference reads the ConfigMap; without effect here, because the ConfigMap is watched."""

_CHIP_LISTS = {
    "NotHandleFaultCodes": FaultLevel.NOT_HANDLE,
    "SubHealthFaultCodes": FaultLevel.SUB_HEALTH,
    "RestartRequestCodes": FaultLevel.RESTART_REQUEST,
    "RestartBusinessCodes": FaultLevel.RESTART_BUSINESS,
    "FreeRestartNPUCodes": FaultLevel.FREE_RESTART,
    "RestartNPUCodes": FaultLevel.RESTART,
    "PreSeparateNPUCodes": FaultLevel.PRE_SEPARATE,
    "SeparateNPUCodes": FaultLevel.SEPARATE,
}
_NETWORK_LISTS = {
    "NotHandleFaultNetworkCodes": FaultLevel.NOT_HANDLE,
    "SubHealthFaultNetworkCodes": FaultLevel.SUB_HEALTH,
    "PreSeparateNPUNetworkCodes": FaultLevel.PRE_SEPARATE,
    "SeparateNPUNetworkCodes": FaultLevel.SEPARATE,
}
_IN_NETWORK = frozenset(_NETWORK_LISTS.values())
"""The levels a network code can have; listed at another level it gets NotHandleFault.

See docs/spec/faults.md#fault-rules.
"""

_CODE = re.compile(r"(?:0[xX])?([0-9A-Fa-f]{1,16})")
_SECONDS = re.compile(r"[0-9]{1,9}")

_WINDOW_S = (60, 864_000)
_TIMES = (1, 100)
_RELEASE_S = (60, 1 << 32)
_FAULT_S = (0, 600)
_RECOVER_S = (0, 86_400)
_POLL_S = (30, 3600)

_DEFAULT_FAULT_S = {LINK_DOWN: 20, HBM_DOUBLE_BIT: 30}
"""``FaultTimeout`` of rules without one, by code; 0 for other codes. See docs/spec/faults.md#fault-rules."""
_DEFAULT_RECOVER_S = {LINK_DOWN: 60}
"""``RecoverTimeout`` likewise."""

_SHOWN = 60
"""How many characters of a refused value messages show."""


@functools.cache
def default_rules() -> FaultRules:
    """Return the rules of a MindCluster installation with default settings."""
    text = importlib.resources.files(__package__ or "").joinpath("fault_defaults.json").read_bytes()
    files = {name: msgspec.json.encode(content).decode() for name, content in msgspec.json.decode(text).items()}
    return read_rules(files, NO_RULES)[0]


def read_rules(data: Mapping[str, str], default: FaultRules) -> tuple[FaultRules, tuple[str, ...]]:
    """Read the rules from a ConfigMap's ``data``.

    A key replaces the whole part it describes: codes it does not list are unknown, as in the reference. The default
    applies to a key or list that is missing or unreadable.

    Args:
        data: the keys of the ConfigMap.
        default: the rules that apply where ``data`` has nothing readable.

    Returns:
        The rules, and a sentence for each entry that was refused.
    """
    refused: list[str] = []
    known = {CODES_FILE, CUSTOM_FILE, SWITCH_FILE, POLL_INTERVAL}
    refused += [f"{_shown(key)} is not a key of the fault rules" for key in sorted(data.keys() - known)]
    rules = default
    if (codes := _read_object(data, CODES_FILE, refused)) is not None:
        rules = _with_levels(rules, codes, refused)
    if (custom := _read_object(data, CUSTOM_FILE, refused)) is not None:
        rules = _with_customization(rules, custom, refused)
    if (switches := _read_object(data, SWITCH_FILE, refused)) is not None:
        problems: list[str] = []
        rules = replace(rules, switches=read_switch_levels(switches, default.switches, problems))
        refused += [f"{SWITCH_FILE}: {problem}" for problem in problems]
    if (text := data.get(POLL_INTERVAL)) is not None:
        _check_poll_interval(text, refused)
    return rules, tuple(refused)


def _read_object(data: Mapping[str, str], key: str, refused: list[str]) -> dict[str, Any] | None:
    if key not in data:
        return None
    try:
        return msgspec.json.decode(data[key], type=dict[str, Any])
    except UNREADABLE as error:
        refused.append(f"{key}: {error}; the default applies")
        return None


def _with_levels(rules: FaultRules, codes: Mapping[str, Any], refused: list[str]) -> FaultRules:
    """Apply the levels of ``faultCode.json``; a code in several lists gets the most serious of their levels."""
    chip: dict[int, FaultLevel] = {}
    network: dict[int, FaultLevel] = {}
    spellings = dict(rules.spellings)
    lists = {**_CHIP_LISTS, **_NETWORK_LISTS}
    refused += [f"{CODES_FILE}: {_shown(name)} is not a list of codes" for name in codes if name not in lists]
    for name, level in lists.items():
        if not isinstance(codes.get(name, []), list):
            refused.append(f"{CODES_FILE}: {name} is {_shown(codes[name])}, not a list; the default applies")
            source = rules.network if name in _NETWORK_LISTS else rules.chip
            for code in (code for code, usual in source.items() if usual is level):
                _raise_to(network if name in _NETWORK_LISTS else chip, code, level)
            continue
        for text in codes.get(name, []):
            try:
                code = _read_code(text)
                if name in _NETWORK_LISTS and code not in NETWORK_CODES:
                    raise InvalidValue(f"{text!r} is not a network code")
            except InvalidValue as error:
                refused.append(f"{CODES_FILE}: {name}: {error}")
                continue
            if text.startswith("0") and not text.startswith(("0x", "0X")):
                spellings[code] = text.upper()
            if code in NETWORK_CODES:
                _raise_to(network, code, level if level in _IN_NETWORK else FaultLevel.NOT_HANDLE)
            else:
                _raise_to(chip, code, level)
    return replace(rules, chip=chip, network=network, spellings=spellings)


def _raise_to(table: dict[int, FaultLevel], code: int, level: FaultLevel) -> None:
    table[code] = max(level, table.get(code, level))


def _with_customization(rules: FaultRules, custom: Mapping[str, Any], refused: list[str]) -> FaultRules:
    """Apply the rules of ``faultCustomization.json``; ``GraceTolerance`` has no effect, as in the reference."""
    known = {"GraceTolerance", "FaultFrequency", "FaultDuration"}
    refused += [f"{CUSTOM_FILE}: {_shown(name)} is not a kind of rule" for name in custom if name not in known]
    return replace(
        rules,
        frequency=_rules_of(custom, "FaultFrequency", _frequency_rules, rules.frequency, refused),
        duration=_rules_of(custom, "FaultDuration", _duration_rules, rules.duration, refused),
    )


def _rules_of(
    custom: Mapping[str, Any],
    kind: str,
    read: Callable[[Any], Iterator[_Rule]],
    default: Mapping[int, tuple[_Rule, ...]],
    refused: list[str],
) -> Mapping[int, tuple[_Rule, ...]]:
    """Return the rules of a kind by code: none if the kind is missing, the default if it is not a list."""
    entries = custom.get(kind, [])
    if not isinstance(entries, list):
        refused.append(f"{CUSTOM_FILE}: {kind} is {_shown(entries)}, not a list; the default applies")
        return default
    found: dict[int, tuple[_Rule, ...]] = {}
    for index, entry in enumerate(entries):
        try:
            for rule in read(entry):
                found[rule.code] = (*found.get(rule.code, ()), rule)
        except InvalidValue as error:
            refused.append(f"{CUSTOM_FILE}: {kind}[{index}]: {error}")
    return found


def _frequency_rules(entry: Any) -> Iterator[FrequencyRule]:
    codes, level = _subject(entry)
    window_s = _whole(entry, "TimeWindow", _WINDOW_S)
    times = _whole(entry, "Times", _TIMES)
    release_s = _whole(entry, "ReleaseTimeWindow", _RELEASE_S) if entry.get("ReleaseTimeWindow", 0) != 0 else None
    if release_s is None and level is not FaultLevel.MANUALLY_SEPARATE:
        raise InvalidValue(f"ReleaseTimeWindow is missing, only {FaultLevel.MANUALLY_SEPARATE.wire} can do without")
    return (FrequencyRule(code, window_s, times, level, release_s) for code in codes)


def _duration_rules(entry: Any) -> Iterator[DurationRule]:
    codes, level = _subject(entry)
    if level is FaultLevel.MANUALLY_SEPARATE:
        raise InvalidValue(f"FaultHandling is {level.wire}, which only an operator could undo")
    fault_s = _optional(entry, "FaultTimeout", _FAULT_S)
    recover_s = _optional(entry, "RecoverTimeout", _RECOVER_S)
    return (
        DurationRule(
            code,
            _DEFAULT_FAULT_S.get(code, 0) if fault_s is None else fault_s,
            _DEFAULT_RECOVER_S.get(code, 0) if recover_s is None else recover_s,
            level,
        )
        for code in codes
    )


def _subject(entry: Any) -> tuple[dict[int, None], FaultLevel]:
    """Read the part that all rules share: the level, and the codes in order without duplicates."""
    if not isinstance(entry, dict):
        raise InvalidValue(f"{_shown(entry)} is not an object")
    texts = entry.get("EventId")
    if not isinstance(texts, list) or not texts:
        raise InvalidValue(f"EventId is {_shown(texts)}, not a list of codes")
    text = entry.get("FaultHandling")
    try:
        codes = dict.fromkeys(_read_code(code) for code in texts)
    except InvalidValue as error:
        raise InvalidValue(f"EventId: {error}") from None
    level = FaultLevel.of_wire(text) if isinstance(text, str) and len(text) <= _SHOWN else FaultLevel.NORMAL
    if level is FaultLevel.NORMAL:
        raise InvalidValue(f"FaultHandling is {_shown(text)}, not a level to raise a fault to")
    return codes, level


def _read_code(text: Any) -> int:
    match = _CODE.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidValue(f"{_shown(text)} is not a fault code in hex")
    return int(match[1], 16)


def _whole(entry: Mapping[str, Any], field: str, bounds: tuple[int, int]) -> int:
    value = entry.get(field)
    low, high = bounds
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidValue(f"{field} is {_shown(value)}, not a whole number from {low} to {high}")
    return value


def _optional(entry: Mapping[str, Any], field: str, bounds: tuple[int, int]) -> int | None:
    return _whole(entry, field, bounds) if entry.get(field) is not None else None


def _check_poll_interval(text: str, refused: list[str]) -> None:
    low, high = _POLL_S
    if not (_SECONDS.fullmatch(text) and low <= int(text) <= high):
        refused.append(
            f"{POLL_INTERVAL} is {_shown(text)}, not a whole number of seconds from {low} to {high}; "
            "the setting has no effect here"
        )


def _shown(value: Any) -> str:
    try:
        text = "missing" if value is None else msgspec.json.encode(value).decode()
    except (*UNREADABLE, OverflowError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
