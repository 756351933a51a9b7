"""The file of simulated chips: read again when it changes, refused with its path if invalid, saved atomically."""

import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend.base_device_infos import ChipAddress
from ascend.errors import DriverError
from ascend.products import ASCEND_910A, ASCEND_A3_16
from device_plugin.driver import ChipFacts, ChipState, Division, FaultEvent, VirtualNpu
from device_plugin.driver.resetting import reset_groups
from device_plugin.driver.simulated import NETWORK_FAULT, SimulatedDriver
from device_plugin.settings import DriverSettings
from sandbox.cluster import full_server, save_server


def write(path: Path, chips: str = "[]", **fields: str) -> None:
    more = "".join(f', "{name}": {value}' for name, value in fields.items())
    path.write_text(f'{{"product": "910A", "chips": {chips}{more}}}')


def test_a_default_server_is_read_completely(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    save_server(full_server(ASCEND_910A), path)
    driver = SimulatedDriver(path)
    inventory = driver.discover()
    assert (inventory.chip_type, inventory.ai_cores) == ("Ascend910", 32)
    assert (inventory.super_pod_id, inventory.server_index) == (-2, -2)
    assert inventory.chips == tuple(
        ChipFacts(number, number, number, 0, "910A", ChipAddress(f"10.20.0.{number + 1}"), hbm_mb=32768)
        for number in range(8)
    )
    assert [driver.read(chip) for chip in inventory.chips] == [ChipState()] * 8


@pytest.mark.parametrize(
    ("product", "kind", "name", "place"),
    [
        ("910A", "Ascend910", "910A", (5, 0)),
        ("910B", "Ascend910B", "910B3", (5, 0)),
        ("A3", "Ascend910A3", "Ascend910", (2, 1)),
    ],
)
def test_each_product_has_chips_of_its_type(
    tmp_path: Path, product: str, kind: str, name: str, place: tuple[int, int]
) -> None:
    (tmp_path / "chips.json").write_text(f'{{"product": "{product}", "chips": [{{"id": 5}}]}}')
    inventory = SimulatedDriver(tmp_path / "chips.json").discover()
    (chip,) = inventory.chips
    assert (inventory.chip_type, chip.chip_name, (chip.card_id, chip.device_id)) == (kind, name, place)


def test_a_card_that_was_not_ready_is_listed_after_the_next_initialization(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    driver = SimulatedDriver(path)

    def chips(ready: str) -> None:
        write(path, f'[{{"id": 0}}, {{"id": 1, "ready": {ready}}}]')

    chips("true")
    listed = driver.discover().chips[1]
    chips("false")
    assert driver.read(listed) == ChipState(dropped=True)
    assert driver.discover().chips[1] == listed
    inventory = driver.discover(anew=True)
    assert [chip.is_listed for chip in inventory.chips] == [True, False]
    assert inventory.problems == ("1 of 2 cards was not ready when the driver was initialized",)
    chips("true")
    with pytest.raises(DriverError, match="the driver does not list its card"):
        driver.read(driver.discover().chips[1])
    assert driver.discover(anew=True).chips[1] == listed


def test_a_chip_off_the_bus_is_found_by_no_later_initialization(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    driver = SimulatedDriver(path)
    write(path, '[{"id": 0}, {"id": 1}]')
    chip = driver.discover().chips[1]
    write(path, '[{"id": 0}, {"id": 1, "present": false}]')
    assert driver.read(chip) == ChipState(dropped=True)
    assert len(driver.discover().chips) == 2
    assert len(driver.discover(anew=True).chips) == 1


@pytest.mark.parametrize(("delay_s", "code_delay_s"), [(0.3, 0.0), (0.0, 0.3)])
def test_events_and_codes_can_be_apart(tmp_path: Path, delay_s: float, code_delay_s: float) -> None:
    path = tmp_path / "chips.json"
    events = f'{{"delay_s": {delay_s}, "code_delay_s": {code_delay_s}}}'
    write(path, '[{"id": 0}, {"id": 1}]', events=events)
    driver = SimulatedDriver(path)
    chip = driver.discover().chips[1]
    heard: queue.Queue[tuple[float, FaultEvent]] = queue.Queue()
    driver.subscribe(lambda event: heard.put((time.monotonic(), event)))
    changed_s = time.monotonic()
    write(path, '[{"id": 0}, {"id": 1, "fault_codes": ["7"]}]', events=events)
    while not driver.read(chip).codes:
        assert time.monotonic() < changed_s + 10
    listed_s = time.monotonic()
    write(path, '[{"id": 0}, {"id": 1}]', events=events)
    announced_s, event = heard.get(timeout=10)
    assert event == FaultEvent(1, 7, "occur", 2)
    assert heard.get(timeout=10)[1] == FaultEvent(1, 7, "recover", 2)
    assert (announced_s > listed_s) is (delay_s > 0)
    assert (listed_s - changed_s >= 0.3) is (code_delay_s > 0)


def test_an_unreachable_chip_is_fatal_and_keeps_its_codes(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 0, "reachable": false, "fault_codes": ["1"]}]')
    driver = SimulatedDriver(path)
    assert driver.read(driver.discover().chips[0]) == ChipState((1,), fatal=True)


def test_every_fact_can_be_set(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    chip = (
        '{"id": 1, "ip": "::1", "super_device_id": 9, "chip_name": "910ProB", "numa_node": 3, "hbm_mb": 1024,'
        ' "vnpus": [{"id": 100, "template": "vir02"}, {"id": 101}]}'
    )
    write(path, f"[{chip}]", super_pod_id="4", server_index="5", driver_version='"24.1.0"')
    inventory = SimulatedDriver(path).discover()
    assert (inventory.super_pod_id, inventory.server_index, inventory.driver_version) == (4, 5, "24.1.0")
    vnpus = (VirtualNpu(100, 1, "vir02"), VirtualNpu(101, 1))
    assert inventory.chips == (ChipFacts(1, 1, 1, 0, "910ProB", ChipAddress("::1", 9), 3, 1024, vnpus),)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ("", ChipState()),
        (', "health": "Unhealthy"', ChipState(dropped=True)),
        (', "health": "Unhealthy", "fault_codes": ["80e18402", "80E18402"]', ChipState((0x80E18402,))),
        (', "fault_codes": ["110000002", "80C98009"]', ChipState((0x110000002, 0x80C98009))),
        (', "network_health": "Unhealthy"', ChipState((NETWORK_FAULT,))),
        (', "network_health": "Unhealthy", "health": "Unhealthy"', ChipState((NETWORK_FAULT,), dropped=True)),
        (', "network_health": "Unhealthy", "fault_codes": ["110001024", "1"]', ChipState((NETWORK_FAULT, 1))),
    ],
)
def test_the_state_of_a_chip_follows_its_health_and_faults(tmp_path: Path, fields: str, state: ChipState) -> None:
    write(tmp_path / "chips.json", f'[{{"id": 3{fields}}}]')
    assert SimulatedDriver(tmp_path / "chips.json").read(ChipFacts(3)) == state


def test_an_edit_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    driver = SimulatedDriver(path)
    write(path, '[{"id": 3}, {"id": 1}]')
    assert [chip.phy_id for chip in driver.discover().chips] == [1, 3]
    write(path, '[{"id": 1, "health": "Unhealthy"}]')
    assert driver.read(ChipFacts(1)) == ChipState(dropped=True)
    assert [chip.phy_id for chip in driver.discover().chips] == [1]
    with pytest.raises(DriverError, match="there is no chip 3"):
        driver.read(ChipFacts(3))


def test_every_save_is_seen_even_in_fast_succession(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    server = full_server(ASCEND_910A)
    driver = SimulatedDriver(path)
    for number in range(300):
        server.chips[0].fault_codes = [f"{number + 1000:X}"]
        save_server(server, path)
        assert driver.read(ChipFacts(0)).codes == (number + 1000,)


def test_an_unchanged_file_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 0, "fault_codes": ["1"]}]')
    driver = SimulatedDriver(path)
    inventory = driver.discover()
    monkeypatch.delattr(Path, "open")
    assert driver.discover() == inventory
    assert driver.read(ChipFacts(0)).codes == (1,)


