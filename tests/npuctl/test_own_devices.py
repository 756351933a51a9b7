"""What plan, explain and doctor say of pods whose authors give them devices without the allocator."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS
from npuctl.cli import app
from npuctl.doctor.details import VariableSource, read_details
from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import Json, as_list, node, pod, report

NOW = "2026-01-01T00:00:00Z"
VISIBLE = {"name": "ASCEND_VISIBLE_DEVICES", "value": "0-7"}


def npuctl(folder: Path, command: str, *objects: Json) -> tuple[int, dict[str, Any], str]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), report("n1"), *objects)))
    arguments = [*command.split(), "-f", str(path), "--now", NOW]
    done = CliRunner().invoke(app, [*arguments, "-o", "json"])
    people = CliRunner().invoke(app, arguments, terminal_width=500)
    return done.exit_code, json.loads(done.stdout), people.stdout


def with_container(name: str, chips: int | None = 2, /, **container: Any) -> Json:
    made = pod(name, chips)
    made["spec"]["containers"][0] |= container
    return made


def deployment(replicas: int) -> Json:
    template = pod("", 2)
    template["spec"]["nodeName"] = "n1"
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "pinned", "namespace": "default"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": template["spec"]},
        },
    }


def test_pods_whose_node_was_named_by_hand_are_refused(tmp_path: Path) -> None:
    status, answer, people = npuctl(tmp_path, "plan", deployment(2))
    assert status == 3
    assert [(each["name"], each["reason"]) for each in answer["pending"]] == [
        ("pinned-0", "NotPlaced"),
        ("pinned-1", "NotPlaced"),
    ]
    assert "its node was named by hand (spec.nodeName: n1)" in people
    assert "select the node by spec.nodeSelector kubernetes.io/hostname" in people
    status, answer, people = npuctl(tmp_path, "explain deployment/pinned", deployment(2))
    assert status == 3
    assert {(each["state"], each["reason"]) for each in answer["pods"]} == {("waits", "NotPlaced")}
    assert "2 waiting" in people
    bare = pod("pinned", 1, node="n1", phase="Pending")
    status, answer, _ = npuctl(tmp_path, "doctor --cluster", bare)
    (found,) = (each for each in answer["findings"] if each["check"] == "pods" and each["severity"] == "problem")
    assert "its node was named by hand (spec.nodeName: n1)" in found["sentence"]


@pytest.mark.parametrize(
    "chosen",
    [
        pod("placed", 1, node="n1", chips=[0], phase="Pending"),
        # It runs, so another device plugin has given it chips.
        pod("runs", 1, node="n1"),
        pod("static", 1, node="n1", phase="Pending", annotations={"kubernetes.io/config.mirror": "a"}),
        pod("plain", None, node="n1", phase="Pending"),
    ],
    ids=lambda chosen: chosen["metadata"]["name"],
)
def test_other_pods_on_a_node_were_not_named_by_hand(tmp_path: Path, chosen: Json) -> None:
    assert npuctl(tmp_path, "plan", chosen)[:2] == (0, {**npuctl(tmp_path, "plan")[1]})
    assert "by hand" not in json.dumps(npuctl(tmp_path, "doctor --cluster", chosen)[1])


@pytest.mark.parametrize(
    ("container", "named"),
    [
        ({"env": [VISIBLE]}, "ASCEND_VISIBLE_DEVICES"),
        ({"env": [{**VISIBLE, "name": " ASCEND_VISIBLE_DEVICES "}]}, "ASCEND_VISIBLE_DEVICES"),
        ({"env": [{"name": "ASCEND_VNPU_SPECS", "value": "vir02"}]}, "ASCEND_VNPU_SPECS"),
        ({"envFrom": [{"prefix": "ASCEND_", "configMapRef": {"name": "a"}}]}, "ASCEND_…"),
    ],
)
@pytest.mark.parametrize("chips", [0, 2])
def test_a_container_that_names_its_devices_is_told(tmp_path: Path, container: Json, named: str, chips: int) -> None:
    greedy = with_container("greedy", chips, **container)
    sentence = f"container main sets {named}: where ascend-docker-runtime is the runtime"
    status, answer, people = npuctl(tmp_path, "plan", greedy)
    (told,) = answer["warnings"]
    assert (status, told["name"], told["message"].startswith(sentence)) == (0, "greedy", True)
    assert sentence in people
    _, answer, people = npuctl(tmp_path, "explain greedy", greedy)
    assert answer["warnings"] == [told["message"]]
    assert sentence in people
    _, answer, _ = npuctl(tmp_path, "doctor --cluster", greedy)
    (found,) = (each for each in answer["findings"] if sentence in each["sentence"])
    assert found["severity"] == "warning"


@pytest.mark.parametrize(
    "variable",
    [
        {"name": "ASCEND_RT_VISIBLE_DEVICES", "value": "0"},
        # As the makers' manifests have it: the author of a pod can't write this annotation.
        {
            "name": "ASCEND_VISIBLE_DEVICES",
            "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['huawei.com/Ascend910']"}},
        },
    ],
    ids=["of CANN", "of the makers"],
)
def test_variables_that_name_no_devices_are_not_told(tmp_path: Path, variable: Json) -> None:
    assert npuctl(tmp_path, "plan", with_container("good", env=[variable]))[1].get("warnings") is None


def config_map(*keys: str) -> Json:
    metadata = {"name": "visible", "namespace": "default"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict.fromkeys(keys, "0-7")}


def taking(prefix: str = "") -> Json:
    return with_container("taking", None, envFrom=[{"configMapRef": {"name": "visible"}, "prefix": prefix}])


def test_doctor_finds_a_config_map_whose_keys_become_such_variables(tmp_path: Path) -> None:
    _, answer, _ = npuctl(tmp_path, "doctor --cluster", taking(), config_map("A", "ASCEND_VISIBLE_DEVICES"))
    (found,) = (each for each in answer["findings"] if "ConfigMap default/visible" in each["sentence"])
    assert found["severity"] == "warning"
    assert "sets ASCEND_VISIBLE_DEVICES in pod default/taking" in found["sentence"]
    for objects in ((taking(), config_map("A")), (taking("APP_"), config_map("ASCEND_VISIBLE_DEVICES"))):
        assert "default/visible" not in json.dumps(npuctl(tmp_path, "doctor --cluster", *objects)[1])


async def test_doctor_finds_it_in_a_cluster(tmp_path: Path) -> None:
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as client:
            await client.create(CONFIG_MAPS, config_map("ASCEND_VISIBLE_DEVICES"), "default")
            await client.create(PODS, taking(), "default")
            details = await read_details(client)
    assert details.taken == (VariableSource("default/visible", ("ASCEND_VISIBLE_DEVICES",), "default/taking"),)
