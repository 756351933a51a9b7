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
