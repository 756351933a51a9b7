"""Pods with several containers, and the modes of injection."""

import base64
import json
from typing import Any, Final

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ascend.annotations import ALLOCATED, KUBELET_IDS, REAL
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set, parse_names
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from tests.cluster.images import BUSYBOX_IMAGE
from tests.cluster.manifests import STAY
from tests.conformance.node import PluginNode, written_set

ONCE: Final = ("true",)
FOREVER: Final = ("sh", "-c", STAY)


def container(name: str, chips: int, command: tuple[str, ...] = FOREVER, **more: Any) -> dict[str, Any]:
    """A container that requests chips."""
    limits = {"resources": {"limits": {RESOURCE: str(chips)}}} if chips else {}
    image = {"image": BUSYBOX_IMAGE, "imagePullPolicy": "Never"}
    return {"name": name, "command": list(command), **image, **limits, **more}


def place(node: PluginNode, name: str, chips: tuple[int, ...], **containers: Any) -> None:
    """Create and bind a pod with these containers."""
    node.create(name, **containers)
    node.bind(name, *chips)


def slices(node: PluginNode, name: str, *chips: int) -> dict[str, ChipSet]:
    """Check that all records of the running containers' chips agree; return the chips by container."""
    annotations = node.running(name)["metadata"]["annotations"]
    assert {written_set(annotations, key) for key in (ALLOCATED, REAL, KUBELET_IDS)} == {chip_set(chips)}
    order = parse_names(annotations[ALLOCATED])
    held = {container: ids for (pod, container), ids in node.ledger().items() if pod == name}
    for each, ids in held.items():
        seen = node.container(name, each)
        assert seen.devices == chip_ids(ids)
        assert seen.visible == tuple(chip for chip in order if ids >> chip & 1)
    return held


def test_each_container_has_chips_of_its_own_also_after_restarts(node: PluginNode) -> None:
    """Scenario A10."""
    containers = [container("one", 1), container("without", 0), container("four", 4), container("two", 2)]
    place(node, "several", (7, 6, 5, 4, 3, 2, 1), containers=containers)
    before = slices(node, "several", 7, 6, 5, 4, 3, 2, 1)
    assert {name: ids.bit_count() for name, ids in before.items()} == {"one": 1, "four": 4, "two": 2}
    assert not before["one"] & before["four"]
    assert not before["two"] & (before["one"] | before["four"])
    assert node.container("several", "without").devices == ()
    node.plugin.process.kill()
    node.restart_kubelet()
    node.start_plugin()
    assert slices(node, "several", 7, 6, 5, 4, 3, 2, 1) == before
    node.place("next", 0)
    node.check("next", 0)


def test_two_pods_with_the_same_containers_are_not_mixed_up(node: PluginNode) -> None:
    """Scenarios A9 and A10 at once."""
    for name in ("first", "second"):
        node.create(name, containers=[container("a", 2), container("b", 2)])
    node.bind_together(0.001, ("first", (0, 1, 2, 3), 2), ("second", (4, 5, 6, 7), 1))
    for name, chips in (("first", (0, 1, 2, 3)), ("second", (4, 5, 6, 7))):
        held = slices(node, name, *chips)
        assert {container: ids.bit_count() for container, ids in held.items()} == {"a": 2, "b": 2}


def test_an_init_container_passes_its_chips_on_and_a_sidecar_keeps_its_own(node: PluginNode) -> None:
    """Scenario 10."""
    first = [container("sidecar", 1, restartPolicy="Always"), container("init", 2, ONCE)]
    place(node, "three", (4, 5, 6), initContainers=first, containers=[container("main", 2)])
    held = slices(node, "three", 4, 5, 6)
    assert {name: ids.bit_count() for name, ids in held.items()} == {"sidecar": 1, "main": 2}
    assert not held["sidecar"] & held["main"]
    node.place("others", 0, 1, 2, 3, 7)
    node.check("others", 0, 1, 2, 3, 7)


def test_a_kubelet_restart_after_an_init_container_affects_no_other_pod(
    node: PluginNode,
) -> None:
    """Scenario 12: kubelets up to 1.37 may end the pod (docs/spec/kubelet.md#restarts); other pods keep their chips."""
    place(node, "two", (4, 5), initContainers=[container("init", 2, ONCE)], containers=[container("main", 2)])
    assert slices(node, "two", 4, 5) == {"main": 0b110000}
    node.place("other", 6)
    node.check("other", 6)
    node.restart_kubelet()
    node.wait_until_allocatable()
    node.check("other", 6)
    if node.phase("two") == "Running":
        assert slices(node, "two", 4, 5) == {"main": 0b110000}
    else:
        assert "UnexpectedAdmissionError" in node.failed("two")
        node.place("next", 4, 5)
        node.check("next", 4, 5)


