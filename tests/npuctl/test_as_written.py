"""Manifests as people write them: what the API server or no scheduler would take is said before it is applied."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, node, pod, report

NOW = "2026-01-01T00:00:00Z"
CHIPS = "huawei.com/Ascend910"


def npuctl(folder: Path, command: str, *objects: Json) -> tuple[int, dict[str, Any], str]:
    """Exit status, the answer as JSON, and what people see."""
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump(as_list(node("n1"), report("n1"), *objects)))
    arguments = [*command.split(), "-f", str(path), "--now", NOW]
    done = CliRunner().invoke(app, [*arguments, "-o", "json"])
    people = CliRunner().invoke(app, arguments, terminal_width=500)
    return done.exit_code, json.loads(done.stdout), people.stdout


@pytest.mark.parametrize(
    ("resources", "sentence"),
    [
        ({"requests": {CHIPS: 2}}, f"container main requests 2 {CHIPS}, and it has no limit"),
        ({"requests": {CHIPS: 1}, "limits": {CHIPS: 2}}, f"requests 1 {CHIPS}, and its limit is 2"),
        (
            {"requests": {"huawei.com/npu-core": 5}, "limits": {"huawei.com/npu-core": 10}},
            "requests 5 huawei.com/npu-core, and its limit is 10",
        ),
        ({"requests": {f"{CHIPS}-2c": 1}}, f"requests 1 {CHIPS}-2c, and it has no limit"),
    ],
)
def test_a_pod_whose_requests_and_limits_the_api_server_refuses_is_not_placed(
    tmp_path: Path, resources: Json, sentence: str
) -> None:
    made = pod("p", 1)
    made["spec"]["containers"][0] |= {"name": "main", "resources": resources}
    status, answer, people = npuctl(tmp_path, "plan", made)
    assert status == 3
    (waiting,) = answer["pending"]
    assert waiting["reason"] == "InvalidRequest"
    assert sentence in waiting["message"]
    assert "write it under limits alone" in people


@pytest.mark.parametrize("resources", [{"limits": {CHIPS: 2}}, {"limits": {CHIPS: 2}, "requests": {CHIPS: "2000m"}}])
def test_limits_without_requests_and_equal_ones_are_placed(tmp_path: Path, resources: Json) -> None:
    made = pod("p", 2)
    made["spec"]["containers"][0]["resources"] = resources
    assert npuctl(tmp_path, "plan", made)[0] == 0


def with_scheduler(name: str, made: Json) -> Json:
    made["spec"]["schedulerName"] = name
    return made


@pytest.mark.parametrize("command", ["plan", "explain waits"])
def test_a_pod_of_a_scheduler_that_nothing_shows_to_ask_is_told(tmp_path: Path, command: str) -> None:
    _, _, people = npuctl(tmp_path, command, with_scheduler("volcano", pod("waits", 2)))
    assert "no scheduler volcano is known to ask the allocator, which serves default-scheduler" in people


def test_a_scheduler_whose_pods_were_placed_asks_the_allocator(tmp_path: Path) -> None:
    placed = with_scheduler("volcano", pod("placed", 2, node="n1", chips=[0, 1]))
    _, answer, people = npuctl(tmp_path, "plan", placed, with_scheduler("volcano", pod("waits", 2)))
    assert "is known to ask" not in people
    assert "warnings" not in answer


def deployment(resources: Json, **spec: Any) -> Json:
    containers = [{"name": "main", "image": "i", "resources": resources}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d", "namespace": "default"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
    }


@pytest.mark.parametrize("device", ["huawei.com/ascend-1980", "huawei.com/ascend910", "huawei.com/Ascend310"])
@pytest.mark.parametrize("quantity", ["8", 8])
def test_devices_in_other_letters_are_not_no_devices(tmp_path: Path, device: str, quantity: object) -> None:
    status, answer, _ = npuctl(tmp_path, "plan", deployment({"limits": {device: quantity}}))
    assert status == 2
    assert {entry["name"] for entry in answer["unplanned"]} == {"d-0", "d-1"}
    assert all(f"resource {device}: " in entry["message"] for entry in answer["unplanned"])


def of_kind(kind: str, version: str, **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}, **fields}


QUANTITIES = {"cpu": "200", CHIPS: "16"}


@pytest.mark.parametrize(
    "other",
    [
        of_kind("Queue", "scheduling.volcano.sh/v1beta1", spec={"capability": QUANTITIES, "deserved": QUANTITIES}),
        of_kind("ElasticQuota", "scheduling.x-k8s.io/v1alpha1", spec={"min": QUANTITIES, "max": QUANTITIES}),
        of_kind("ResourceQuota", "v1", spec={"hard": {f"requests.{CHIPS}": "16"}}),
        of_kind("LimitRange", "v1", spec={"limits": [{"type": "Container", "max": QUANTITIES, "default": QUANTITIES}]}),
        of_kind("NodePool", "karpenter.sh/v1", spec={"limits": QUANTITIES}),
        of_kind(
            "ClusterQueue",
            "kueue.x-k8s.io/v1beta1",
            spec={"resourceGroups": [{"flavors": [{"resources": [{"name": CHIPS, "nominalQuota": "16"}]}]}]},
        ),
        of_kind("PodTemplate", "v1", template=deployment({"limits": QUANTITIES})["spec"]["template"]),
        of_kind(
            "ClusterTrainingRuntime",
            "trainer.kubeflow.org/v1alpha1",
            spec={"template": deployment({"limits": QUANTITIES})},
        ),
    ],
    ids=lambda other: str(other["kind"]),
)
def test_a_quota_or_a_template_is_no_workload(tmp_path: Path, other: Json) -> None:
    status, answer, _ = npuctl(tmp_path, "plan", other, pod("p", 1))
    assert (status, [placed["name"] for placed in answer["pods"]], answer["unplanned"]) == (0, ["p"], [])


def test_an_unknown_kind_with_devices_is_named(tmp_path: Path) -> None:
    trainer = {"numNodes": 2, "resourcesPerNode": {"limits": {CHIPS: 8}}}
    status, answer, _ = npuctl(tmp_path, "plan", of_kind("Fleet", "example.com/v1", spec={"trainer": trainer}))
    assert status == 2
    (unplanned,) = answer["unplanned"]
    assert unplanned["message"] == "npuctl plan does not expand Fleet of example.com/v1"


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"paused": True}, "it is paused, so its controller creates no pods"),
        ({"suspend": True}, "it is suspended, so its controller creates no pods"),
        (
            {"managedBy": "kueue.x-k8s.io/multikueue"},
            "it is managed by 'kueue.x-k8s.io/multikueue' (managedBy), so its controller creates no pods here",
        ),
    ],
)
def test_a_workload_whose_controller_creates_no_pods_here_is_told(tmp_path: Path, fields: Json, why: str) -> None:
    made = deployment({"limits": {CHIPS: 1}}, **fields)
    if "paused" not in fields:
        made |= {"apiVersion": "batch/v1", "kind": "Job"}
    status, answer, _ = npuctl(tmp_path, "plan", made)
    assert (status, answer["pods"], answer["unplanned"][0]["message"]) == (2, [], why)


def test_a_job_that_its_own_controller_manages_is_planned(tmp_path: Path) -> None:
    made = deployment({"limits": {CHIPS: 1}}, managedBy="kubernetes.io/job-controller")
    status, answer, _ = npuctl(tmp_path, "plan", {**made, "apiVersion": "batch/v1", "kind": "Job"})
    assert (status, len(answer["pods"])) == (0, 1)
