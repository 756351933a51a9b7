"""The wall clock of the node is set while the plugin runs: by an hour ahead, and back."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.clock import Clock
from tests.conformance.node import ALL, PluginNode

HOUR_S: Final = 3600


@pytest.fixture
def clock(node: PluginNode, tmp_path: Path) -> Iterator[Clock]:
    """The clock of a plugin that runs instead of the node's."""
    made = Clock(tmp_path / "clock")
    with node.plugin_instead("stepped", environment=made.environment):
        node.wait_until_allocatable()
        yield made


@pytest.mark.long
@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S])
def test_a_step_of_the_clock_changes_nothing_but_times(node: PluginNode, clock: Clock, ahead_s: int) -> None:
    node.place("before", 0, 1)
    node.check("before", 0, 1)
    reported_ahead_s = max(node.report().update_time_s - time.time(), 0)  # by another test
    registered = node.plugin.metric("ascend_dp_registrations_total", result="registered")
    for step_s, chip in ((ahead_s, 2), (0, 4)):
        clock.set(step_s)
        earlier_s = node.report().update_time_s
        node.chips.fail(chip)
        node.wait_until(lambda: node.counts() == (8, 7), "one chip is not allocatable")
        assert node.report().update_time_s >= earlier_s
        node.chips.repair(chip)
        node.wait_until(lambda: node.counts() == (8, 8), "all chips are allocatable")
        node.place(f"pod-{chip}", chip, chip + 1)
        node.check(f"pod-{chip}", chip, chip + 1)
        node.check("before", 0, 1)
        assert node.plugin.is_ready
    assert node.plugin.metric("ascend_dp_registrations_total", result="registered") == registered
    node.delete("before", "pod-2", "pod-4")
    node.wait_until(lambda: node.report().free == ALL, "all chips are free")
    # The clock was set: the times of reports never go back, because readers ignore an older report.
    assert node.report().update_time_s - time.time() == pytest.approx(max(ahead_s, reported_ahead_s), abs=60)
    assert "the clock is behind the report's last time" in node.plugin.process.log.read_text()
