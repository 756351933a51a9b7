"""Faults in the report: one entry per chip and domain, the network's first (docs/spec/node-report.md#fault-entries)."""

import json
from dataclasses import replace

import msgspec

from ascend.deviceinfo import decode_report, encode_report
from ascend.fabric_switches import UNREADABLE_SWITCHES, SwitchFault
from ascend.faults import FaultTime, Upgrade
from device_plugin.driver import ChipFacts, Inventory
from device_plugin.health.fault_rules_file import default_rules
from device_plugin.health.levels import FaultLevel
from device_plugin.health.switch_faults import assess
from device_plugin.health.upgrades import UpgradeReason
from device_plugin.publish.report import (
    AUTOFILL_CODE,
    MAX_CODES,
    make_report,
    read_faulty,
    read_harmless,
    read_reasons,
)
from tests.device_plugin.builders import fault, judged_chip, server, snapshot

CONFIG_MAP_LIMIT = 1 << 20


def test_network_and_chip_faults_are_separate_entries() -> None:
    link = fault("81078603", FaultLevel.PRE_SEPARATE, since_ms=77)
    found = make_report(
        snapshot(
            chips={
                0: judged_chip(
                    healthy=True, network_healthy=False, network_level=FaultLevel.PRE_SEPARATE, network_faults=(link,)
                ),
                4: judged_chip(
                    healthy=False,
                    network_healthy=False,
                    level=FaultLevel.SEPARATE,
                    network_level=FaultLevel.PRE_SEPARATE,
                    faults=(fault("80E18402"),),
                    network_faults=(link,),
                ),
                5: judged_chip(
                    healthy=True,
                    network_healthy=True,
                    level=FaultLevel.NOT_HANDLE,
                    faults=(fault("80E18401", FaultLevel.NOT_HANDLE),),
                ),
            }
        ),
        1,
    )
    assert [(each.npu_name, each.fault_type, each.fault_level, each.fault_code) for each in found.faults] == [
        ("Ascend910-0", "CardNetworkUnhealthy", "PreSeparateNPU", "81078603"),
        ("Ascend910-4", "CardNetworkUnhealthy", "PreSeparateNPU", "81078603"),
        ("Ascend910-4", "CardUnhealthy", "SeparateNPU", "80E18402"),
        ("Ascend910-5", "CardUnhealthy", "NotHandleFault", "80E18401"),
    ]
    assert found.faults[0].fault_time_and_level_map["81078603"].fault_time == 77


def test_an_unhealthy_chip_without_a_code_is_an_entry_with_its_level() -> None:
    (own,) = make_report(snapshot(3), 1).faults
    assert (own.npu_name, own.fault_level, own.fault_code) == ("Ascend910-3", "SeparateNPU", "")


def test_a_report_distinguishes_faulty_chips_from_silent_or_waiting_ones() -> None:
    link = fault("81078603", FaultLevel.PRE_SEPARATE)
    spared = judged_chip(healthy=True, level=FaultLevel.PRE_SEPARATE, faults=(fault("A1", FaultLevel.PRE_SEPARATE),))
    silent = judged_chip(healthy=False, level=FaultLevel.NOT_HANDLE, faults=(fault("A2", FaultLevel.NOT_HANDLE),))
    chips = {
        0: judged_chip(network_healthy=False, network_level=FaultLevel.PRE_SEPARATE, network_faults=(link,)),
        1: judged_chip(
            healthy=False, level=FaultLevel.SEPARATE, faults=(fault("A3"), fault("A2", FaultLevel.NOT_HANDLE))
        ),
        2: spared,
        3: silent,
        4: judged_chip(network_healthy=False),
    }
    found = decode_report(encode_report(make_report(snapshot(5, chips=chips), 1)))
    assert read_faulty(found) == (0b10, 0b1)
    nowhere = [msgspec.structs.replace(each, npu_name="x") for each in found.faults]
    assert read_faulty(replace(found, faults=tuple(nowhere))) == (0, 0)


def test_upgrade_reasons_have_the_format_of_the_reference() -> None:
    reason = UpgradeReason(0x81078603, FaultLevel.PRE_SEPARATE, "FaultDuration", 1795250167592)
    found = make_report(snapshot(upgrade_reasons={1: (reason,)}), 1)
    # See docs/spec/node-report.md#network-fault.
    assert encode_report(found)["UpgradeFaultReason"] == (
        '{"Ascend910-1":[{"upgrade_time":1795250167592,"fault_code":"81078603",'
        '"fault_level":"PreSeparateNPU","upgrade_type":"FaultDuration"}]}'
    )


def test_upgrade_reasons_are_read_back_and_invalid_ones_ignored() -> None:
    reasons = {
        1: (UpgradeReason(0x81078603, FaultLevel.PRE_SEPARATE, "FaultDuration", 5),),
        7: (
            UpgradeReason(0x80E18005, FaultLevel.MANUALLY_SEPARATE, "FaultFrequency", 6),
            UpgradeReason(0, FaultLevel.MANUALLY_SEPARATE, "FaultAutofill", 7),
        ),
    }
    found = make_report(snapshot(upgrade_reasons=reasons), 1).upgrades
    assert found[7][1].fault_code == AUTOFILL_CODE
    assert read_reasons(found) == reasons
    odd = (
        Upgrade(1, "xyz", "SeparateNPU", "FaultFrequency"),
        Upgrade(1, "1", "Nonsense", "FaultFrequency"),
        Upgrade(1, "1", "SeparateNPU", "Nonsense"),
    )
    assert read_reasons({0: odd}) == {}


