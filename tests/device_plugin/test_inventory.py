"""One scan of the driver, without Kubernetes: ``npuctl doctor --chips``."""

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from ascend.base_device_infos import ChipAddress
from ascend.errors import DriverError
from ascend.products import ASCEND_910A, ASCEND_910B_8
from device_plugin.driver import NO_CARD, ChipFacts, ChipState, Inventory, VirtualNpu
from device_plugin.driver.simulated_file import SimulatedVirtualNpu
from device_plugin.inventory import ScanEntry, scan, scan_entry, virtual_name
from npuctl.cli import main
from npuctl.doctor.chip_table import lay_out
from sandbox.cluster import full_server, save_server
from tests.device_plugin.test_scanner import ScriptedDriver

SERVER = Inventory(
    "Ascend910B",
    (
        ChipFacts(0, 1, 4, 2, "910B3", ChipAddress("10.0.0.1", 7), numa_node=3, hbm_mb=65536),
        ChipFacts(1, 0, 5, 0, "910B3", vnpus=(VirtualNpu(100, 1, "vir02", in_container=True), VirtualNpu(101, 1))),
    ),
    driver_version="24.1.0",
    super_pod_id=3,
    server_index=11,
)

KEYS = [
    *("name", "phy_id", "logic_id", "card_id", "device_id", "chip_name", "ip", "super_device_id", "numa_node"),
    *("hbm_mb", "fault_codes", "level", "health", "network_health"),
]


NAMES = [f"Ascend910-{chip_id}" for chip_id in range(8)]


@pytest.fixture
def driver() -> ScriptedDriver:
    made = ScriptedDriver()
    made.server = SERVER
    return made


async def scanned(driver: ScriptedDriver, **deadlines: float) -> Any:
    entry = scan_entry(await scan(driver, **deadlines))
    return msgspec.json.decode(msgspec.json.encode(entry))


async def test_the_json_has_the_public_format(driver: ScriptedDriver) -> None:
    found = await scanned(driver)
    assert list(found) == ["product", "driver_version", "super_pod_id", "server_index", "chips", "vnpus"]
    assert (found["product"], found["driver_version"]) == ("Ascend910B", "24.1.0")
    assert (found["super_pod_id"], found["server_index"]) == (3, 11)
    assert [list(chip) for chip in found["chips"]] == [KEYS, KEYS]
    assert found["chips"][0] == dict(
        zip(
            KEYS,
            ("Ascend910-0", 0, 1, 4, 2, "910B3", "10.0.0.1", 7, 3, 65536, [], "NormalNPU", "Healthy", "Healthy"),
            strict=True,
        )
    )
    assert (found["chips"][1]["numa_node"], found["chips"][1]["ip"], found["chips"][1]["hbm_mb"]) == (None, "", 0)
    assert found["vnpus"] == [
        {
            "name": "Ascend910-2c-100-1",
            "phy_id": 1,
            "vdev_id": 100,
            "template": "vir02",
            "resource": "huawei.com/Ascend910-2c",
            "in_container": True,
        },
        {
            "name": "Ascend910-unknown-101-1",
            "phy_id": 1,
            "vdev_id": 101,
            "template": "",
            "resource": None,
            "in_container": False,
        },
    ]


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("vir01", "Ascend910-1c-100-1"),
        ("vir10_3c_16g_nm", "Ascend910-10c.3cpu.16g.ndvpp-100-1"),
        ("vir12_3c_32g", "Ascend910-12c.3cpu.32g-100-1"),
    ],
)
def test_a_virtual_npu_has_the_name_in_common_use(template: str, name: str) -> None:
    assert virtual_name(VirtualNpu(100, 1, template)) == name


async def test_health_and_level_are_those_of_the_report(driver: ScriptedDriver) -> None:
    driver.states = {0: ChipState((0x80E18402, 0x81078603)), 1: ChipState(dropped=True)}
    chip, dropped = (await scanned(driver))["chips"]
    assert set(chip["fault_codes"]) == {"80E18402", "81078603"}
    assert (chip["level"], chip["health"]) == ("SeparateNPU", "Unhealthy")
    assert dropped["fault_codes"] == ["40F84E00"]
    assert (dropped["health"], dropped["network_health"]) == ("Unhealthy", "Unknown")


