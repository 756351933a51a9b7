"""What the report says about chips of running pods: only what a fault justifies."""

from pathlib import Path

import pytest

from ascend.chips import chip_ids, parse_chip_name
from device_plugin.app import Plugin
from tests.device_plugin.api import until
from tests.device_plugin.whole import whole_node
from tests.device_plugin.writes import Writes, recorded

TRAIN = 0b0011
SEPARATE = "80E18402"
STALE_S = 3.0
SLOW_S = 1.2  # the first list is sent before such a reading ends
STALL_S = 5.0


def about_train(writes: Writes) -> set[str]:
    """What the reports ever said about the pod's chips."""
    said = set()
    for report in writes.reports:
        listed = report.unhealthy | report.network_unhealthy | report.recovering | report.manually_separated
        if (listed | report.free) & TRAIN:
            said.add("it is in a list")
        if any(parse_chip_name(fault.npu_name) in chip_ids(TRAIN) for fault in report.faults):
            said.add("it has a fault")
    return said


async def test_a_slow_start_and_a_stall_of_the_driver_say_nothing_about_a_running_pod(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"stale_s": STALE_S, "recovery_hold_s": 0.1}
    async with whole_node(folder) as whole:
        async with whole.plugin(**changes):
            await whole.bind("train", 0, 1)
            await whole.claimed("train")
        for chip in (0, 1, 5):
            whole.node.edit_chip(chip, delay_s=SLOW_S)

        async with recorded(whole, monkeypatch) as writes, whole.plugin(**changes) as plugin:
            await until(lambda: any(report.unhealthy == 0b100000 for report in writes.reports))
            for chip in (0, 1, 5):
                whole.node.edit_chip(chip, delay_s=STALL_S)
            await until(lambda: silent(plugin) == {0, 1, 5})
            # Chip 5, which nobody uses, shows that the report has been written since.
            await until(lambda: writes.reports[-1].unhealthy == 0b100000)
            for chip in (0, 1, 5):
                whole.node.edit_chip(chip, delay_s=0.0)
            await until(lambda: not silent(plugin))
            await until(lambda: (writes.reports[-1].free, writes.reports[-1].unhealthy) == (0xFF & ~TRAIN, 0))
            assert about_train(writes) == set()
            whole.node.edit_chip(0, fault_codes=[SEPARATE])
            await until(lambda: writes.reports[-1].unhealthy == 0b1)
            assert about_train(writes) == {"it is in a list", "it has a fault"}


def silent(plugin: Plugin) -> set[int]:
    """The chips of which the plugin knows nothing."""
    snapshot = plugin.snapshots.value
    return {chip.chip_id for chip in snapshot.chips if chip.reason == "DriverSilent"} if snapshot is not None else set()
