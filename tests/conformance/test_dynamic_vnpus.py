"""vNPUs that are cut when pods start, on a real kubelet: two of one chip, a kill of the plugin, and their end."""

import contextlib
import json
from collections.abc import Iterator
from typing import Final

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import resource_of
from tests.cluster.nodes import make_device_nodes
from tests.conformance.node import PODS, PluginNode, PluginProcess
from tests.conformance.test_upgrade import stands_by
from tests.conformance.test_vnpus import counts, ledger

SMALL, LARGE = "vir05_1c_16g", "vir10_3c_32g"
CORES: Final = 160
UNKNOWN: Final = resource_of("16c")
"""A resource that no kubelet knows here."""


@pytest.fixture
def by_cores(node: PluginNode) -> Iterator[PluginProcess]:
    """A plugin of the node that offers AI cores, instead of the one that offers chips."""
    make_device_nodes(node.node.folder / "chips", [f"vdavinci{vdev_id}" for vdev_id in range(100, 104)])
    node.plugin.process.stop()
    plugin = node.new_plugin("device-plugin-cores", "--dynamic-vnpus=true")
    plugin.process.start()
    try:
        node.wait_until(
            lambda: plugin.is_ready and counts(node, RESOURCE_CORES) == (CORES, CORES), "all cores are allocatable"
        )
        yield plugin
    finally:
        node.clear()
        with contextlib.suppress(Exception):
            node.wait_until(lambda: node.chips.vnpus() == {}, "all vNPUs are given back")
        plugin.process.stop()
        if not node.plugin.process.alive:
            node.plugin.process.start()
        node.wait_until_allocatable()


def place(node: PluginNode, name: str, cores: int, written: str) -> None:
    """Create a pod that requests AI cores, and bind it as the allocator does."""
    node.create(name, cores, resource=RESOURCE_CORES)
    binding = node.binding(name)
    binding["metadata"]["annotations"] = {RESOURCE_CORES: written, PREDICATE_TIME: "1"}
    node.cluster.api.request("POST", f"{PODS}/{name}/binding", binding)


def check(node: PluginNode, name: str, size: str, chip: int, cores: int) -> int:
    """Check that annotations, kubelet, driver and container of a running pod have a vNPU; return its id."""
    annotations = node.running(name)["metadata"]["annotations"]
    node.wait_until(lambda: REAL in node.annotations(name), "the claim is written")
    annotations = node.annotations(name)
    vnpu, _, _ = annotations[REAL].partition("_")
    vdev_id = int(vnpu.split("-")[2])
    assert vnpu == f"Ascend910-{size}-{vdev_id}-{chip}"
    assert annotations[PREDICATE_TIME] == str(CLAIMED)
    assert json.loads(annotations[CONFIGURATION])["devices"] == [{"device_id": str(chip), "device_ip": "127.0.0.1"}]
    assert ledger(node, RESOURCE_CORES)[name] == {*annotations[KUBELET_IDS].split(",")}
    assert len(ledger(node, RESOURCE_CORES)[name]) == cores
    container = node.container(name)
    assert (container.visible, container.devices) == ((vdev_id,), (vdev_id,))
    assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"
    assert vdev_id in node.chips.vnpus()
    return vdev_id


def test_slices_of_a_chip_are_cut_kept_over_a_kill_and_given_back(node: PluginNode, by_cores: PluginProcess) -> None:
    place(node, "small", 5, f"1-{SMALL}")
    place(node, "large", 10, f"1-{LARGE}")
    small, large = check(node, "small", "5c.1cpu.16g", 1, 5), check(node, "large", "10c.3cpu.32g", 1, 10)
    place(node, "too-much", 10, f"1-{LARGE}")
    assert "NoNPUResource" in node.failed("too-much")
    by_cores.process.kill()
    node.cluster.api.patch(f"{PODS}/small", {"metadata": {"annotations": {REAL: None, CONFIGURATION: None}}})
    by_cores.process.start()
    node.wait_until(lambda: by_cores.is_ready and counts(node, RESOURCE_CORES) == (CORES, CORES), "they are again")
    assert check(node, "small", "5c.1cpu.16g", 1, 5) == small
    assert {*node.chips.vnpus()} == {small, large}
    node.restart_kubelet()
    node.wait_until(lambda: by_cores.is_ready and counts(node, RESOURCE_CORES) == (CORES, CORES), "they are again")
    assert check(node, "large", "10c.3cpu.32g", 1, 10) == large
    node.chips.fail(1)
    node.wait_until(lambda: counts(node, RESOURCE_CORES) == (CORES, CORES - 5), "only free cores are lost")
    node.chips.repair_all()
    node.wait_until(lambda: counts(node, RESOURCE_CORES) == (CORES, CORES), "they are back")
    node.delete("small")
    node.wait_until(lambda: {*node.chips.vnpus()} == {large}, "its vNPU is given back")
    node.delete("large")
    node.wait_until(lambda: node.chips.vnpus() == {}, "nothing is left")


@pytest.mark.long
def test_no_ai_cores_are_left_when_an_instance_that_offers_chips_takes_over(
    node: PluginNode, by_cores: PluginProcess
) -> None:
    """As a DaemonSet with ``maxSurge`` does it after a change of the setting."""
    node.plugin.process.start()
    node.wait_until(lambda: stands_by(node.plugin), "the other instance stands by")
    by_cores.process.terminate()
    assert by_cores.process.wait(timeout_s=10) == 0
    node.wait_until_allocatable()
    node.wait_until(lambda: counts(node, RESOURCE_CORES) == (0, 0), "no AI cores are left")
    node.place("train", 0, 1)
    node.check("train", 0, 1)


def test_what_only_the_node_has_is_withdrawn(node: PluginNode) -> None:
    """A kubelet leaves it if the API server does not answer in the moment in which the kubelet forgets a resource."""
    left = {UNKNOWN: "2"}
    node.cluster.api.patch(
        f"/api/v1/nodes/{node.node.name}/status", {"status": {"capacity": left, "allocatable": left}}
    )
    node.restart_kubelet()
    assert counts(node, UNKNOWN) == (2, 2)
    node.plugin.process.stop()
    node.start_plugin()
    node.wait_until(lambda: counts(node, UNKNOWN) == (0, 0), "no vNPUs are left")
