"""Makes the fake libraries answer as a report of ``npuctl selftest`` says."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final

from device_plugin.driver.dcmi.calls import STARTED, Place
from device_plugin.driver.dcmi.lingqu import LingquEvent
from device_plugin.driver.dcmi.recording import Call
from tests.dcmi.fake import FakeChip, FakeDcmi

_FIRST_PROCESS: Final = 2_000_000_000
"""Ids that no process has."""
_ADDRESSES: Final = {
    "usable": ("192.0.2.1", "2001:db8::1"),
    "link-local": ("169.254.0.1", "fe80::1"),
    "none": ("0.0.0.0", "::"),
}
"""Of both families, by what a report says of an address."""
_UTILIZATION: Final = {2: "utilization", 6: "hbm_percent", 12: "vector", 13: "overall"}
_NUMBERS: Final = {
    "dcmi_get_device_temperature": "temperature",
    "dcmi_get_device_power_info": "power",
    "dcmi_get_device_voltage": "voltage",
    "dcmi_get_device_frequency": "frequency",
    "dcmi_get_device_network_health": "network",
    "dcmi_get_device_boot_status": "boot",
    "dcmi_get_netdev_brother_device": "brother",
}


def replay(folder: Path, calls: Sequence[Call]) -> FakeDcmi:
    """Return the fake library with the chips and failures of these calls, its file in an empty folder."""
    fake = FakeDcmi(folder, list(_chips(calls)))
    fake.set(version=_last(calls, "dcmi_get_dcmi_version", [256], [""])[0])
    for call in calls:
        if call.function.startswith("lq_") or call.code == 0:
            continue
        card, device = _place(call, calls)
        if call.code is None:
            fake.hang(call.function, card=card, device=device)
        else:
            fake.fail(call.function, call.code, card=card, device=device, kind=_kind(call))
    return fake


def switch_faults(calls: Sequence[Call]) -> list[LingquEvent]:
    """The faults of switches in these calls, in the form of the library."""
    _, faults = _last(calls, "lq_dcmi_get_fault_info", [128], [0, []])
    return [LingquEvent(**each) for each in faults]


def _last(calls: Sequence[Call], function: str, arguments: list[Any], default: Any) -> Any:
    """The last answer to a call that succeeded."""
    found = (each.answer for each in reversed(calls) if _asked(each) == (function, arguments) and each.code == 0)
    return next(found, default)


def _asked(call: Call) -> tuple[str, list[Any]]:
    return call.function, call.arguments


def _chips(calls: Sequence[Call]) -> Iterator[FakeChip]:
    """The chips: those of the cards that are listed, and those that only the kernel knows."""
    logic_ids = {tuple(each.arguments): each.answer[0] for each in calls if _is(each, "dcmi_get_device_logic_id")}
    phy_ids = {each.arguments[0]: each.answer[0] for each in calls if _is(each, "dcmi_get_device_phyid_from_logicid")}
    unused = (number for number in count() if number not in {*logic_ids.values(), *phy_ids, *phy_ids.values()})
    places = [
        (call.arguments[0], device)
        for call in calls
        if _is(call, "dcmi_get_device_num_in_card")
        for device in range(call.answer[0])
    ]
    for place in dict.fromkeys(places):
        logic_id = logic_ids.get(place)
        logic_id = next(unused) if logic_id is None else logic_id
        phy_id = phy_ids.get(logic_id)
        yield _chip(calls, place, logic_id, next(unused) if phy_id is None else phy_id)
    cards = count(max((card for card, _ in places), default=-1) + 1)
    for logic_id in phy_ids.keys() - set(logic_ids.values()):
        yield FakeChip(card=next(cards), logic=logic_id, phy=phy_ids[logic_id], dropped=True)


def _is(call: Call, function: str) -> bool:
    return call.function == function and call.code == 0


def _chip(calls: Sequence[Call], place: Place, logic_id: int, phy_id: int) -> FakeChip:
    def answer(function: str, *kind: Any, default: Any = None) -> Any:
        return _last(calls, function, [*place, *kind], default)

    chip = FakeChip(*place, logic=logic_id, phy=phy_id, boot=STARTED)
    names = (answer("dcmi_get_device_chip_info_v2") or answer("dcmi_get_device_chip_info") or [{}])[0]
    chip.name, chip.npu_name = names.get("chip_name", ""), names.get("npu_name", "")
    chip.board = answer("dcmi_get_device_board_info", default=[{}])[0].get("board_id", 0)
    hbm = answer("dcmi_get_device_hbm_info", default=[{}])[0]
    chip.hbm, chip.hbm_used = hbm.get("memory_size", 0), hbm.get("memory_usage", 0)
    chip.hbm_temp, chip.hbm_rate = hbm.get("temp", 0), hbm.get("bandwidth_util_rate", 0)
    if (address := answer("dcmi_get_device_ip", 1, 0)) is not None:
        chip.ip = _ADDRESSES[address[0].get("address", "none")][0]
    elif (address := answer("dcmi_get_device_ip", 1, 0, *[{"ip_type": 1}] * 2)) is not None:
        chip.ip = _ADDRESSES[address[0].get("address", "none")][1]
    super_pod = answer("dcmi_get_device_info", 12, 1, default=[None])[0]
    if super_pod is not None:
        chip.sdid, chip.pod, chip.server = (super_pod.get(each, 0) for each in ("sdid", "super_pod_id", "server_id"))
    total = answer("dcmi_get_device_info", 52, 1, default=[{}])[0]
    chip.aicores = int(total.get("computing", {}).get("aic", 0) or names.get("aicore_cnt", 0))
    cpus = answer("dcmi_get_device_info", 52, 2, default=[{}])[0].get("computing", {}).get("device_aicpu")
    chip.vnpus = {
        vdev_id: _template(answer("dcmi_get_device_info", 52, 0, {"vdev_id": vdev_id}))
        for vdev_id in total.get("vdev_id", ())
    }
    chip.cpus = cpus if not chip.vnpus else None
    chip.affinity = answer("dcmi_get_affinity_cpu_info_by_device_id", default=[""])[0]
    if (pci := answer("dcmi_get_device_pcie_info_v2", default=[None])[0]) is not None:
        parts = ("domain", "bdf_busid", "bdf_deviceid", "bdf_funcid")
        chip.bdf = "{:04x}:{:02x}:{:02x}.{:x}".format(*(pci.get(part, 0) & 0xFFFFFFFF for part in parts))
    chip.health = answer("dcmi_get_device_health", default=[0])[0]
    chip.codes = dict.fromkeys(answer("dcmi_get_device_errorcode_v2", 128, default=[0, []])[1], 0)
    chip.processes = range(_FIRST_PROCESS, _FIRST_PROCESS + answer("dcmi_get_device_resource_info", default=[[], 0])[1])
    for kind, key in _UTILIZATION.items():
        setattr(chip, key, answer("dcmi_get_device_utilization_rate", kind, default=[0])[0])
    for function, key in _NUMBERS.items():
        kinds = (7,) if key == "frequency" else ()
        if (found := answer(function, *kinds)) is not None:
            setattr(chip, key, found[0])
    return chip


def _template(query: Any) -> str:
    info = query[0].get("query_info", {}) if query is not None else {}
    return f"{info.get('name', '')}{':used' if info.get('is_container_used') else ''}"


def _place(call: Call, calls: Sequence[Call]) -> tuple[int | None, int | None]:
    """The card and the device that a call is about."""
    match call.function, call.arguments:
        case "dcmi_get_device_phyid_from_logicid", [logic_id]:
            places = (each.arguments for each in calls if _is(each, "dcmi_get_device_logic_id"))
            found = [each for each in places if _last(calls, "dcmi_get_device_logic_id", each, None) == [logic_id]]
            return (found[0][0], found[0][1]) if found else (_NOWHERE, None)
        case "dcmi_get_device_num_in_card", [int(card)]:
            return card, None
        case "dcmi_init" | "dcmi_get_dcmi_version" | "dcmi_get_card_list", _:
            return None, None
        case _, [int(card), int(device), *_]:
            return card, device
    return None, None


_NOWHERE: Final = 1 << 16
"""A logic id that no chip has."""


def _kind(call: Call) -> int:
    """What a function is asked for, as the rules of fake_dcmi.c have it."""
    match call.function, call.arguments[2:]:
        case "dcmi_get_device_info", [int(main), int(sub), *_]:
            return main << 8 | sub
        case "dcmi_get_device_ip", [_, _, *given]:
            return given[0]["ip_type"] if given else 0
        case "dcmi_get_device_utilization_rate" | "dcmi_get_device_frequency" | "dcmi_get_device_die_v2", [int(kind)]:
            return kind
    return -1