async def test_a_chip_that_hangs_is_shown_with_a_problem_and_the_others_are_read(driver: ScriptedDriver) -> None:
    driver.hang(1)
    try:
        read, silent = (await scanned(driver, chip_s=0.05))["chips"]
    finally:
        driver.answer(1)
    assert (read["health"], "problem" in read) == ("Healthy", False)
    assert (silent["health"], silent["level"], silent["network_health"]) == ("Unhealthy", None, "Unknown")
    assert silent["problem"] == "driver silent: no answer within 0.05 s"


async def test_a_chip_that_cannot_be_read_is_shown_with_the_reason(driver: ScriptedDriver) -> None:
    driver.states[0] = DriverError("dcmi_get_device_errorcode_v2: -8005")
    chip, _ = (await scanned(driver))["chips"]
    assert (chip["level"], chip["problem"]) == (None, "dcmi_get_device_errorcode_v2: -8005")


async def test_a_chip_that_the_driver_cannot_reach_is_shown_with_the_reason(driver: ScriptedDriver) -> None:
    driver.states = {0: ChipState((0x80818C06,), fatal=True), 1: ChipState((0x81078603,), fatal=True)}
    found = await scanned(driver)
    chip, without_link = found["chips"]
    assert (chip["health"], chip["level"], chip["network_health"]) == ("Unhealthy", None, "Unknown")
    assert chip["fault_codes"] == ["80818C06"]
    assert chip["problem"] == "the driver rates its health as fatal and reports no fault code that explains it"
    assert without_link["fault_codes"] == ["81078603"]
    table = printed(msgspec.convert(found, ScanEntry))
    assert f"Unhealthy Unknown {chip['problem']} 80818C06" in " ".join(table.split())


async def test_a_chip_that_the_driver_does_not_list_is_shown_as_unhealthy(driver: ScriptedDriver) -> None:
    not_ready = "1 of 2 cards was not ready when the driver was initialized"
    unlisted = replace(SERVER.chips[0], card_id=NO_CARD, device_id=NO_CARD)
    driver.server = replace(SERVER, chips=(unlisted, SERVER.chips[1]), not_ready=1, problems=(not_ready,))
    driver.states[0] = DriverError("the driver does not list its card")
    found = await scanned(driver)
    assert found["problems"] == [not_ready]
    chip = found["chips"][0]
    assert (chip["health"], chip["level"], chip["card_id"]) == ("Unhealthy", None, -1)
    assert chip["problem"] == "the driver does not list its card"
    table = printed(msgspec.convert(found, ScanEntry))
    (row,) = [line for line in table.splitlines() if line.startswith("Ascend910-0 ")]
    assert row.split()[1] == "-"
    assert " ".join(row.split()).endswith("Unhealthy Unknown the driver does not list its card")
    assert not_ready in table


async def test_chips_whose_ids_are_unknown_are_counted(driver: ScriptedDriver) -> None:
    driver.server = replace(SERVER, not_ready=1, unidentified=1, problems=("1 of 3 cards was not ready",))
    found = await scanned(driver)
    assert found["unidentified"] == 1
    assert "1 chip is missing here: the ids are unknown" in printed(msgspec.convert(found, ScanEntry))


async def test_a_driver_that_hangs_or_fails_is_an_error_in_a_sentence(driver: ScriptedDriver) -> None:
    driver.server = DriverError("no libdcmi.so")
    with pytest.raises(DriverError, match="no libdcmi"):
        await scanned(driver)
    driver.hang()
    try:
        with pytest.raises(DriverError, match=r"the driver does not answer within 0\.05 s"):
            await scanned(driver, discover_s=0.05)
    finally:
        driver.answer()


def printed(entry: ScanEntry, columns: int = 80) -> str:
    """A scan on a screen of so many columns."""
    console = Console(file=io.StringIO(), width=columns, color_system=None, highlight=False)
    console.print(lay_out(entry), crop=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]  # it is the StringIO


VNPU_WORDS = ("Ascend910-2c-100-1: vNPU 100", "vir02", "huawei.com/Ascend910-2c", "a container has it", "not offered")


