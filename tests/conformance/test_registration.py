"""The plugin is registered whenever it can be, and only then."""

import shutil
import statistics
import time

from ascend.chips import RESOURCE
from tests.conformance.node import DISTINGUISHES_PLUGINS, PluginNode

REGISTRATIONS = "kubelet_device_plugin_registration_total"


def registered(node: PluginNode) -> float:
    """The number of registrations of the running plugin."""
    return node.plugin.metric("ascend_dp_registrations_total", result="registered")


def test_a_new_kubelet_socket_is_registered_with_within_a_second(node: PluginNode) -> None:
    """Scenario A1."""
    socket = node.node.device_plugin_dir / "kubelet.sock"
    waited_s = []
    for times in (2, 3, 4):
        before = socket.stat().st_ino, socket.stat().st_ctime_ns
        node.node.kubelet.kill()
        node.node.kubelet.start()

        def is_new(before: tuple[int, int] = before) -> bool:
            return socket.exists() and (socket.stat().st_ino, socket.stat().st_ctime_ns) != before

        node.wait_until(is_new, "kubelet.sock was recreated")
        started_s = time.monotonic()
        node.wait_until(lambda times=times: registered(node) >= times, "it has registered again")
        waited_s.append(time.monotonic() - started_s)
        node.wait_until_allocatable()
    node.restart_kubelet()  # unlike the kubelets above, this one has certainly read its pods
    assert statistics.median(waited_s) < 1.0, waited_s


def test_a_plugin_started_before_its_kubelet_waits_for_it(node: PluginNode) -> None:
    """Scenario A2."""
    node.plugin.process.stop()
    node.node.kubelet.stop()
    (node.node.device_plugin_dir / "kubelet.sock").unlink(missing_ok=True)
    node.plugin.process.start()
    node.wait_until(lambda: "kubelet.sock" in node.plugin.problems(), "it reports that it waits for kubelet.sock")
    node.node.start_kubelet()
    node.wait_until_allocatable()
    node.place("train", 1)
    node.check("train", 1)


def test_it_registers_in_a_recreated_folder(node: PluginNode) -> None:
    """A part of A1: not only the socket but also its folder was recreated (docs/spec/kubelet.md#kubelet-start)."""
    node.node.kubelet.stop()
    # Renamed first: the plugin recreates its socket as soon as it is missing, and could do so during the removal.
    removed = node.node.device_plugin_dir.rename(node.node.device_plugin_dir.with_name("removed"))
    shutil.rmtree(removed)
    node.node.start_kubelet()
    node.wait_until_allocatable()
    node.place("train", 1)
    node.check("train", 1)


def test_sockets_of_a_killed_instance_are_removed(node: PluginNode) -> None:
    """Scenario A3."""
    (stale,) = node.plugin_sockets()
    node.plugin.process.kill()
    assert node.plugin_sockets() == [stale]
    node.start_plugin()
    assert len(node.plugin_sockets()) == 1
    assert stale not in node.plugin_sockets()


def test_a_new_instance_takes_over_from_a_running_one(node: PluginNode) -> None:
    """Scenario A4 (docs/spec/kubelet.md#registration-race): the kubelet has healthy devices at every moment."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    before = node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE)
    lapses_before = node.lapses()
    old, new = node.plugin, node.new_plugin("device-plugin-upgraded")
    new.process.start()
    node.wait_until(lambda: "lock" in new.problems(), "the new one waits for the old one")
    node.place("meanwhile", 0)
    node.check("meanwhile", 0)
    node.plugin = new
    old.process.stop()
    node.wait_until_allocatable()
    # A kubelet before 1.37 also counts the registration that fails.
    registrations = 1 if DISTINGUISHES_PLUGINS else 2
    assert node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE) == before + registrations
    assert node.lapses() == lapses_before
    node.check("holds", 2, 3)
    node.place("afterwards", 4, 5)
    node.check("afterwards", 4, 5)


def test_a_kubelet_whose_socket_is_deleted_keeps_its_devices(node: PluginNode) -> None:
    before = node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE)
    (node.node.device_plugin_dir / "kubelet.sock").unlink()
    node.place("train", 0, 1)
    node.check("train", 0, 1)
    node.chips.fail(5)
    node.wait_until(lambda: node.counts() == (8, 7), "the kubelet learns of the fault by the stream")
    assert node.plugin.is_ready
    node.restart_kubelet()
    node.chips.repair_all()
    node.wait_until_allocatable()
    assert node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE) <= before + 1


def test_a_plugin_that_cannot_read_its_driver_does_not_register(node: PluginNode) -> None:
    """Instead of scenarios F1 and F5."""
    node.plugin.process.stop()
    before = node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE)
    node.chips.break_driver(-8005)
    node.plugin.process.start()
    node.wait_until(lambda: "-8005" in node.plugin.problems(), "it says why")
    assert node.plugin_sockets() == []
    assert node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE) == before
    node.wait_until(lambda: node.counts()[1] == 0, "no chip is allocatable")
    node.chips.repair_all()
    node.wait_until_allocatable()
    assert node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE) == before + 1


def test_after_the_end_of_its_stream_it_registers_again(node: PluginNode) -> None:
    """Instead of scenarios F5 and F6: a kubelet never connects again by itself (docs/spec/kubelet.md#listandwatch)."""
    before = node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE)
    (socket,) = node.plugin_sockets()
    socket.unlink()
    node.wait_until(
        lambda: node.kubelet_metric(REGISTRATIONS, resource_name=RESOURCE) == before + 1, "it has registered again"
    )
    node.wait_until_allocatable()
    assert len(node.plugin_sockets()) == 1


def test_a_stopped_plugin_leaves_capacity_but_nothing_allocatable(node: PluginNode) -> None:
    """Scenarios F6 and F7. It ends within a second, sends no empty list before, and leaves no socket."""
    node.place("holds", 2, 3)
    node.check("holds", 2, 3)
    started_s = time.monotonic()
    node.plugin.process.stop()
    assert time.monotonic() - started_s < 2.0
    assert node.plugin.process.wait(timeout_s=1) == 0
    assert node.plugin_sockets() == []
    node.wait_until(lambda: node.counts() == (8, 0), "no chip is allocatable, and all still count")
    assert node.phase("holds") == "Running"
    node.place("waits", 1)
    assert "OutOfhuawei.com/Ascend910" in node.failed("waits") or "UnexpectedAdmissionError" in node.failed("waits")
