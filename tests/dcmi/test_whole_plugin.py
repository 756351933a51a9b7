"""The whole plugin on a sandbox node, with chips of the fake library."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from device_plugin import processes
from tests.dcmi.conftest import MakeFake
from tests.dcmi.fake import ascend_910b
from tests.device_plugin.api import seen
from tests.device_plugin.test_telemetry import by_chip, scrape, who
from tests.device_plugin.whole import whole_node


@pytest.fixture
def folder() -> Iterator[Path]:
    # The paths of pytest's own folders are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


async def test_pods_get_chips_while_scrapers_meet_a_driver_that_hangs(folder: Path, make_fake: MakeFake) -> None:
    fake = make_fake(ascend_910b(8))
    async with whole_node(folder) as whole:
        dcmi = {"driver": "dcmi", "dcmi_library": fake.library, "injection": "runtime"}
        with fake.hang("dcmi_get_device_network_health"), fake.hang("dcmi_get_device_power_info", card=3):
            async with asyncio.timeout(60.0), whole.plugin(**dcmi, telemetry=True, telemetry_interval_s=0.5) as plugin:
                ended = asyncio.Event()

                async def scrape_often() -> None:
                    while not ended.is_set():
                        await scrape(plugin)

                scrapers = [asyncio.create_task(scrape_often()) for _ in range(4)]
                for chip in range(8):
                    await whole.bind(f"pod-{chip}", chip)
                    await whole.claimed(f"pod-{chip}")
                ended.set()
                await asyncio.gather(*scrapers)
                found = await scrape(plugin)
                pods = {chip: ("default", f"pod-{chip}", "main") for chip in range(8)}
                assert who(found["npu_chip_info_name"]) == pods
                assert by_chip(found["npu_chip_info_power"]).keys() == {*range(8)} - {3}
                assert "npu_chip_info_network_status" not in found
                snapshot = plugin.snapshots.value
                assert snapshot is not None
                assert snapshot.unhealthy == 0
            # It has ended although calls have not returned.
            assert fake.calls()["dcmi_get_device_network_health"] == 8


async def test_a_foreign_process_is_told_while_the_driver_hangs_for_another_chip(
    folder: Path, make_fake: MakeFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_S", 0.02)
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    fake = make_fake(ascend_910b(8))
    fake.chip(5).processes = (2_000_000_001,)
    async with whole_node(folder) as whole:
        dcmi = {"driver": "dcmi", "dcmi_library": fake.library, "injection": "runtime"}
        with fake.hang("dcmi_get_device_resource_info", card=3):
            async with asyncio.timeout(60.0), whole.plugin(**dcmi):
                (note,) = await seen(lambda: whole.notes("NPUForeignProcess"), bool)
                assert note.startswith("Ascend910-5: process 2000000001")
                await whole.bind("one", 3, 5)
                await whole.claimed("one")
                assert fake.calls()["dcmi_get_device_resource_info"] > 8