def test_a_slow_chip_delays_its_readings_and_a_slow_server_every_call(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 0, "delay_s": 0.2}, {"id": 1}]')
    driver = SimulatedDriver(path)
    assert duration_s(driver.discover) < 0.2
    assert duration_s(lambda: driver.read(ChipFacts(1))) < 0.2
    assert duration_s(lambda: driver.read(ChipFacts(0))) >= 0.2
    write(path, '[{"id": 1}]', delay_s="0.2")
    assert duration_s(driver.discover) >= 0.2
    assert duration_s(lambda: driver.read(ChipFacts(1))) >= 0.2


def duration_s(call: Callable[[], object]) -> float:
    started_s = time.monotonic()
    call()
    return time.monotonic() - started_s


def test_simulated_chips_announce_nothing_by_default(tmp_path: Path) -> None:
    write(tmp_path / "chips.json")
    with pytest.raises(DriverError, match="announce no events"):
        SimulatedDriver(tmp_path / "chips.json").subscribe(lambda _event: None)


@pytest.mark.parametrize(
    ("content", "sentence"),
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
        (b'{"product": "910A", "chips": [{"id": 0, "numa_node": -1}]}', "$.chips[0].numa_node"),
        (b'{"product": "910A", "chips": [{"id": 0, "hbm_mb": "64G"}]}', "$.chips[0].hbm_mb"),
        (b'{"product": "910A", "chips": [{"id": 0, "vnpus": [{"template": "vir02"}]}]}', "$.chips[0].vnpus[0]"),
        (b'{"product": "910\xff", "chips": []}', "utf-8"),
        (b'{"product": ' + b"[" * 100_000, "$.product"),
        (b'{"product": "910A", "colour": ' + b"[" * 100_000, "colour"),
    ],
)
def test_a_malformed_file_is_refused_with_its_path_and_the_field(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "chips.json"
    path.write_bytes(content)
    with pytest.raises(DriverError, match=re.escape(sentence)) as refused:
        SimulatedDriver(path).discover()
    assert str(path) in refused.value.message


def test_a_missing_file_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match=re.escape(str(tmp_path / "none.json"))):
        SimulatedDriver(tmp_path / "none.json").discover()