@pytest.mark.parametrize(
    "injection", ["cdi", *(pytest.param(name, marks=pytest.mark.long) for name in ("devices", "runtime"))]
)
def test_the_kubelet_stores_the_answer_unchanged(node: PluginNode, injection: str) -> None:
    """Scenario 2. The container runtime of this machine has no CDI, so the test checks that the CDI file has the
    device's name.
    """
    folder = node.node.folder / "cdi"
    folder.mkdir(exist_ok=True)
    topology = node.node.folder / "topology"
    topology.mkdir(exist_ok=True)
    usual, node.plugin = (
        node.plugin,
        node.new_plugin(
            f"device-plugin-{injection}",
            *("--injection", injection, "--cdi-dir", str(folder), "--topology-dir", str(topology)),
        ),
    )
    usual.process.stop()
    node.start_plugin()
    try:
        node.place("train", 2, 3)
        node.running("train")
        (answer,) = answers(node)
        if injection == "cdi":
            names = {each.name for each in answer.cdi_devices}
            (file,) = folder.glob("*.json")
            spec = json.loads(file.read_text())
            known = {f"{spec['kind']}={each['name']}" for each in spec["devices"]}
            assert names <= known
            assert {"huawei.com/npu=2", "huawei.com/npu=3"} <= names
        assert bool(answer.cdi_devices) == (injection == "cdi")
        assert bool(answer.devices) == (injection == "devices")
        assert ("ASCEND_VISIBLE_DEVICES" in answer.envs) == (injection == "runtime")
        env = node.container("train").env
        assert {env["ASCEND_AFFINITY_CHIPS"], env["ASCEND_AFFINITY_RINGS"]} <= {"2,3", "0,0"}
        shown = json.loads(node.node.exec("train", ["cat", env["ASCEND_AFFINITY_TOPOLOGY"]]))
        assert (shown["node"], shown["product"], len(shown["chips"])) == (node.node.name, "910B-8", 8)
    finally:
        node.plugin.process.stop()
        node.plugin = usual


@pytest.mark.long
def test_metrics_name_the_container_that_really_has_each_chip(node: PluginNode) -> None:
    flags = ("--telemetry", "true", "--telemetry-interval-s", "0.5")
    usual, node.plugin = node.plugin, node.new_plugin("device-plugin-telemetry", *flags)
    usual.process.stop()
    node.start_plugin()
    try:
        first = [container("sidecar", 1, restartPolicy="Always"), container("init", 2, ONCE)]
        place(node, "three", (4, 5, 6), initContainers=first, containers=[container("main", 2)])
        place(node, "several", (3, 0), containers=[container("one", 1), container("two", 1)])
        held = {
            ("default", pod, each): ids
            for pod, chips in (("three", (4, 5, 6)), ("several", (3, 0)))
            for each, ids in slices(node, pod, *chips).items()
        }
        assert len(held) == 4
        assert users(node) == held
        node.plugin.process.kill()
        node.start_plugin()  # which learns them from the kubelet's ledger
        assert users(node) == held
        node.delete("three")
        node.wait_until(
            lambda: users(node) == {who: ids for who, ids in held.items() if who[1] != "three"}, "the pod is gone"
        )
    finally:
        node.plugin.process.stop()
        node.plugin = usual


def users(node: PluginNode) -> dict[tuple[str, ...], ChipSet]:
    """The chips by namespace, pod and container, from the plugin's metrics."""
    text = node.plugin.page.request("GET", "/metrics").decode()
    found: dict[tuple[str, ...], ChipSet] = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples if family.name == "npu_chip_info_power" else ():
            who = tuple(each.labels[label] for label in ("namespace", "pod_name", "container_name"))
            if any(who):
                found[who] = found.get(who, 0) | 1 << int(each.labels["id"])
    return found


def answers(node: PluginNode) -> list[pb.ContainerAllocateResponse]:
    """The answers in the kubelet's checkpoint."""
    checkpoint = json.loads((node.node.device_plugin_dir / "kubelet_internal_checkpoint").read_bytes())
    return [
        pb.ContainerAllocateResponse.FromString(base64.b64decode(each["AllocResp"]))
        for each in checkpoint["Data"]["PodDeviceEntries"] or ()
    ]
