"""The device report of a node, in the format of Huawei's device plugin."""

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.chips import RESOURCE
from ascend.deviceinfo import (
    DEVICE_INFO,
    MANUALLY_SEPARATED,
    UPGRADE_REASONS,
    DeviceReport,
    check_code,
    config_map_name,
    decode_report,
    encode_report,
    node_name,
    read_manually_separated,
    read_upgrades,
)
from ascend.errors import InvalidReport
from ascend.faults import FaultTime, Upgrade, chip_fault

# The literal of docs/spec/node-report.md#golden-report.
GOLDEN = Path(__file__).with_name("golden_device_info.json").read_text().rstrip("\n")
GOLDEN_CHECK_CODE = "a550811fdfafb5717555526816af2ca4ac6c3e102f5907574048578e0c8fcc73"
masks = st.integers(0, 2**16 - 1)
reports = st.builds(
    DeviceReport,
    free=masks,
    unhealthy=masks,
    network_unhealthy=masks,
    update_time_s=st.integers(0, 253_402_300_799),
    super_pod_id=st.integers(-2, 2**31 - 1),
    server_index=st.integers(-2, 2**31 - 1),
    manually_separated=masks,
)


def test_the_golden_report_is_reproduced_byte_for_byte() -> None:
    report = decode_report({DEVICE_INFO: GOLDEN})
    assert report.free == 0b11101111
    assert report.unhealthy == 0b00010000
    assert report.network_unhealthy == 0b00000001
    assert encode_report(report)[DEVICE_INFO] == GOLDEN


def test_the_check_code_of_the_golden_report() -> None:
    inner = json.loads(GOLDEN)["DeviceInfo"]
    assert check_code(inner["DeviceList"], inner["UpdateTime"]) == GOLDEN_CHECK_CODE


def test_the_check_code_covers_the_json_that_go_prints() -> None:
    # By docs/spec/node-report.md#checkcode: Go escapes the special characters of HTML; written out by hand here
    go = '{"DeviceList":{"a":"x\\u003cy\\u0026z\\u003e\\u2028"},"UpdateTime":7}'
    assert check_code({"a": "x<y&z>\u2028"}, 7) == hashlib.sha256(go.encode()).hexdigest()


@given(reports)
def test_a_report_is_read_back(report: DeviceReport) -> None:
    assert decode_report(encode_report(report)) == report


def test_a_fault_is_read_back() -> None:
    fault = chip_fault(chip_id=3, level="SeparateNPU", codes={"80E18402": FaultTime(1744167455784, "SeparateNPU")})
    report = DeviceReport(free=1, unhealthy=8, network_unhealthy=0, update_time_s=1, faults=(fault,))
    assert decode_report(encode_report(report)).faults == (fault,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, "the key DeviceInfoCfg is missing"),
        ({DEVICE_INFO: ""}, "DeviceInfoCfg"),
        ({DEVICE_INFO: "{}"}, "DeviceInfo"),
        ({DEVICE_INFO: '{"DeviceInfo":' + "[" * 100_000}, "DeviceInfo"),
        ({DEVICE_INFO: GOLDEN.replace("Ascend910-7", "Ascend910-8")}, "CheckCode"),
        ({DEVICE_INFO: GOLDEN.replace(GOLDEN_CHECK_CODE, "0" * 64)}, "CheckCode"),
    ],
)
def test_an_invalid_report_is_refused_with_the_cause(data: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidReport, match=why):
        decode_report(data)


def test_the_name_of_a_config_map_yields_its_node() -> None:
    assert node_name(config_map_name("n1")) == "n1"
    assert node_name("kube-root-ca.crt") is None


@pytest.mark.parametrize(
    ("text", "chips", "invalid"),
    [
        ("", 0, ()),
        ("Ascend910-1,Ascend910-3", 0b1010, ()),
        (" Ascend910-1 ,, Ascend910-1", 0b10, ()),
        ("chip three,Ascend910-3,Ascend910-999", 0b1000, ("chip three", "Ascend910-999")),
    ],
)
def test_an_error_in_the_list_of_separated_chips_affects_only_itself(
    text: str, chips: int, invalid: tuple[str, ...]
) -> None:
    data = {DEVICE_INFO: GOLDEN, MANUALLY_SEPARATED: text}
    assert read_manually_separated(data) == (chips, invalid)
    assert decode_report(data).manually_separated == chips