@given(content=st.binary(max_size=200))
def test_any_content_is_read_or_raises_a_driver_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_bytes(content)
    with pytest.raises(DriverError):
        SimulatedDriver(path).discover()


def test_a_simulated_failure_has_the_text_of_the_file(tmp_path: Path) -> None:
    write(tmp_path / "chips.json", '[{"id": 0}]', error='"dcmi_init: -8001"')
    driver = SimulatedDriver(tmp_path / "chips.json")
    for call in (driver.discover, lambda: driver.read(ChipFacts(0))):
        with pytest.raises(DriverError, match=r"^dcmi_init: -8001$"):
            call()


def test_a_save_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    server = full_server(ASCEND_910A)
    save_server(server, path)
    failures: list[Exception] = []
    ended = threading.Event()

    def keep_reading() -> None:
        driver = SimulatedDriver(path)
        while not ended.is_set():
            try:
                driver.discover()
            except DriverError as error:
                failures.append(error)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    for number in range(300):
        server.chips[0].fault_codes = ["80E18402"] * (number % 100)
        save_server(server, path)
    ended.set()
    reader.join()
    assert failures == []
    assert [each.name for each in tmp_path.iterdir()] == ["chips.json"]


def test_a_failed_save_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 3}]')
    server = full_server(ASCEND_910A)
    server.chips[0].ip = object()  # type: ignore[assignment]  # can't be encoded
    with pytest.raises((TypeError, msgspec.EncodeError)):
        save_server(server, path)
    assert [chip.phy_id for chip in SimulatedDriver(path).discover().chips] == [3]
    assert [each.name for each in tmp_path.iterdir()] == ["chips.json"]


RESETS = '{"down_s": 0.2, "start_s": 0.2}'


