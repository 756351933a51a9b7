"""The ConfigMap ``mindx-dl-deviceinfo-<node>``, a node's report about its chips, byte for byte as its consumers expect.

Volcano's plugin and ClusterD read it; ClusterD drops it if the CheckCode does not match
(docs/spec/node-report.md#what-readers-depend-on, docs/spec/node-report.md#configmap).
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

import msgspec

from ascend.annotations import UNKNOWN
from ascend.chips import (
    RESOURCE,
    ChipSet,
    chip_ids,
    chip_name,
    chip_set,
    join_names,
    join_names_sorted,
    parse_chip_name,
    parse_chip_or_vnpu,
)
from ascend.errors import UNREADABLE, InvalidReport, InvalidValue
from ascend.fabric_switches import SwitchReport, switch_info
from ascend.faults import FAULT_LIST, Fault, Upgrade, read_faults

NAMESPACE = "kube-system"
NAME_PREFIX = "mindx-dl-deviceinfo-"
LABELS = {"mx-consumer-cim": "true"}
"""ClusterD and Volcano's plugin select the ConfigMap by this label (docs/spec/node-report.md#label-and-checkcode)."""

WRITTEN_BY = "ascend-affinity.io/written-by"
OUR_PLUGIN = "ascend-device-plugin"
"""An annotation of the ConfigMap and its value, while this project's plugin writes it: MindCluster's removes it."""

DEVICE_INFO = "DeviceInfoCfg"
SWITCH_INFO = "SwitchInfoCfg"
MANUALLY_SEPARATED = "ManuallySeparateNPU"
UPGRADE_REASONS = "UpgradeFaultReason"
DESCRIPTION = "Description"

_DESCRIPTION_TEXT = (
    "The field[xxx.com/xxx] is sunset. Volcano has the ability to maintain the usage status of chips on its own, "
    "and can temporarily use this field by configuring the Volcano parameter 'self-maintain-available-card'"
)
"""The reference's text, verbatim (docs/spec/node-report.md#configmap)."""

_UNHEALTHY = f"{RESOURCE}-Unhealthy"
_NETWORK_UNHEALTHY = f"{RESOURCE}-NetworkUnhealthy"
_RECOVERING = f"{RESOURCE}-Recovering"

_LATEST_S: Final = 253_402_300_799
"""The end of the year 9999. A later time can't be formatted; it was probably written in milliseconds."""

# Go's json.Marshal escapes these characters, Python's encoders don't; the CheckCode covers Go's bytes
# (docs/spec/node-report.md#checkcode).
_GO_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
_GO_ESCAPE_TABLE = str.maketrans(_GO_ESCAPES)


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """A node's report about its chips.

    Attributes:
        free: chips that are healthy and held by no pod.
        unhealthy: chips that must not be used; they may be in use.
        network_unhealthy: chips that distributed jobs must not use; they may be free.
        update_time_s: when it was written, Unix seconds; 0 once the node's plugin has ended and no longer renews it.
        recovering: chips that are being reset.
        faults: one entry per chip and domain.
        super_pod_id: the node's SuperPod, -2 if unknown.
        server_index: the node's index within it, -2 if unknown.
        rack_id: the node's rack, -2 if unknown. This project's device plugin does not write it.
        manually_separated: chips taken out of use by an operator or by the frequency rule.
        upgrades: why the levels of chips are worse than those of their fault codes, by physical id.
        switches: the state of the server's switches; None if it has none, or has not read them yet. Not decoded.
    """

    free: ChipSet
    unhealthy: ChipSet
    network_unhealthy: ChipSet
    update_time_s: int
    recovering: ChipSet = 0
    faults: tuple[Fault, ...] = ()
    super_pod_id: int = UNKNOWN
    server_index: int = UNKNOWN
    rack_id: int = UNKNOWN
    manually_separated: ChipSet = 0
    upgrades: Mapping[int, tuple[Upgrade, ...]] = field(default_factory=dict)
    switches: SwitchReport | None = None


class _DeviceInfo(msgspec.Struct, frozen=True):
    DeviceList: dict[str, str]
    UpdateTime: Annotated[int, msgspec.Meta(ge=0, le=_LATEST_S)]


