"""The command ``inventory`` with Huawei's ABI."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.dcmi.fake import FakeChip, FakeDcmi, ascend_910b, ascend_a3

COMMAND = [sys.executable, "-c", "from device_plugin.cli import main; main()", "inventory", "-o", "json"]


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


@pytest.mark.parametrize("lose_events", [False, True], ids=["announced", "lost"])
async def test_every_fault_is_one_line_whether_announced_or_polled(tmp_path: Path, *, lose_events: bool) -> None:
    fake = FakeDcmi(tmp_path, ascend_910b(8))
    fake.set(lose_events=lose_events)
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--watch", env={**os.environ, **fake.environment()}, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60.0):
            text = b""
            while not text.endswith(b"\n}\n"):
                text += await process.stdout.readline()
            while fake.calls().get("dcmi_subscribe_fault_event", 0) == 0:  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.01)
            lines = []
            for codes in ((0x80E18402,), ()):
                fake.chip(2).codes = codes
                lines.append(msgspec.json.decode(await process.stdout.readline()))
    finally:
        process.terminate()
        rest, _ = await process.communicate()
    assert [(each["name"], each["code"], each["assertion"]) for each in lines] == [
        ("Ascend910-2", "80E18402", "occur"),
        ("Ascend910-2", "80E18402", "recover"),
    ]
    if lose_events:
        assert {each["source"] for each in lines} == {"poll"}
    assert lines[0]["health"] == "Unhealthy"
    assert rest == b""
    assert process.returncode == 0
