"""``npuctl doctor --chips`` with Huawei's ABI."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910b, ascend_a3

COMMAND = [sys.executable, "-m", "npuctl.cli", "doctor", "--chips", "-o", "json"]


def inventory(fake: FakeDcmi, *arguments: str, status: int = 0) -> Any:
    done = subprocess.run(
        [*COMMAND, *arguments],
        env={**os.environ, **fake.environment()},
        capture_output=True,
        check=False,
        timeout=90,
    )
    assert done.returncode == status, done.stderr
    return msgspec.json.decode(done.stdout) if status == 0 else done.stderr.decode()


def test_the_facts_of_the_library_are_printed(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_a3())
    fake.chip(3).codes = (0x80E18402,)
    found = inventory(fake)
    assert (found["product"], found["driver_version"]) == ("Ascend910A3", "24.1.0")
    assert (found["super_pod_id"], found["server_index"]) == (7, 2)
    assert [chip["name"] for chip in found["chips"]] == [f"Ascend910-{number}" for number in range(16)]
    chip = found["chips"][3]
    assert (chip["card_id"], chip["device_id"], chip["ip"], chip["super_device_id"]) == (1, 1, "10.30.0.4", 0x2000003)
    assert (chip["fault_codes"], chip["level"], chip["health"]) == (["80E18402"], "SeparateNPU", "Unhealthy")
    assert chip["hbm_mb"] == 65536


def test_virtual_npus_are_listed_with_their_names(tmp_path: Path) -> None:
    fake = FakeDcmi(
        tmp_path, [FakeChip(vnpus={100: "vir05_1c_16g", 101: "vir05_1c_16g:used"}), FakeChip(card=1, logic=1, phy=1)]
    )
    found = inventory(fake)
    assert [(vnpu["name"], vnpu["in_container"]) for vnpu in found["vnpus"]] == [
        ("Ascend910-5c.1cpu.16g-100-0", False),
        ("Ascend910-5c.1cpu.16g-101-0", True),
    ]
    assert len(found["chips"]) == 2


def test_a_chip_whose_driver_hangs_does_not_hang_the_command(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(8))
    began_s = time.monotonic()
    with fake.hang("dcmi_get_device_errorcode_v2", card=5), fake.hang("dcmi_get_device_health", card=5):
        found = inventory(fake)
    assert time.monotonic() - began_s < 30
    silent = [chip["name"] for chip in found["chips"] if chip["level"] is None]
    assert silent == ["Ascend910-5"]
    assert found["chips"][5]["problem"].startswith("driver silent")
    assert {chip["health"] for chip in found["chips"] if chip["phy_id"] != 5} == {"Healthy"}


def test_a_library_that_cannot_be_initialized_is_an_error_with_its_code(tmp_path: Path) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(1))
    with fake.fail("dcmi_init", -8005):
        assert "-8005" in inventory(fake, status=1)