def waits(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_a_reset_ends_the_faults_of_a_ring_until_the_file_gives_it_others(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    faulty = '[{"id": 0, "fault_codes": ["80A18008"]}, {"id": 3}, {"id": 4, "fault_codes": ["80A18008"]}]'
    write(path, faulty, reset=RESETS)
    driver = SimulatedDriver(path)
    zero, three, four = driver.discover().chips
    driver.reset(three)
    assert (driver.read(zero).dropped, driver.read(three).dropped, driver.read(four).dropped) == (True, True, False)
    waits(lambda: not driver.read(zero).dropped)
    assert driver.read(zero) == ChipState()
    assert not driver.has_started(zero)
    waits(lambda: driver.has_started(zero))
    assert driver.read(four).codes == (0x80A18008,)
    write(path, faulty.replace("80A18008", "80A38008"), reset=RESETS)
    assert driver.read(zero).codes == (0x80A38008,)


def test_a_reset_can_fail_or_leave_the_fault(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    write(path, '[{"id": 0, "fault_codes": ["80A18008"], "processes": [4711]}]', reset='{"error": "refused"}')
    driver = SimulatedDriver(path)
    (chip,) = driver.discover().chips
    assert driver.users(chip) == (4711,)
    with pytest.raises(DriverError, match="refused"):
        driver.reset(chip)
    assert driver.has_started(chip)
    write(path, '[{"id": 0, "fault_codes": ["80A18008"]}]', reset='{"down_s": 0, "start_s": 0, "ends_faults": false}')
    driver.reset(chip)
    assert driver.read(chip).codes == (0x80A18008,)


def test_simulated_cards_of_a3_have_partners(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    path.write_text('{"product": "A3", "chips": [{"id": 0}, {"id": 8}, {"id": 10}]}')
    driver = SimulatedDriver(path)
    assert driver.partner_cards(driver.discover()) == {0: 4, 4: 0, 5: None}


def test_a_simulated_card_whose_partner_is_not_listed_is_in_no_reset_group(tmp_path: Path) -> None:
    path = tmp_path / "chips.json"
    server = full_server(ASCEND_A3_16)
    server.chips[8].ready = False  # card 4, the partner of card 0
    save_server(server, path)
    driver = SimulatedDriver(path)
    found = driver.discover()
    assert driver.partner_cards(found)[0] == 4
    assert reset_groups(found, driver.partner_cards(found)) == (0x0C0C, 0x3030, 0xC0C0)


def test_vnpus_are_cut_and_outlive_the_driver(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    state.write_text(
        '{"product": "910B", "chips": [{"id": 0}, {"id": 1, "vnpus": [{"id": 101, "template": "vir02"}]}]}'
    )
    driver = SimulatedDriver(state)
    chip, other = driver.discover().chips
    first = driver.create_vnpu(chip, "vir10_3c_32g")
    second = driver.create_vnpu(other, "vir05_1c_16g")
    assert (first, second) == (VirtualNpu(100, 0, "vir10_3c_32g"), VirtualNpu(102, 1, "vir05_1c_16g"))
    assert driver.division(chip) == Division((first,), 10, 3)
    assert SimulatedDriver(state).discover().chips[1].vnpus == (VirtualNpu(101, 1, "vir02"), second)
    driver.create_vnpu(chip, "vir10_3c_32g")
    with pytest.raises(DriverError, match="too little is left"):
        driver.create_vnpu(chip, "vir05_1c_16g")
    with pytest.raises(DriverError, match="no template"):
        driver.create_vnpu(other, "vir99")
    driver.destroy_vnpu(chip, 100)
    assert driver.create_vnpu(other, "vir05_1c_16g").vdev_id == 100
    with pytest.raises(DriverError, match="no vNPU 101"):
        driver.destroy_vnpu(other, 101)  # not cut by a program


def test_cuts_are_kept_in_another_folder_than_a_read_only_one(tmp_path: Path) -> None:
    (tmp_path / "cuts").mkdir()
    state, cuts = tmp_path / "state.json", tmp_path / "cuts" / "simulated.json"
    state.write_text('{"product": "910B", "chips": [{"id": 0}]}')
    settings = DriverSettings(driver="simulated", simulated_state=state, simulated_cuts=cuts)
    driver = settings.make_driver()
    (chip,) = driver.discover().chips
    made = driver.create_vnpu(chip, "vir05_1c_16g")
    assert settings.make_driver().discover().chips[0].vnpus == (made,)
    assert {each.name for each in tmp_path.iterdir()} == {"state.json", "cuts"}


def test_the_file_says_how_cutting_fails(tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    cuts = '"cuts": {"error": "no", "destroy_error": "never", "in_containers": [100]}'
    state.write_text('{"product": "910B", "chips": [{"id": 0}]}')
    driver = SimulatedDriver(state)
    (chip,) = driver.discover().chips
    driver.create_vnpu(chip, "vir05_1c_16g")
    state.write_text(f'{{"product": "910B", "chips": [{{"id": 0}}], {cuts}}}')
    assert driver.division(chip).vnpus[0].in_container
    with pytest.raises(DriverError, match="no"):
        driver.create_vnpu(chip, "vir05_1c_16g")
    with pytest.raises(DriverError, match="never"):
        driver.destroy_vnpu(chip, 100)
    state.with_suffix(".cuts.json").write_text("?")
    with pytest.raises(DriverError, match="simulated vNPUs"):
        driver.division(chip)
