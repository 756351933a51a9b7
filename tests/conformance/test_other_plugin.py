"""MindCluster's device plugin starts beside this one on a real kubelet."""

import pytest

from device_plugin.serving.other_plugin import EVENT
from tests.conformance.node import DISTINGUISHES_PLUGINS, PluginNode
from tests.conformance.reference_plugin import ReferencePlugin
from tests.conformance.test_migration import has

EVENTS = "/apis/events.k8s.io/v1/namespaces/default/events"


def test_it_gives_way_to_mindclusters_plugin_and_comes_back(node: PluginNode) -> None:
    node.place("ours", 0, 1)
    node.check("ours", 0, 1)
    lapses_before = node.lapses()
    reference = ReferencePlugin(node)
    with reference.unregistered(node.node.device_plugin_dir) as register:
        node.wait_until(lambda: "MindCluster's device plugin serves" in node.plugin.problems(), "it says so")
        # The kubelet calls this plugin until the other one has registered.
        node.place("between", 4, 5)
        node.check("between", 4, 5)
        node.delete("between")
        assert node.lapses() == lapses_before
        register()
        node.wait_until(lambda: node.plugin_sockets() == [], "it has given way")
        reference.place("theirs", (2, 3), (4, 5))
        has(node, "ours", (0, 1), (0, 1))
        events = [each for each in node.cluster.api.get(EVENTS)["items"] if each["reason"] == EVENT]
        found = [each for each in events if each["note"].startswith("MindCluster")]
        assert [each["regarding"]["kind"] for each in found] == ["Node"]
        assert not node.plugin.is_ready
        assert node.counts() == (8, 8)
        assert node.lapses() == lapses_before
    node.wait_until_allocatable()
    # The end of MindCluster's plugin, which only a kubelet from 1.37 on notices.
    assert node.lapses() == lapses_before + (1 if DISTINGUISHES_PLUGINS else 0)
    node.place("again", 6, 7)
    node.check("again", 6, 7)
    has(node, "theirs", (2, 3), (4, 5))
    has(node, "ours", (0, 1), (0, 1))


@pytest.mark.long
def test_it_notices_a_plugin_of_another_name_and_comes_back(node: PluginNode) -> None:
    node.place("ours", 0, 1)
    node.check("ours", 0, 1)
    registered = node.plugin.metric("ascend_dp_registrations_total", result="registered")
    other = ReferencePlugin(node, "vendor.sock")
    with other.serving(node.node.device_plugin_dir):
        node.wait_until(lambda: "another device plugin has registered" in node.plugin.problems(), "it says so")
        assert "vendor.sock" in node.plugin.problems()
        other.place("theirs", (2, 3), (4, 5))
        has(node, "ours", (0, 1), (0, 1))
        assert not node.plugin.is_ready
        assert node.counts() == (8, 8)
        found = [each for each in node.cluster.api.get(EVENTS)["items"] if each["reason"] == EVENT]
        assert any("vendor.sock" in each["note"] for each in found)
    node.wait_until_allocatable()
    again = node.plugin.metric("ascend_dp_registrations_total", result="registered") - registered
    assert again == (0 if DISTINGUISHES_PLUGINS else 1)
    node.place("again", 6, 7)
    node.check("again", 6, 7)
    has(node, "theirs", (2, 3), (4, 5))


@pytest.mark.long
def test_it_notices_a_plugin_that_the_kubelets_watcher_has_found_and_comes_back(node: PluginNode) -> None:
    """It calls nothing, and the kubelet does not count it as registered."""
    node.place("ours", 0, 1)
    node.check("ours", 0, 1)
    registry = node.node.folder / "kubelet" / "plugins_registry"
    other = ReferencePlugin(node, "vendor-reg.sock")
    with other.watched(registry):
        node.wait_until(lambda: "another device plugin has registered" in node.plugin.problems(), "it says so")
        assert "vendor-reg.sock" in node.plugin.problems()
        labels = {
            "socket_path": "/var/lib/kubelet/plugins_registry/vendor-reg.sock",
            "state": "actual_state_of_world",
        }
        node.wait_until(
            lambda: node.kubelet_metric("plugin_manager_total_plugins", **labels) == 1, "the kubelet has registered it"
        )
        other.place("theirs", (2, 3), (4, 5))
        has(node, "ours", (0, 1), (0, 1))
        assert not node.plugin.is_ready
    node.wait_until_allocatable()
    node.place("again", 6, 7)
    node.check("again", 6, 7)
    has(node, "theirs", (2, 3), (4, 5))


@pytest.mark.long
@pytest.mark.skipif(DISTINGUISHES_PLUGINS, reason="from 1.37 on the kubelet keeps the devices")
def test_it_registers_again_after_a_plugin_of_another_name_that_has_ended_at_once(node: PluginNode) -> None:
    """The end of either plugin makes all devices unhealthy, and the kubelet tells neither."""
    with ReferencePlugin(node, "vendor.sock").serving(node.node.device_plugin_dir):
        pass
    node.wait_until(lambda: node.counts() == (8, 0), "the kubelet has lost the devices")
    node.wait_until_allocatable()
    node.place("again", 6, 7)
    node.check("again", 6, 7)


def test_a_plugin_of_another_name_that_registers_first_after_a_restart_is_noticed(node: PluginNode) -> None:
    node.node.kubelet.kill()
    node.plugin.process.pause()
    node.node.start_kubelet()
    with ReferencePlugin(node, "vendor.sock").serving(node.node.device_plugin_dir):
        node.plugin.process.resume()
        node.wait_until(lambda: "another device plugin has registered" in node.plugin.problems(), "it says so")
    node.wait_until_allocatable()
