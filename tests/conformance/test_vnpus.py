"""vNPUs on a real kubelet: two of one chip in two pods, a restart of the plugin, a fault of the chip, and recutting."""

import json
from collections.abc import Iterator
from typing import Final

import pytest

from ascend.annotations import CLAIMED, CONFIGURATION, KUBELET_IDS, PREDICATE_TIME, REAL
from ascend.vnpus import resource_of
from protos.k8s.podresources.v1 import podresources_pb2 as pb
from tests.cluster.nodes import make_device_nodes
from tests.conformance.node import ALL, PODS, PluginNode
from tests.conformance.wire import pod_resources

SMALL: Final = resource_of("5c.1cpu.16g")
LARGE: Final = resource_of("10c.3cpu.32g")
WHOLE: Final = ALL & ~0b10
DISCOVERY_S: Final = 90.0
"""The plugin lists the chips once a minute."""


@pytest.fixture
def cut(node: PluginNode) -> Iterator[PluginNode]:
    """The node with chip 1 cut into two vNPUs; it is whole again afterwards."""
    make_device_nodes(node.node.folder / "chips", ("vdavinci100", "vdavinci101", "vdavinci102"))
    node.plugin.process.stop()
    node.chips.cut(1, v100="vir05_1c_16g", v101="vir05_1c_16g")
    node.plugin.process.start()
    node.wait_until(lambda: node.plugin.is_ready and node.counts() == (7, 7), "seven chips are allocatable")
    node.wait_until(lambda: counts(node, SMALL) == (2, 2), "two vNPUs are allocatable")
    yield node
    node.clear()
    node.plugin.process.stop()
    node.chips.repair_all()
    node.start_plugin()


def counts(node: PluginNode, resource: str) -> tuple[int, int]:
    """Capacity and allocatable of a resource."""
    status = node.cluster.api.get(f"/api/v1/nodes/{node.node.name}")["status"]
    return int(status["capacity"].get(resource, -1)), int(status["allocatable"].get(resource, -1))


def place(node: PluginNode, name: str, resource: str, device: str) -> None:
    """Create a pod that requests a vNPU, and bind it with one, as the allocator does."""
    node.create(name, 1, resource=resource)
    binding = node.binding(name)
    binding["metadata"]["annotations"] = {resource: device, PREDICATE_TIME: "1"}
    node.cluster.api.request("POST", f"{PODS}/{name}/binding", binding)


def ledger(node: PluginNode, resource: str) -> dict[str, set[str]]:
    """The devices of each pod in the kubelet's ledger."""
    with pod_resources(node.node.pod_resources_socket) as stub:
        listed = stub.List(pb.ListPodResourcesRequest(), timeout=10).pod_resources
    found: dict[str, set[str]] = {}
    for pod in listed:
        for devices in (each for container in pod.containers for each in container.devices):
            if devices.resource_name == resource:
                found.setdefault(pod.name, set()).update(devices.device_ids)
    return found


def check(node: PluginNode, name: str, resource: str, device: str) -> None:
    """Check that annotations, kubelet and container of a running pod have a vNPU."""
    annotations = node.running(name)["metadata"]["annotations"]
    assert annotations[resource] == annotations[REAL] == annotations[KUBELET_IDS] == device
    assert annotations[PREDICATE_TIME] == str(CLAIMED)
    vdev_id, chip = device.split("-")[-2:]
    assert json.loads(annotations[CONFIGURATION])["devices"] == [{"device_id": chip, "device_ip": "127.0.0.1"}]
    assert ledger(node, resource)[name] == {device}
    container = node.container(name)
    assert (container.visible, container.devices) == ((int(vdev_id),), (int(vdev_id),))
    assert container.env["ASCEND_RUNTIME_OPTIONS"] == "VIRTUAL"


@pytest.mark.long
def test_two_pods_share_a_chip_over_restarts_and_a_fault(cut: PluginNode) -> None:
    place(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-101-1")
    place(cut, "second", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    cut.place("train", 0, 2)
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-101-1")
    check(cut, "second", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    cut.check("train", 0, 2)
    cut.plugin.process.kill()
    cut.cluster.api.patch(f"{PODS}/first", {"metadata": {"annotations": {REAL: None, CONFIGURATION: None}}})
    cut.plugin.process.start()
    cut.wait_until(lambda: cut.plugin.is_ready and counts(cut, SMALL) == (2, 2), "two vNPUs are allocatable")
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-101-1")
    cut.restart_kubelet()
    cut.wait_until(lambda: cut.plugin.is_ready and counts(cut, SMALL) == (2, 2), "they are again")
    check(cut, "second", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    cut.chips.fail(1)
    cut.wait_until(lambda: cut.report().unhealthy == 0b10, "the chip is reported")
    cut.wait_until(lambda: counts(cut, SMALL) == (2, 0), "neither is allocatable")
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-101-1")
    cut.delete("second")
    assert cut.report().free == WHOLE & ~0b101
    cut.delete("first")
    cut.chips.repair(1)
    cut.chips.cut(1, v100="vir05_1c_16g", v101="vir05_1c_16g")
    cut.wait_until(lambda: counts(cut, SMALL) == (2, 2), "both are again")


@pytest.mark.long
def test_a_chip_is_cut_anew_while_the_plugin_runs(cut: PluginNode) -> None:
    place(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    cut.chips.cut(1, v100="vir05_1c_16g", v102="vir10_3c_32g")
    cut.wait_until(lambda: counts(cut, LARGE) == (1, 1), "the new one is allocatable", timeout_s=DISCOVERY_S)
    assert counts(cut, SMALL) == (1, 1)
    place(cut, "large", LARGE, "Ascend910-10c.3cpu.32g-102-1")
    check(cut, "large", LARGE, "Ascend910-10c.3cpu.32g-102-1")
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    assert cut.counts() == (7, 7)


@pytest.mark.long
def test_chips_are_recut_while_a_pod_has_a_vnpu_over_restarts(cut: PluginNode) -> None:
    place(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-100-1")
    check(cut, "first", SMALL, "Ascend910-5c.1cpu.16g-100-1")

    def restart() -> None:
        cut.plugin.process.kill()
        cut.restart_kubelet()
        cut.plugin.process.start()

    cut.chips.cut(1)
    for when in ("before", "after"):
        restart()
        cut.wait_until(lambda: cut.plugin.is_ready and counts(cut, SMALL) == (1, 1), "the pod's is listed alone")
        cut.wait_until(lambda: cut.counts()[1] == 7, "the chip is not offered as a whole")
        cut.create(f"whole-{when}", 1)
        cut.bind(f"whole-{when}", 1)
        assert "Ascend910-1" in cut.failed(f"whole-{when}")
    # The driver gives the id of the pod's vNPU to one of another size.
    cut.chips.cut(1, v100="vir10_3c_32g")
    for when in ("before", "after"):
        restart()
        cut.wait_until(lambda: cut.plugin.is_ready and counts(cut, LARGE) == (1, 0), "the new one is given to no pod")
        place(cut, f"large-{when}", LARGE, "Ascend910-10c.3cpu.32g-100-1")
        assert "10c.3cpu.32g" in cut.failed(f"large-{when}")
        assert cut.phase("first") == "Running"
    cut.delete("first")
    cut.wait_until(lambda: counts(cut, LARGE) == (1, 1), "it can be given", timeout_s=DISCOVERY_S)
    place(cut, "large", LARGE, "Ascend910-10c.3cpu.32g-100-1")
    check(cut, "large", LARGE, "Ascend910-10c.3cpu.32g-100-1")