class _DeviceInfoCfg(msgspec.Struct, frozen=True):
    DeviceInfo: _DeviceInfo
    SuperPodID: int = UNKNOWN
    ServerIndex: int = UNKNOWN
    RackID: int | msgspec.UnsetType = msgspec.UNSET
    CheckCode: str = ""


def config_map_name(node: str) -> str:
    """The name of a node's ConfigMap."""
    return NAME_PREFIX + node


def node_name(config_map: str) -> str | None:
    """The node that a ConfigMap of this name is about; None for other ConfigMaps."""
    return config_map.removeprefix(NAME_PREFIX) if config_map.startswith(NAME_PREFIX) else None


def check_code(device_list: Mapping[str, str], update_time_s: int) -> str:
    """SHA-256, lower-case hex, over Go's JSON of the inner object ``{"DeviceList":{…},"UpdateTime":n}``.

    See docs/spec/node-report.md#checkcode.
    """
    inner = _go_json(_DeviceInfo(dict(device_list), update_time_s), order="sorted")
    return hashlib.sha256(inner.encode()).hexdigest()


def _go_json(value: object, order: Literal["sorted"] | None = None) -> str:
    text = msgspec.json.encode(value, order=order).decode()
    return text.translate(_GO_ESCAPE_TABLE) if any(map(text.__contains__, _GO_ESCAPES)) else text


def encode_report(report: DeviceReport) -> dict[str, str]:
    """Encode a report as the ConfigMap's ``data``.

    See docs/spec/node-report.md#configmap, docs/spec/node-report.md#deviceinfocfg.
    """
    device_list = {
        RESOURCE: join_names_sorted(chip_ids(report.free)),
        FAULT_LIST: _go_json(report.faults),
        _NETWORK_UNHEALTHY: join_names_sorted(chip_ids(report.network_unhealthy)),
        _RECOVERING: join_names_sorted(chip_ids(report.recovering)),
        _UNHEALTHY: join_names_sorted(chip_ids(report.unhealthy)),
    }
    cfg = _DeviceInfoCfg(
        _DeviceInfo(device_list, report.update_time_s),
        report.super_pod_id,
        report.server_index,
        report.rack_id if report.rack_id >= 0 else msgspec.UNSET,
        check_code(device_list, report.update_time_s),
    )
    data = {
        DEVICE_INFO: _go_json(cfg),
        MANUALLY_SEPARATED: join_names(chip_ids(report.manually_separated)),
        UPGRADE_REASONS: _go_json({chip_name(phy_id): upgrade for phy_id, upgrade in report.upgrades.items()}),
        DESCRIPTION: _DESCRIPTION_TEXT,
    }
    if report.switches is not None:
        data[SWITCH_INFO] = _go_json(switch_info(report.switches, report.update_time_s))
    return data


def read_update_time(data: Mapping[str, str]) -> int:
    """Return when a ConfigMap's report was written, Unix seconds; 0 if it is unreadable or says nothing."""
    try:
        return msgspec.json.decode(data.get(DEVICE_INFO, ""), type=_DeviceInfoCfg).DeviceInfo.UpdateTime
    except UNREADABLE:
        return 0


def next_update_time(now_s: float, latest_s: int) -> int:
    """Return the UpdateTime of a report that is written now, Unix seconds.

    It is later than that of every report before, also if the clock was set back: the reference's scheduler takes over a
    report only if its time is later than that of the last one (docs/spec/node-report.md#freshness).

    Args:
        now_s: the wall clock, Unix seconds.
        latest_s: the latest time of a report before; 0 if there was none.
    """
    return min(max(int(now_s), latest_s + 1), _LATEST_S)


