"""``npuctl usage``: who holds and who waits for how many chips."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import as_list, node, pod, report

NOW = ("--now", "2026-01-01T00:00:00Z")


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    path = tmp_path / "objects.json"
    objects = [
        node("n1"),
        node("n2", kind="module-910b-8"),
        report("n1", unhealthy=0b1),
        pod("train-0", 4, node="n1", chips=range(4), namespace="a", ownerReferences=[owner]),
        pod("train-1", 4, node="n1", chips=range(4, 8), namespace="a", phase="Pending", ownerReferences=[owner]),
        pod("serve", 1, node="n2", chips=(0,), namespace="b"),
        pod("done", 1, node="n2", chips=(1,), namespace="b", phase="Succeeded"),
        pod("waits", 8, namespace="c"),
        pod("plain", None, namespace="d"),
    ]
    path.write_text(json.dumps(as_list(*objects)))
    return str(path)


def usage(cluster: str, *options: str) -> Any:
    done = CliRunner().invoke(app, ["usage", "-f", cluster, *NOW, "-o", "json", *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def use(name: str, **numbers: int) -> dict[str, Any]:
    fields = ("pods", "chips", "not_running", "unhealthy", "waiting_pods", "waiting_chips")
    return {"name": name, **dict.fromkeys(fields, 0), **numbers}


def test_chips_are_counted_by_namespace(cluster: str) -> None:
    answer = usage(cluster)
    assert (answer["chips"], answer["used"]) == (16, 9)
    assert answer["users"] == [
        use("a", pods=2, chips=8, not_running=4, unhealthy=1),
        use("b", pods=1, chips=1),
        use("c", waiting_pods=1, waiting_chips=8),
    ]
    assert usage(cluster, "-n", "b")["users"] == [use("b", pods=1, chips=1)]


def test_chips_are_counted_by_job_and_by_product(cluster: str) -> None:
    assert [each["name"] for each in usage(cluster, "--by", "job")["users"]] == ["a/train", "b/serve", "c/waits"]
    assert usage(cluster, "--by", "product")["users"] == [
        use("910A", pods=2, chips=8, not_running=4, unhealthy=1),
        use("910B-8", pods=1, chips=1),
    ]


def test_people_see_shares(cluster: str) -> None:
    done = CliRunner().invoke(app, ["usage", "-f", cluster, *NOW])
    lines = done.stdout.splitlines()
    assert lines[0].split()[:4] == ["NAMESPACE", "PODS", "CHIPS", "SHARE"]
    assert lines[1].split() == ["a", "2", "8", "50.0", "%", "4", "1", "0", "0"]
    assert "9 of 16 chips are held" in lines