@pytest.mark.parametrize("columns", [140, 80, 20])
async def test_the_table_has_everything_and_cuts_no_name(driver: ScriptedDriver, columns: int) -> None:
    driver.states = {0: ChipState((0x80E18402,)), 1: DriverError("dcmi_get_device_errorcode_v2: -8005")}
    entry: ScanEntry = scan_entry(await scan(driver))
    table = "".join(printed(entry, columns).split())  # a terminal breaks lines, also within a word
    words = ("2 chips", "driver 24.1.0", "SuperPod 3", "server 11", "64 GB", "10.0.0.1", "SeparateNPU", "80E18402")
    names = ("Ascend910B", "Ascend910-0", "Ascend910-1", "Unhealthy", "dcmi_get_device_errorcode_v2:", "Unknown")
    assert [word for word in (*words, *names, *VNPU_WORDS) if word.replace(" ", "") not in table] == []


def test_a_piped_table_has_one_line_per_chip(tmp_path: Path) -> None:
    server = full_server(ASCEND_910A)
    server.chips[3].fault_codes = ["80E18402", "80E18005", "80CB8009", "81078603"]
    save_server(server, state := tmp_path / "chips.json")
    flags = ("--driver=simulated", f"--simulated-state={state}")
    done = subprocess.run(command(*flags), capture_output=True, check=True, timeout=60, text=True)
    rows = [line for line in done.stdout.splitlines() if line.startswith("Ascend910-")]
    assert [row.split()[0] for row in rows] == NAMES
    assert [word for word in ("Unhealthy", *server.chips[3].fault_codes) if word not in rows[3]] == []


def test_a_vnpu_is_not_offered_by_its_size_where_pods_request_ai_cores(tmp_path: Path) -> None:
    server = full_server(ASCEND_910B_8)
    server.chips[0].vnpus = (SimulatedVirtualNpu(100, "vir05_1c_16g"),)
    save_server(server, state := tmp_path / "chips.json")
    flags = ("--driver=simulated", f"--simulated-state={state}", "--dynamic-vnpus=true")
    printed = subprocess.run(command(*flags), capture_output=True, check=True, timeout=60, text=True).stdout
    sentence = "vNPU 100 of chip 0, vir05_1c_16g, not offered: pods request huawei.com/npu-core here"
    assert sentence in " ".join(printed.split())
    done = subprocess.run(command(*flags, "-o", "json"), capture_output=True, check=True, timeout=60)
    (vnpu,) = msgspec.json.decode(done.stdout)["vnpus"]
    assert (vnpu["name"], vnpu["resource"]) == ("Ascend910-5c.1cpu.16g-100-0", None)


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "npuctl.cli", "doctor", "--chips", *map(str, arguments)]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    path = tmp_path / "chips.json"
    save_server(full_server(ASCEND_910A), path)
    return path


def test_the_command_needs_no_cluster_and_no_node_name(state: Path, tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text(f"driver: simulated\nsimulated_state: {state}\nrecovery_hold_s: 30\n")
    done = subprocess.run(command("--config", settings, "-o", "json"), capture_output=True, check=True, timeout=60)
    assert [chip["name"] for chip in msgspec.json.decode(done.stdout)["chips"]] == NAMES
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--driver=simulated", "--simulated-state=/nowhere/chips.json"), 1, b"/nowhere/chips.json"),
        (("--driver=dcmi", "--dcmi-library=/nowhere/libdcmi.so"), 1, b"/nowhere/libdcmi.so"),
        (("--driver=magic",), 2, b"'magic'"),
    ],
)
def test_driver_and_usage_errors_have_different_exit_statuses(
    arguments: tuple[str, ...], status: int, message: bytes
) -> None:
    done = subprocess.run(command(*arguments), capture_output=True, check=False, timeout=60)
    assert done.returncode == status
    assert message in done.stderr
    assert b"Traceback" not in done.stderr
    assert done.stdout == b""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--driver=magic",), "'magic'"), (("--colour=red",), "--colour"), (("-o", "xml"), "xml")],
)
def test_invalid_arguments_are_named(
    arguments: tuple[str, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["npuctl", "doctor", "--chips", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.out == ""
