"""A node without space in the kubelet's folder, and a plugin with the memory and CPU time that the chart allows it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.cluster.manifests import pod as pod_manifest
from tests.conformance.chips import Chips
from tests.conformance.node import ALL, PluginNode
from tests.conformance.random_admissions import RUNTIME_CLASS, make_runtime_class
from tests.dcmi.fake import ascend_a3
from tests.deploy.helm import CHART
from tests.device_plugin.small_disk import SIZE, SmallDisk
from tests.written_nodes import removal

pytestmark = pytest.mark.long

FOLDER = "/var/lib/kubelet/device-plugins"
CGROUPS = Path("/sys/fs/cgroup")
RESOURCES = yaml.safe_load((CHART / "values.yaml").read_text())["devicePlugin"]["resources"]
PODS_OF_A_KUBELET = 110
NOTE = "x" * 100_000


@pytest.fixture
def small_disk(node: PluginNode) -> Iterator[SmallDisk]:
    """The kubelet's folder on a file system of its own."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=755", "tmpfs", FOLDER]
    for name, command in (("mount", mount), ("umount", ["umount", "--lazy", FOLDER])):
        node.plugin.process.stop()
        node.node.kubelet.kill()
        running = node.node.process(name, command)
        running.start()
        assert running.wait(timeout_s=10) == 0, running.log_tail()
        node.node.start_kubelet()
        node.start_plugin()
        if name == "mount":
            yield SmallDisk(Path(f"/proc/{node.node.containerd.pid}/root{FOLDER}"))
            node.clear()


def test_without_space_a_pod_is_refused_and_running_ones_keep_their_chips(
    node: PluginNode, small_disk: SmallDisk
) -> None:
    node.place("holds", 0, 1)
    node.check("holds", 0, 1)
    small_disk.fill()
    node.place("refused", 2, 3)
    assert "no space left on device" in node.failed("refused")
    node.wait_until(lambda: node.report().free == ALL & ~0b11, "its chips are free")
    node.chips.fail(7)
    node.wait_until(lambda: node.counts() == (8, 7), "faults reach the kubelet")
    node.chips.repair(7)
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    node.plugin.process.kill()
    node.plugin.process.start()
    node.wait_until_allocatable()
    node.restart_kubelet()
    node.wait_until_allocatable()
    node.check("holds", 0, 1)
    small_disk.empty()
    node.place("next", 2, 3)
    node.check("next", 2, 3)


@pytest.fixture
def a3(node: PluginNode) -> Iterator[PluginNode]:
    """The node as a server with 16 chips."""
    usual, path = node.chips, f"/api/v1/nodes/{node.node.name}"
    node.plugin.process.stop()
    node.cluster.api.patch(path, removal())
    node.chips = Chips(node.node.folder, ascend_a3())
    yield node
    node.clear()
    node.plugin.process.stop()
    node.cluster.api.patch(path, removal())
    node.chips = usual
    node.start_plugin()


@contextmanager
def limited(node: PluginNode, controller: str, **limits: int) -> Iterator[Path]:
    """The node's plugin, not started, in a control group with limits: the group's folder."""
    if not (CGROUPS / controller).is_dir():
        pytest.skip(f"{controller} is not limited by cgroup v1 here")
    usual, node.plugin = node.plugin, node.new_plugin("limited", "--telemetry", "true")
    usual.process.stop()
    process, group = node.plugin.process, CGROUPS / controller / node.cluster.folder.name
    process.command = ["sh", "-ec", f'echo 0 > {group}/cgroup.procs; exec "$@"', "limited", *process.command]
    group.mkdir()
    try:
        for name, limit in limits.items():
            (group / f"{controller}.{name}").write_text(str(limit))
        yield group
    finally:
        process.stop()
        node.plugin = usual
        group.rmdir()


def test_the_memory_of_the_chart_is_enough_for_16_chips_and_all_pods_of_a_kubelet(a3: PluginNode) -> None:
    node = a3
    limit = RESOURCES["limits"]["memory"]
    make_runtime_class(node.cluster)
    with limited(node, "memory", limit_in_bytes=int(limit.removesuffix("Mi")) << 20) as group:
        node.plugin.process.start()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (16, 16), "all chips are allocatable")
        for number in range(PODS_OF_A_KUBELET - 8):
            name, notes = f"other-{number}", {"note": NOTE}
            other = pod_manifest(name, node=node.node.name, annotations=notes, runtimeClassName=RUNTIME_CLASS)
            node.cluster.api.create(other)
        node.wait_until(lambda: len(node.listed()) >= PODS_OF_A_KUBELET - 8, "the kubelet has them", 120)
        for chip in range(0, 16, 2):
            node.place(f"pod-{chip}", chip, chip + 1)
        for chip in range(0, 16, 2):
            node.check(f"pod-{chip}", chip, chip + 1)
        for _ in range(20):
            node.plugin.metric("process_resident_memory_bytes")
        most = int((group / "memory.max_usage_in_bytes").read_text())
        sys.stdout.write(f"\n{most >> 20} MiB of {limit} at most\n")
        assert node.plugin.process.alive
        node.clear()


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("share", "start_s"), [(1, 120), (0.2, 600)])
def test_with_little_cpu_no_pod_is_refused_for_chips_that_are_well(
    node: PluginNode, share: float, start_s: int
) -> None:
    """The chart sets no limit of CPU, because it delays pods; the share is of what it requests."""
    period_us, requested = 100_000, int(RESOURCES["requests"]["cpu"].removesuffix("m")) / 1000
    with limited(node, "cpu", cfs_period_us=period_us, cfs_quota_us=int(period_us * requested * share)):
        node.plugin.process.start()
        node.wait_until(lambda: node.plugin.is_ready and node.counts() == (8, 8), "all chips are allocatable", start_s)
        pods = {"one": (0,), "other": (1,), "two": (2, 3), "four": (4, 5, 6, 7)}
        for name, chips in pods.items():
            node.place(name, *chips)
        for name, chips in pods.items():
            node.check(name, *chips)
        node.wait_until(lambda: node.report().free == 0, "no chip is free")
        assert node.plugin.metric("ascend_dp_health_transitions_total", to="unhealthy", reason="DriverSilent") == 0
        node.clear()
