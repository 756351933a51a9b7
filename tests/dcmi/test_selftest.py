"""The report of ``npuctl selftest``, and the fake libraries that answer as it says."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from ascend.products import ASCEND_910B_8
from device_plugin.driver.dcmi import structures
from device_plugin.driver.dcmi.lingqu import LingquEvent
from device_plugin.driver.dcmi.recording import LEFT_OUT, Call
from device_plugin.settings import DriverSettings
from npuctl.selftest import node
from npuctl.selftest.node import Examination, Selftest, examine
from sandbox.cluster import full_server, save_server
from tests.dcmi import compiler
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import FakeChip, ascend_910a, ascend_910b, ascend_a3
from tests.dcmi.replay import replay, switch_faults
from tests.dcmi.test_switches import FakeSwitches, event

REPORTS: Final = sorted((Path(__file__).parent / "reports").glob("*.json"))
SERVERS: Final[Mapping[str, Callable[[], list[FakeChip]]]] = {"910a": ascend_910a, "910b": ascend_910b, "a3": ascend_a3}
DCMI: Final = DriverSettings(link_tool=Path("/nonexistent"))


def worn() -> list[FakeChip]:
    """A server with what makes chips differ."""
    chips = ascend_910b(8)
    chips[0].vnpus = {100: "vir05_1c_16g", 101: "vir05_1c_16g:used"}
    chips[1].codes = {0x80E18402: 2, 0x80CB8009: 1}
    chips[2].dropped = True
    chips[3].ip, chips[3].bdf = "2001:db8::7", "0000:c1:00.0"
    chips[4].processes = (77_001, 77_002)
    chips[5].ip, chips[5].temperature, chips[5].hbm_used = "", 0x7FFD, 4096
    chips[6].boot, chips[6].network, chips[6].cpus = 2, 3, 14
    chips[7].die, chips[7].utilization = "DEADBEE7", 93
    return chips


def asked(calls: Sequence[Call]) -> dict[tuple[str, str], tuple[int | None, list[Any]]]:
    """The last code and answer of each call, by function and arguments."""
    return {(each.function, json.dumps(each.arguments)): (each.code, each.answer) for each in calls}


def comparable(examination: Examination) -> Mapping[str, Any]:
    """What a machine answers; its NUMA nodes and the tool of its ports are no part of the library."""
    found = json.loads(msgspec.json.encode(examination))
    for chip in (found["server"] or {"chips": ()})["chips"]:
        del chip["numa_node"]
    for each in (*found["values"].values(), *found["missing"].values()):
        each.pop("link_up_num", None)
    codes = {call: code for call, (code, _) in asked(examination.calls).items()}
    return {key: found[key] for key in ("problem", "server", "values", "missing", "surprises")} | {"codes": codes}


@pytest.mark.parametrize("server", SERVERS)
async def test_no_answer_of_the_fake_library_is_surprising(make_fake: MakeFake, server: str) -> None:
    make_fake(SERVERS[server]())
    found = await examine(DCMI)
    assert (found.problem, list(found.surprises)) == ("", [])
    assert {each.code for each in found.calls} <= {0, -8005, -8255}
    assert sum(each.calls for each in found.timings.values()) == len(found.calls)


@pytest.mark.parametrize("path", REPORTS, ids=lambda path: path.stem)
async def test_the_fake_library_answers_as_the_machine_of_a_report(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = msgspec.json.decode(path.read_bytes(), type=Selftest).node
    for name, value in replay(tmp_path, reported.calls).environment().items():
        monkeypatch.setenv(name, value)
    again = await examine(DCMI)
    assert comparable(again) == comparable(reported)
    if path.stem.startswith("fake-"):
        assert asked(again.calls) == asked(reported.calls)


def test_each_kind_of_chip_has_a_report() -> None:
    assert {path.stem for path in REPORTS} >= {f"fake-{server}" for server in SERVERS}


async def test_a_report_of_a_worn_server_is_replayed(
    make_fake: MakeFake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = make_fake(worn())
    fake.fail("dcmi_get_device_utilization_rate", -8008, card=7, kind=6)
    fake.fail("dcmi_get_device_voltage", -7)
    fake.fail("dcmi_get_device_board_info", -99998, card=1)
    first = await examine(DCMI)
    assert list(first.surprises) == [
        "dcmi_get_device_board_info() returned -99998 (this driver has no such function), 1 time",
        "dcmi_get_device_utilization_rate(6) returned -8008 (no such device), 1 time",
        "dcmi_get_device_voltage() returned -7 (not documented), 7 times",
        "Ascend910-5: temperature is 32765, not within -100..250",
        "1 of 8 cards was not ready when the driver was initialized",
    ]
    assert "Ascend910-2" not in first.values
    (tmp_path / "again").mkdir()
    again = replay(tmp_path / "again", first.calls)
    for name, value in again.environment().items():
        monkeypatch.setenv(name, value)
    second = await examine(DCMI)
    assert comparable(second) == comparable(first)
    assert asked(second.calls) == asked(first.calls)


async def test_nothing_in_a_report_identifies_the_machine(make_fake: MakeFake) -> None:
    make_fake(worn())
    report = msgspec.json.encode(Selftest(await examine(DCMI))).decode().lower()
    secrets = (os.uname().nodename, "10.20.0.", "2001:db8", "deadbee7", str(0xDEADBEE7), "77001", "77002")
    assert [each for each in secrets if each.lower() in report] == []


def test_every_field_of_a_structure_that_is_left_out_exists() -> None:
    structs = (each for each in vars(structures).values() if hasattr(each, "_fields_"))
    switch_event = {name for name, *_ in event()._fields_}
    assert {name for each in structs for name, *_ in each._fields_} | switch_event >= LEFT_OUT


async def test_a_call_that_does_not_return_is_told(make_fake: MakeFake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "CHIP_S", 0.5)
    fake = make_fake(ascend_910b(8))
    with fake.hang("dcmi_get_device_power_info", card=3):
        found = await examine(DCMI)
    assert "dcmi_get_device_power_info() did not return, 1 time" in found.surprises


async def test_a_server_that_no_product_has_is_told(make_fake: MakeFake) -> None:
    make_fake(ascend_910b(5))
    (sentence,) = (await examine(DCMI)).surprises
    assert sentence.startswith("no product has 5 chips of type Ascend910B, only ")


async def test_a_driver_that_can_not_be_read_is_a_report(make_fake: MakeFake) -> None:
    make_fake(ascend_910b(1)).fail("dcmi_init", -8005)
    found = await examine(DCMI)
    assert (found.server, [(each.function, each.code) for each in found.calls]) == (None, [("dcmi_init", -8005)])
    assert "-8005" in found.problem
    assert list(found.surprises) == ["dcmi_init() returned -8005 (internal error), 1 time"]


async def test_the_faults_of_switches_are_reported_and_replayed(
    make_fake: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults = [event(chip=1, port=7), event(peer=2, chip=3)]

    async def examined(faults: Sequence[LingquEvent]) -> list[Call]:
        library = compiler.build_switch_library()
        paths = f"{library.parent}:{os.environ['LD_LIBRARY_PATH']}"
        with monkeypatch.context() as patched:
            patched.setenv("LD_LIBRARY_PATH", paths)
            switches = FakeSwitches(library)
            for each in faults:
                switches.list(each)
            return list((await examine(DCMI)).calls)

    make_fake(ascend_a3())
    first = await examined(faults)
    assert [each.code for each in first if each.function.startswith("lq_")] == [0, 0]
    assert [bytes(each) for each in switch_faults(first)] == [bytes(each) for each in faults]
    assert asked(await examined(switch_faults(first))) == asked(first)


async def test_simulated_chips_are_reported_without_calls(tmp_path: Path) -> None:
    save_server(full_server(ASCEND_910B_8), tmp_path / "chips.json")
    found = await examine(DriverSettings(driver="simulated", simulated_state=tmp_path / "chips.json"))
    assert (found.problem, list(found.calls), list(found.surprises)) == ("", [], [])
    assert found.server is not None
    assert [len(values) for values in found.values.values()] == [len(found.server.chips) + 7] * 8