def decode_report(data: Mapping[str, str]) -> DeviceReport:
    """Decode a ConfigMap's ``data``, written by this project's device plugin or by the reference's.

    Without the upgrades: only the node's own plugin needs them (``read_upgrades``). Invalid entries are left out if
    they don't exclude a chip: in the list of free chips, and in codes and times of faults
    (docs/spec/scheduling.md#malformed-input).

    Raises:
        InvalidReport: ``DeviceInfoCfg`` is missing or malformed, an entry of a list that excludes chips is invalid, or
            its CheckCode does not match its content.
    """
    text = data.get(DEVICE_INFO)
    if text is None:
        raise InvalidReport(f"the key {DEVICE_INFO} is missing")
    try:
        cfg = msgspec.json.decode(text, type=_DeviceInfoCfg)
        listed = cfg.DeviceInfo.DeviceList
        expected = check_code(listed, cfg.DeviceInfo.UpdateTime)
        if cfg.CheckCode != expected:
            raise InvalidReport(f"CheckCode is {cfg.CheckCode!r}, expected {expected!r}")
        report = read_device_list(listed, cfg.DeviceInfo.UpdateTime, cfg.SuperPodID, cfg.ServerIndex)
    except InvalidReport:
        raise
    except (*UNREADABLE, InvalidValue) as error:
        raise InvalidReport(f"{DEVICE_INFO}: {error}") from error
    rack = cfg.RackID if cfg.RackID is not msgspec.UNSET else UNKNOWN
    separated = read_manually_separated(data)[0]
    return replace(report, rack_id=rack, manually_separated=separated) if separated or rack != UNKNOWN else report


def read_device_list(
    listed: Mapping[str, str], update_time_s: int, super_pod_id: int, server_index: int
) -> DeviceReport:
    """Read the lists of a report, as a device plugin writes them and ClusterD copies them.

    Args:
        listed: the lists of chips, and that of faults.
        update_time_s: when they were written, Unix seconds.
        super_pod_id: the node's SuperPod, negative if unknown.
        server_index: the node's index within it, negative if unknown.

    Raises:
        InvalidValue: an entry of a list that excludes chips is invalid, or the list of faults is malformed.
    """
    return DeviceReport(
        free=_read_names(listed.get(RESOURCE, ""))[0],
        unhealthy=_listed(listed, _UNHEALTHY),
        network_unhealthy=_listed(listed, _NETWORK_UNHEALTHY),
        update_time_s=update_time_s,
        recovering=_listed(listed, _RECOVERING),
        faults=read_faults(listed.get(FAULT_LIST, "")),
        super_pod_id=super_pod_id,
        server_index=server_index,
    )


def read_manually_separated(data: Mapping[str, str]) -> tuple[ChipSet, tuple[str, ...]]:
    """The chips separated manually, and the invalid entries.

    People write this list by hand, and one invalid entry must not disable the others
    (docs/spec/faults.md#manual-separation).
    """
    return _read_names(data.get(MANUALLY_SEPARATED, ""))


def read_upgrades(data: Mapping[str, str]) -> dict[int, tuple[Upgrade, ...]]:
    """The upgrades in a ConfigMap's ``data``, by physical id (docs/spec/node-report.md#upgradefaultreason).

    Raises:
        InvalidReport: they are malformed.
    """
    try:
        upgrades = msgspec.json.decode(data.get(UPGRADE_REASONS) or "{}", type=dict[str, tuple[Upgrade, ...]])
        return {parse_chip_name(name): upgrade for name, upgrade in upgrades.items()}
    except (*UNREADABLE, InvalidValue) as error:
        raise InvalidReport(f"{UPGRADE_REASONS}: {error}") from error


def _listed(device_list: Mapping[str, str], key: str) -> ChipSet:
    """Read a list of excluded chips; an invalid entry may stand for any chip, so it invalidates the whole list.

    An unhealthy vNPU makes its chip unhealthy (docs/spec/vnpu.md#static-vnpus).
    """
    text = device_list.get(key, "")
    try:
        return chip_set(map(parse_chip_or_vnpu, text.split(","))) if text else 0
    except InvalidValue as error:
        raise InvalidValue(f"{key}: {error}") from None


def _read_names(text: str) -> tuple[ChipSet, tuple[str, ...]]:
    """The chips of a list, and its invalid entries."""
    chips: ChipSet = 0
    invalid = []
    for entry in filter(None, map(str.strip, text.split(","))):
        try:
            chips |= 1 << parse_chip_name(entry)
        except InvalidValue:
            invalid.append(entry)
    return chips, tuple(invalid)
