"""An upgrade of the plugin at the kubelet's default status period, with pods arriving all the time.

``pytest -s -m long tests/conformance/test_upgrade.py`` prints how many pods failed.
"""

import sys
import time
from collections.abc import Iterator

import pytest

from tests.conformance.node import ALL, PluginNode, PluginProcess

CHIPS = range(8)


@pytest.fixture
def slow_node(node: PluginNode) -> Iterator[PluginNode]:
    """The node with a kubelet that updates its Node every ten seconds, which is the default."""
    node.node.status_period_s = 10
    node.restart_kubelet()
    node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 8), "all chips are allocatable")
    yield node
    node.node.status_period_s = 1
    node.restart_kubelet()


def stands_by(plugin: PluginProcess) -> bool:
    """Whether a DaemonSet takes the plugin's pod for available."""
    return plugin.process.alive and plugin.page.answers("/standbyz")


def outcomes(node: PluginNode, names: list[str]) -> dict[str, str]:
    """Wait until each pod runs or has failed; return why they failed."""
    node.wait_until(lambda: all(node.phase(name) in {"Running", "Failed"} for name in names), "all pods are decided")
    status = {name: node.pod(name)["status"] for name in names}
    return {name: f"{each['reason']}: {each['message']}" for name, each in status.items() if each["phase"] == "Failed"}


@pytest.mark.long
def test_a_deleted_lock_file_lets_no_two_plugins_take_the_kubelet_from_each_other(node: PluginNode) -> None:
    before = node.lapses()
    (node.node.device_plugin_dir / "ascend910.lock").unlink()
    old, new = node.plugin, node.new_plugin("device-plugin-after-lock")
    new.process.start()
    node.wait_until(lambda: stands_by(new) or not old.process.alive, "one works and the other stands by, or has ended")
    for chip in CHIPS:
        node.place(f"pod-{chip}", chip)
        node.check(f"pod-{chip}", chip)
    if old.process.alive:
        assert node.lapses() == before
        old.process.terminate()
        old.process.wait(timeout_s=10)
    node.plugin = new
    node.wait_until(lambda: new.is_ready and node.counts() == (8, 8), "the new one is ready")
    assert node.lapses() <= before + 1


@pytest.mark.long
@pytest.mark.parametrize("gap_s", [0.5, 0.05])
def test_an_upgrade_fails_no_pod(slow_node: PluginNode, gap_s: float) -> None:
    """As a DaemonSet with ``maxSurge`` does it: the new pod is available before the old one is told to end."""
    node = slow_node
    failed: dict[str, str] = {}
    lapses_before = node.lapses()
    for attempt in range(3):
        old, new = node.plugin, node.new_plugin(f"device-plugin-{gap_s}-{attempt}")
        new.process.start()
        node.wait_until(lambda: stands_by(new), "the new one stands by")  # noqa: B023 - called at once
        names = [f"pod-{attempt}-{chip}" for chip in CHIPS]
        for name in names:
            node.create(name, 1)
        for chip, name in enumerate(names):
            if chip == 2:
                old.process.terminate()
            due_s = time.monotonic() + gap_s
            node.bind(name, chip)
            node.wait_until(lambda: time.monotonic() >= due_s, "the next pod comes")  # noqa: B023 - called at once
        assert old.process.wait(timeout_s=10) == 0
        node.plugin = new
        failed |= outcomes(node, names)
        for chip, name in enumerate(names):
            if name not in failed:
                node.check(name, chip)
        node.wait_until(lambda: new.is_ready, "the new one is ready")  # noqa: B023 - called at once
        assert node.counts() == (8, 8)
        node.clear()
        node.wait_until(lambda: node.report().free == ALL, "all chips are free")
    sys.stdout.write(f"\na pod every {gap_s} s, three upgrades: {len(failed)} of 24 pods failed\n")
    assert not failed
    assert node.lapses() == lapses_before
