"""The file of simulated chips: read anew at every call, refused by name where it is wrong, written in one step."""

import re
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.annotations import ChipAddress
from ascend.errors import DriverError
from ascend.products import ASCEND_910A
from device_plugin.driver import ChipReading
from device_plugin.driver.simulated import SimulatedDriver, SimulatedServer


def write(path: Path, chips: str = "[]", **fields: str) -> None:
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    path.write_text(f'{{"product": "910A", "chips": {chips}{more}}}')


def test_a_server_as_made_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    SimulatedServer.full(ASCEND_910A).save(path)
    reading = SimulatedDriver(path).read()
    assert reading.product == ASCEND_910A
    assert [chip.chip_id for chip in reading.chips] == list(range(8))
    assert all(chip.healthy and chip.network_healthy and not chip.fault_codes for chip in reading.chips)
    assert reading.chips[7].address == ChipAddress("10.20.0.8", 0)


def test_an_edit_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    driver = SimulatedDriver(path)
    write(path, '[{"id": 3}, {"id": 1}]')
    assert driver.read().chips == (ChipReading(1), ChipReading(3))
    chip = '{"id": 1, "health": "Unhealthy", "network_health": "Unhealthy", "fault_codes": ["80e18402"], "ip": "::1"}'
    write(path, f"[{chip}]", super_pod_id="4", server_index="5")
    reading = driver.read()
    assert reading.chips == (
        ChipReading(1, healthy=False, network_healthy=False, fault_codes=("80E18402",), address=ChipAddress("::1")),
    )
    assert (reading.super_pod_id, reading.server_index) == (4, 5)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "truncated"),
        (b"{ not json", "malformed"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"product": "910A"}', "`chips`"),
        (b'{"chips": []}', "`product`"),
        (b'{"product": "910Z", "chips": []}', "product '910Z' is not one of"),
        (b'{"product": 910, "chips": []}', "$.product"),
        (b'{"product": "910A", "chips": [], "colour": "red"}', "`colour`"),
        (b'{"product": "910A", "chips": [{}]}', "`id`"),
        (b'{"product": "910A", "chips": [{"id": "0"}]}', "$.chips[0].id"),
        (b'{"product": "910A", "chips": [{"id": 0, "health": "healthy"}]}', "$.chips[0].health"),
        (b'{"product": "910A", "chips": [{"id": 0, "network_health": ""}]}', "$.chips[0].network_health"),
        (b'{"product": "910A", "chips": [{"id": -1}]}', "id -1 is not within 0..255"),
        (b'{"product": "910A", "chips": [{"id": 256}]}', "id 256 is not within 0..255"),
        (b'{"product": "910A", "chips": [{"id": 2}, {"id": 2}]}', "id 2 occurs twice"),
        (b'{"product": "910A", "chips": [{"id": 2, "fault_codes": ["0x1"]}]}', "chip 2: fault code '0x1' is not hex"),
        (b'{"product": "910A", "chips": [{"id": 2, "fault_codes": [1]}]}', "$.chips[0].fault_codes[0]"),
        (b'{"product": "910A", "chips": [{"id": 0, "ip": null}]}', "$.chips[0].ip"),
        (b'{"product": "910A", "chips": [{"id": 0, "super_device_id": -1}]}', "$.chips[0].super_device_id"),
        (b'{"product": "910A", "chips": [{"id": 0, "super_device_id": 4294967296}]}', "$.chips[0].super_device_id"),
        (b'{"product": "910A", "chips": [], "delay_s": -0.1}', "$.delay_s"),
        (b'{"product": "910A", "chips": [], "delay_s": 1e300}', "$.delay_s"),
        (b'{"product": "910A", "chips": [{"id": 0, "delay_s": -0.1}]}', "$.chips[0].delay_s"),
        (b'{"product": "910A", "chips": [], "error": 5}', "$.error"),
        (b'{"product": "910\xff", "chips": []}', "utf-8"),
        (b'{"product": ' + b"[" * 100_000, "$.product"),
        (b'{"product": "910A", "colour": ' + b"[" * 100_000, "colour"),
    ],
)
def test_a_malformed_file_is_refused_by_its_name_and_the_fields(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "chips.json"
    path.write_bytes(content)
    with pytest.raises(DriverError, match=re.escape(said)) as refused:
        SimulatedDriver(path).read()
    assert str(path) in refused.value.message


def test_a_missing_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=re.escape(str(tmp_path / "none.json"))):
        SimulatedDriver(tmp_path / "none.json").read()


@given(content=st.binary(max_size=200))
def test_whatever_is_in_the_file_the_only_error_is_of_the_driver(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(DriverError):
        SimulatedDriver(path).read()


def test_a_simulated_failure_has_the_text_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "chips.json", error='"dcmi_init: -8001"')
    with pytest.raises(DriverError, match=r"^dcmi_init: -8001$"):
        SimulatedDriver(tmp_path / "chips.json").read()


def test_a_reader_sees_the_old_file_or_the_new_one_never_half_of_one(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    server = SimulatedServer.full(ASCEND_910A)
    server.save(path)
    failures: list[Exception] = []
    ended = threading.Event()

    def keep_reading() -> None:
        driver = SimulatedDriver(path)
        while not ended.is_set():
            try:
                driver.read()
            except DriverError as error:
                failures.append(error)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for number in range(300):
        server.chips[0].fault_codes = ["80E18402"] * (number % 100)
        server.save(path)
    ended.set()
    reader.join()
    assert failures == []
    assert [each.name for each in tmp_path.iterdir()] == ["chips.json"]


def test_a_save_that_fails_leaves_the_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 3}]')
    server = SimulatedServer.full(ASCEND_910A)
    server.chips[0].ip = object()  # type: ignore[assignment]  # can't be written
    with pytest.raises((TypeError, msgspec.EncodeError)):
        server.save(path)
    assert [chip.chip_id for chip in SimulatedDriver(path).read().chips] == [3]
    assert [each.name for each in tmp_path.iterdir()] == ["chips.json"]