def test_switches_are_reported_once_their_state_is_known() -> None:
    assert "SwitchInfoCfg" not in encode_report(make_report(snapshot(), 1))
    unreadable = encode_report(make_report(snapshot(), 1, UNREADABLE_SWITCHES))["SwitchInfoCfg"]
    assert unreadable == (
        '{"FaultCode":null,"FaultLevel":"","UpdateTime":0,"NodeStatus":"","FaultTimeAndLevelMap":null}'
    )
    good = encode_report(make_report(snapshot(), 7, assess((), {})))["SwitchInfoCfg"]
    assert good == '{"FaultCode":[],"FaultLevel":"","UpdateTime":7,"NodeStatus":"Healthy","FaultTimeAndLevelMap":{}}'
    down = SwitchFault(0x8520003, "[0x08520003,na,npu,na]", 1, 2, 3, 4, 2, 1, 1744167455784)
    bad = encode_report(make_report(snapshot(), 7, assess((down,), default_rules().switches)))["SwitchInfoCfg"]
    assert bad == (
        r'{"FaultCode":["{\"EventType\":139591683,\"AssembledFaultCode\":\"[0x08520003,na,npu,na]\",'
        r"\"PeerPortDevice\":1,\"PeerPortId\":2,\"SwitchChipId\":3,\"SwitchPortId\":4,\"Severity\":2,"
        r'\"Assertion\":1,\"AlarmRaisedTime\":1744167455784}"],"FaultLevel":"Separate","UpdateTime":7,'
        '"NodeStatus":"UnHealthy","FaultTimeAndLevelMap":{"[0x08520003,na,npu,na]_3_4":'
        '{"fault_time":1744167455784,"fault_level":"Separate"}}}'
    )


def test_a_report_with_all_faults_is_small_enough() -> None:
    many = tuple(fault(f"{0x80000000 + number:08X}", since_ms=1795250147592) for number in range(500))
    worst = judged_chip(
        healthy=False,
        network_healthy=False,
        level=FaultLevel.SEPARATE,
        network_level=FaultLevel.SEPARATE,
        faults=many,
        network_faults=many,
    )
    found = make_report(snapshot(chips=dict.fromkeys(range(16), worst), of=_sixteen()), 1)
    assert len(found.faults[0].fault_time_and_level_map) == MAX_CODES
    assert len(json.dumps(encode_report(found))) < CONFIG_MAP_LIMIT / 2


def _sixteen() -> Inventory:
    return server(*(ChipFacts(chip_id) for chip_id in range(16)))


def test_harmless_codes_are_read_back_and_invalid_ones_ignored() -> None:
    unknown, known = fault("DEAD", FaultLevel.NOT_HANDLE), fault("80CD8003", FaultLevel.NOT_HANDLE)
    judged = judged_chip(
        healthy=False,
        level=FaultLevel.SEPARATE,
        faults=(fault("BEEF"), unknown, known),
        network_faults=(fault("81078603", FaultLevel.NOT_HANDLE),),
    )
    found = decode_report(encode_report(make_report(snapshot(chips={3: judged}), 1)))
    assert read_harmless(found.faults) == {3: {0xDEAD, 0x80CD8003, 0x81078603}}
    (entry,) = make_report(snapshot(chips={4: judged_chip(faults=(unknown,))}), 1).faults
    nowhere = msgspec.structs.replace(entry, npu_name="chip4")
    times = {"no code": FaultTime(1, "NotHandleFault")}
    assert read_harmless([nowhere, msgspec.structs.replace(entry, fault_time_and_level_map=times)]) == {}


def test_a_chip_in_doubt_is_not_reported_while_a_pod_runs_with_it() -> None:
    silent = replace(judged_chip(healthy=False), in_doubt=True)
    port = replace(judged_chip(network_healthy=False), network_in_doubt=True)
    broken = judged_chip(healthy=False, level=FaultLevel.SEPARATE, faults=(fault("A3"),))
    chips = {1: silent, 2: port, 3: broken}
    in_use = make_report(snapshot(chips=chips, used=0b1110, running=0b1110), 1)
    assert (in_use.unhealthy, in_use.network_unhealthy) == (0b1000, 0)
    assert [each.npu_name for each in in_use.faults] == ["Ascend910-3"]
    # A pod that is only bound to it can still be refused, so others must not be bound to it either.
    bound = make_report(snapshot(chips=chips, used=0b1110), 1)
    assert (bound.unhealthy, bound.network_unhealthy) == (0b1010, 0b100)
    assert [(each.npu_name, each.fault_level) for each in bound.faults] == [
        ("Ascend910-1", "SeparateNPU"),
        ("Ascend910-2", "PreSeparateNPU"),
        ("Ascend910-3", "SeparateNPU"),
    ]


def test_a_milder_fault_of_a_chip_in_doubt_is_still_reported_while_a_pod_runs_with_it() -> None:
    held = replace(
        judged_chip(healthy=False, level=FaultLevel.SUB_HEALTH, faults=(fault("A2", FaultLevel.SUB_HEALTH),)),
        in_doubt=True,
    )
    found = make_report(snapshot(chips={1: held}, used=0b10, running=0b10), 1)
    assert found.unhealthy == 0
    assert [each.fault_level for each in found.faults] == ["SubHealthFault"]
