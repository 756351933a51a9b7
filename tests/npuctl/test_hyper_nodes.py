"""Plans follow Volcano's HyperNodes, and say in which one the pods of a job are."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, member, node, pod_group


def hyper_node(name: str, tier: int, *members: str, kind: str = "Node") -> Json:
    named = [{"type": kind, "selector": {"exactMatch": {"name": each}}} for each in members]
    spec = {"tier": tier, "members": named}
    return {"apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": name}, "spec": spec}


def plan(folder: Path, *objects: Json) -> dict[str, Any]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    answer: dict[str, Any] = json.loads(CliRunner().invoke(app, ["plan", "-f", str(path), "-o", "json"]).stdout)
    return answer


@pytest.mark.parametrize(("tier", "pending"), [(1, 3), (2, 0)])
def test_a_plan_is_within_one_hyper_node_of_an_allowed_tier(tmp_path: Path, tier: int, pending: int) -> None:
    group = pod_group("train", 3)
    group["spec"]["networkTopology"] = {"mode": "hard", "highestTierAllowed": tier}
    answer = plan(
        tmp_path,
        *(node(f"n{number}") for number in range(5)),
        hyper_node("rack-a", 1, "n0", "n1"),
        hyper_node("rack-b", 1, "n3", "n4"),
        hyper_node("spine", 2, "rack-a", "rack-b", kind="HyperNode"),
        group,
        *(member(f"train-{number}", "train") for number in range(3)),
    )
    assert len(answer["pending"]) == pending
    if pending:
        assert "the most that fit in one: 2, in rack-b of tier 1" in answer["pending"][0]["message"]
    else:
        assert {each["node"] for each in answer["pods"]} < {"n0", "n1", "n3", "n4"}
        assert answer["jobs"][0]["switches"] == ["3 pods in HyperNode spine of tier 2"]


def by_hyper_node(folder: Path, *objects: Json) -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    done = CliRunner().invoke(app, ["topo", "--by", "hypernode", "-f", str(path)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_hyper_nodes_are_listed_with_what_is_free_and_the_jobs_within(tmp_path: Path) -> None:
    lines = by_hyper_node(
        tmp_path,
        *(node(f"n{number}") for number in range(5)),
        hyper_node("rack-a", 1, "n0", "n1"),
        hyper_node("rack-b", 1, "n2", "n3"),
        hyper_node("spine", 2, "rack-a", "rack-b", "rack-z", kind="HyperNode"),
        *(member(f"wide-{number}", "wide", node=f"n{number}", chips=range(4)) for number in (1, 2)),
        member("narrow-0", "narrow", node="n3", chips=range(8)),
    ).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["TIER", "HYPERNODE", "NODES", "FREE", "CHIPS", "JOBS"],
        ["1", "rack-a", "2", "1", "12", "-"],
        ["1", "rack-b", "2", "0", "4", "default/narrow"],
        ["2", "spine", "4", "1", "16", "default/wide"],
    ]
    assert "HyperNode spine: its member rack-z does not exist" in lines
    assert "1 node with chips in no HyperNode: n4" in lines


def test_without_hyper_nodes_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n0"))))
    done = CliRunner().invoke(app, ["topo", "--by", "hypernode", "-f", str(path)])
    assert (done.exit_code, done.stderr.strip()) == (2, "npuctl: there are no HyperNodes")
