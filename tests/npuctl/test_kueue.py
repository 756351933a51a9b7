"""``npuctl kueue``: the objects of Kueue for a cluster, and the labels of its nodes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from allocator.admission.objects import CONTROLLER
from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, node, super_pod_node

MESHES = "module-910b-8"
SWITCHES = Path(__file__).parents[2] / "deploy" / "examples" / "switches.yaml"


def run(folder: Path, objects: list[Json], *options: str) -> Any:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    return CliRunner().invoke(app, ["kueue", "-f", str(path), *options])


def manifests(folder: Path, objects: list[Json], *options: str) -> dict[tuple[str, str], Json]:
    done = run(folder, objects, *options)
    assert done.exit_code == 0, done.output
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}


def levels(topology: Json) -> list[str]:
    return [level["nodeLabel"] for level in topology["spec"]["levels"]]


def test_each_product_has_a_flavor_and_the_levels_that_its_nodes_have(tmp_path: Path) -> None:
    objects = [super_pod_node(0, 0), super_pod_node(1, 0), node("n", kind=MESHES)]
    found = manifests(tmp_path, objects)
    assert {name: made["metadata"]["labels"] for (kind, name), made in found.items() if kind == "Node"} == {
        f"{number}-0": {"huawei.com/topotree.superpodid": str(number)} for number in range(2)
    }
    assert found["ResourceFlavor", "ascend-a3-16"]["spec"] == {
        "nodeLabels": {"accelerator-type": "module-a3-16-super-pod"}, "topologyName": "ascend-a3-16"
    }  # fmt: skip
    assert levels(found["Topology", "ascend-a3-16"]) == ["huawei.com/topotree.superpodid"]
    assert found["ResourceFlavor", "ascend-910b-8"]["spec"] == {"nodeLabels": {"accelerator-type": MESHES}}
    assert found["AdmissionCheck", "chips"]["spec"] == {"controllerName": CONTROLLER}
    assert {made["apiVersion"] for made in found.values()} == {"v1", "kueue.x-k8s.io/v1beta2"}
    own = manifests(tmp_path, objects, "--servers", "--api", "v1beta1")
    assert {made["apiVersion"] for made in own.values()} == {"v1", "kueue.x-k8s.io/v1beta1"}
    assert levels(own["Topology", "ascend-910b-8"]) == ["kubernetes.io/hostname"]


def test_nodes_get_the_label_of_their_leaf_switch(tmp_path: Path) -> None:
    nodes = [node(name, kind=MESHES) for name in ("a", "b", "c")]
    for number, made in enumerate(nodes[:2]):
        made["status"]["addresses"] = [{"type": "InternalIP", "address": f"10.0.{number}.10"}]
    done = run(tmp_path, nodes, "-f", str(SWITCHES))
    assert done.exit_code == 0
    found = list(yaml.safe_load_all(done.stdout))
    labels = {made["metadata"]["name"]: made["metadata"]["labels"] for made in found if made["kind"] == "Node"}
    assert labels == {name: {"ascend-affinity.io/leaf-switch": str(number)} for number, name in enumerate("ab")}
    assert "Kueue leaves out nodes without label ascend-affinity.io/leaf-switch: c" in done.stderr


def test_all_known_labels_are_printed_also_those_that_nodes_have(tmp_path: Path) -> None:
    # Else a server that has moved keeps its number, and server-side apply removes what a later manifest lacks.
    moved = super_pod_node(1, 0)
    at = {"huawei.com/topotree.superpodid": "1", "ascend-affinity.io/leaf-switch": "0"}
    moved["metadata"]["labels"] |= {**at, "ascend-affinity.io/leaf-switch": "7"}
    moved["status"]["addresses"] = [{"type": "InternalIP", "address": "10.0.0.10"}]
    found = manifests(tmp_path, [moved], "-f", str(SWITCHES))
    assert found["Node", "1-0"]["metadata"]["labels"] == at


def test_products_that_no_label_tells_apart_have_no_flavor(tmp_path: Path) -> None:
    done = run(tmp_path, [node("a"), node("b", kind=MESHES)])
    assert done.exit_code == 0
    assert "910A: no label accelerator or accelerator-type or servertype tells its nodes from others" in done.stderr
    kinds = [made["kind"] for made in yaml.safe_load_all(done.stdout)]
    assert kinds == ["ResourceFlavor", "AdmissionCheck"]


@pytest.mark.parametrize("objects", [[], [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}]])
def test_a_cluster_without_chips_has_no_such_objects(tmp_path: Path, objects: list[Json]) -> None:
    done = run(tmp_path, objects)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no node with chips of a known product" in done.stderr