@pytest.mark.parametrize("text", ["{", "[]", '{"Ascend910-1":[{}]}', '{"card":[]}', "[" * 100_000])
def test_unreadable_upgrades_do_not_invalidate_the_report(text: str) -> None:
    data = {DEVICE_INFO: GOLDEN, UPGRADE_REASONS: text}
    with pytest.raises(InvalidReport, match="UpgradeFaultReason"):
        read_upgrades(data)
    assert decode_report(data).free == 0b1110_1111


def test_upgrades_of_the_reference_are_read() -> None:
    golden = (
        '{"Ascend910-1":[{"upgrade_time":1795250167592,"fault_code":"81078603",'
        '"fault_level":"PreSeparateNPU","upgrade_type":"FaultDuration"}]}'
    )
    upgrade = Upgrade(1795250167592, "81078603", "PreSeparateNPU", "FaultDuration")
    assert read_upgrades({UPGRADE_REASONS: golden}) == {1: (upgrade,)}
    assert read_upgrades({}) == {}


def listing(**lists: str) -> dict[str, str]:
    """A report with exactly these lists, as any plugin may write it."""
    device_list = {RESOURCE + key.replace("_", "-"): text for key, text in lists.items()}
    inner = {"DeviceList": device_list, "UpdateTime": 1}
    return {DEVICE_INFO: json.dumps({"DeviceInfo": inner, "CheckCode": check_code(device_list, 1)})}


def test_an_error_in_the_list_of_free_chips_affects_only_itself() -> None:
    report = decode_report(listing(**{"": "Ascend910-0, Ascend910-1,,card,Ascend910-2c-100-1"}))
    assert report.free == 0b11


def test_a_list_may_name_a_chip_twice() -> None:
    twice = "Ascend910-3,Ascend910-3"
    report = decode_report(listing(_Unhealthy=twice, _NetworkUnhealthy=twice, _Recovering=twice))
    assert (report.unhealthy, report.network_unhealthy, report.recovering) == (8, 8, 8)


@pytest.mark.parametrize("key", ["_Unhealthy", "_NetworkUnhealthy", "_Recovering"])
@pytest.mark.parametrize("text", ["Ascend910-0, Ascend910-1", "Ascend910-0,", "card", "Ascend910-999"])
def test_an_unreadable_element_of_other_lists_is_refused(key: str, text: str) -> None:
    with pytest.raises(InvalidReport, match=f"^DeviceInfoCfg: {RESOURCE}{key.replace('_', '-')}: "):
        decode_report(listing(**{key: text}))


@pytest.mark.parametrize("codes", ["null", "{}", '{"80E18402":null}', '{"80E18402":{"fault_time":"now"}}', "7", None])
def test_a_fault_counts_whatever_its_codes_are(codes: str | None) -> None:
    times = "" if codes is None else f',"fault_time_and_level_map":{codes}'
    entry = f'{{"npu_name":"Ascend910-3","fault_handling":"SubHealthFault","fault_code":"80E18402"{times}}}'
    (fault,) = decode_report(listing(_Fault=f"[{entry}]")).faults
    assert (fault.npu_name, fault.fault_handling, fault.fault_code) == ("Ascend910-3", "SubHealthFault", "80E18402")
    assert fault.fault_time_and_level_map == {}


@pytest.mark.parametrize("text", ["", "[]", "null"])
def test_an_empty_list_of_faults_may_have_any_form_of_go(text: str) -> None:
    assert decode_report(listing(_Fault=text)).faults == ()


@pytest.mark.parametrize("text", ["garbage", "{}", "[7]", '[{"npu_name":7}]', '[{"fault_level":null}]', "[" * 100_000])
def test_a_fault_with_an_unreadable_chip_or_level_is_refused(text: str) -> None:
    with pytest.raises(InvalidReport, match=f"^DeviceInfoCfg: {RESOURCE}-Fault: "):
        decode_report(listing(_Fault=text))
