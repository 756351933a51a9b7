"""The annotations: chips of pods and nodes, written and read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import ALLOCATED, CLAIMED, PREDICATE_TIME, REAL, Grant, write_claim, write_configuration
from ascend.base_device_infos import (
    BASE_DEVICE_INFOS,
    BaseDeviceInfos,
    ChipAddress,
    read_base_device_infos,
    write_base_device_infos,
)
from ascend.errors import InvalidValue
from ascend.pod_devices import held_chips, read_grant

chips = st.lists(st.integers(0, 255), unique=True, min_size=1, max_size=100)


@given(chips, st.integers(0, CLAIMED))
def test_a_written_grant_is_read_back(ids: list[int], time: int) -> None:
    grant = Grant(tuple(ids), time)
    assert read_grant(grant.annotations()) == grant


def test_a_pod_without_the_annotation_has_no_grant() -> None:
    assert read_grant({PREDICATE_TIME: "5"}) is None


@pytest.mark.parametrize("text", [None, "", "abc", "-1", "1.5", str(CLAIMED + 1), "٣", "9" * 5000])
def test_an_unreadable_predicate_time_leaves_the_grant_valid(text: str | None) -> None:
    # By docs/spec/hand-over.md#finding-the-pod: such a pod is last in order, not out
    annotations = {ALLOCATED: "Ascend910-0"} | ({PREDICATE_TIME: text} if text is not None else {})
    assert read_grant(annotations) == Grant((0,), None)


def test_real_chips_override_the_allocated_ones() -> None:
    assert held_chips({ALLOCATED: "Ascend910-0", REAL: "Ascend910-1"}) == 0b11
    assert held_chips({ALLOCATED: "Ascend910-0", REAL: ""}) == 0b01
    assert held_chips({}) == 0


def test_a_list_of_more_than_100_chips_is_refused() -> None:
    with pytest.raises(InvalidValue, match="more than 100 chips"):
        held_chips({REAL: ",".join(f"Ascend910-{n}" for n in range(101))})


def test_a_claim_equals_that_of_the_reference() -> None:
    # By docs/spec/measurements.md#allocate-and-annotations: the reference's annotations on a pod with chips 4 and 5
    configuration = write_configuration(
        pod_name="two-0",
        pod_uid="b80c64c1-6955-4cd1-a160-c39348b63d22",
        host_ip="192.0.2.2",
        devices={5: ChipAddress("10.20.0.6", 0), 4: ChipAddress("10.20.0.5", 0)},
    )
    assert configuration == (
        '{"pod_name":"two-0","server_id":"b80c64c1-6955-4cd1-a160-c39348b63d22","host_ip":"192.0.2.2","super_pod_id":-2,'
        '"devices":[{"device_id":"4","device_ip":"10.20.0.5","super_device_id":"0"},'
        '{"device_id":"5","device_ip":"10.20.0.6","super_device_id":"0"}],'
        '"rack_id":0,"server_index":"-2","server_ip":"192.0.2.2"}'
    )
    assert write_claim(chips=(10, 4), kubelet_ids=(7, 10), configuration=configuration) == {
        "predicate-time": "18446744073709551615",
        "huawei.com/AscendReal": "Ascend910-10,Ascend910-4",
        "huawei.com/kltDev": "Ascend910-10,Ascend910-7",
        "ascend.kubectl.kubernetes.io/ascend-910-configuration": configuration,
    }


def test_an_sdid_is_written_as_a_signed_number() -> None:
    text = write_configuration(pod_name="p", pod_uid="u", host_ip="", devices={0: ChipAddress("", 0xFFFFFFFF)})
    assert '"super_device_id":"-1"' in text


def test_written_base_device_infos_are_read_back() -> None:
    addresses = {0: ChipAddress("10.0.0.1", 3), 10: ChipAddress(), 2: ChipAddress("10.0.0.2", 0)}
    text = write_base_device_infos(addresses)
    assert text.startswith('{"Ascend910-0":{"IP":"10.0.0.1","SuperDeviceID":3},"Ascend910-10":')
    assert read_base_device_infos(text) == BaseDeviceInfos(addresses)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"Ascend910-0":', '{"Ascend910-0":' + "[" * 10**5],
)
def test_malformed_base_device_infos_are_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidValue, match=f"^annotation {BASE_DEVICE_INFOS}: "):
        read_base_device_infos(text)


@pytest.mark.parametrize(
    ("name", "withheld"),
    [
        ("Ascend910-2c-100-1", 1 << 1),
        ("Ascend910-12c.3cpu.32g-100-1", 1 << 1),
        ("Ascend910-2c-100-0", 1 << 0),  # a chip that is named as a whole as well
        ("Ascend910-2c-100-256", 0),
        ("Ascend310P-0", 0),
        ("Ascend310P-2c-100-1", 0),
        ("Ascend910-01", 0),
        ("npu-3", 0),
        ("", 0),
        ("\u0663", 0),
    ],
)
def test_an_entry_that_is_no_whole_chip_costs_that_chip_at_most(name: str, withheld: int) -> None:
    text = json.dumps({"Ascend910-0": {"IP": "10.0.0.1"}, "Ascend910-7": {}, name: {}})
    read = read_base_device_infos(text)
    assert (read.withheld, *read.ignored, *(each.name for each in read.vnpus)) == (withheld, name)
    assert read.chips == (1 << 0 | 1 << 7) & ~withheld


@pytest.mark.parametrize("entry", [{"IP": 7}, None, [], "x", {"SuperDeviceID": "1"}])
def test_a_malformed_entry_costs_its_own_chip(entry: object) -> None:
    read = read_base_device_infos(json.dumps({"Ascend910-0": entry, "Ascend910-1": {"IP": "10.0.0.1"}}))
    assert read == BaseDeviceInfos({1: ChipAddress("10.0.0.1")}, withheld=1 << 0, ignored=("Ascend910-0",))
