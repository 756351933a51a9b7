"""``npuctl topo --by switch``: leaf switches, their free servers, and the jobs that span them."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ascend.kube.objects import ConfigMap
from npuctl.cli import app
from tests.allocator.switches.world import table
from tests.npuctl.manifests import Json, as_list, node, pod


def server(switch: int, slot: int) -> Json:
    made = node(f"t{switch}-{slot}", kind="module-910b-8")
    made["status"]["addresses"] = [{"type": "InternalIP", "address": f"10.0.{switch}.{slot}"}]
    return made


def of_job(rank: int, name: str, use: str, healthy: str = "0") -> Json:
    made = pod(f"train-{rank}", 8, node=name, chips=range(8))
    made["metadata"]["labels"] = {"tor-affinity": "normal-schema"}
    made["metadata"].setdefault("annotations", {}).update({
        "scheduling.k8s.io/group-name": "train", "isSharedTor": use, "isHealthy": healthy,
    })  # fmt: skip
    return made


def config_map(switches: ConfigMap) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": switches.name, "namespace": switches.metadata.namespace},
        "data": switches.data,
    }


@pytest.fixture
def cluster(tmp_path: Path) -> str:
    nodes = [server(switch, slot) for switch in range(2) for slot in range(3)]
    pods = [of_job(0, "t0-0", "2"), of_job(1, "t0-1", "2"), of_job(2, "t1-2", "1", "1")]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(as_list(*nodes, config_map(table([0, 1, 2])), *pods)))
    return str(path)


def topo(*flags: str) -> str:
    done = CliRunner().invoke(app, ["topo", "--by", "switch", "--now", "2026-01-01T00:00:00Z", *flags])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_switches_are_listed_with_their_free_servers_and_spanning_jobs(cluster: str) -> None:
    lines = [line.split() for line in topo("-f", cluster).splitlines()]
    assert lines[:4] == [
        ["SWITCH", "ADDRESS", "NODES", "FREE", "USE", "JOBS"],
        ["0", "192.168.0.0", "3", "1", "exclusive", "default/train"],
        ["1", "192.168.0.1", "3", "2", "shared,", "unhealthy", "default/train"],
        ["2", "192.168.0.2", "0", "0", "free", "-"],
    ]


def test_switches_are_values_in_json(cluster: str) -> None:
    first = json.loads(topo("-f", cluster, "-o", "json"))["switches"][0]
    assert first == {
        "switch": 0,
        "address": "192.168.0.0",
        "nodes": ["t0-0", "t0-1", "t0-2"],
        "free": ["t0-2"],
        "use": "exclusive",
        "healthy": True,
        "jobs": ["default/train"],
    }


def test_servers_and_nodes_that_match_nothing_are_named(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(as_list(server(0, 0), server(7, 7), config_map(table([0], width=3)))))
    said = topo("-f", str(path), "--set", "nslb_version=2.0")
    assert "2 servers of the table: no node's InternalIP: 10.0.0.1, 10.0.0.2" in said
    assert "1 node with chips below no switch: t7-7" in said
    assert "; by version 2.0" in said
    found = json.loads(topo("-f", str(path), "-o", "json"))
    assert (found["unknown"], found["outside"], found["rule"]) == (["10.0.0.1", "10.0.0.2"], ["t7-7"], "1.0")


def test_what_is_left_out_of_the_table_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(as_list(server(0, 0), config_map(table([0, 0])))))
    where = "ConfigMap kube-system/basic-tor-node-cm: tor_info: server_list[1]"
    problem = f"{where}: tor_id 0 occurs twice; its servers are left out"
    assert problem in topo("-f", str(path)).splitlines()
    assert json.loads(topo("-f", str(path), "-o", "json"))["problems"] == [problem]


def test_no_problem_is_named_of_a_table_without_any(cluster: str) -> None:
    assert "basic-tor-node-cm" not in topo("-f", cluster)
    assert json.loads(topo("-f", cluster, "-o", "json"))["problems"] == []


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--unhealthy"], "--by switch shows all of the cluster"),
        (["t0-0"], "--by switch shows all of the cluster"),
        (["--watch"], "--watch"),
    ],
)
def test_what_is_for_nodes_only_is_refused(cluster: str, flags: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["topo", "--by", "switch", "-f", cluster, *flags])
    assert done.exit_code == 2
    assert sentence in done.stderr


def test_without_a_table_it_is_said_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(as_list(server(0, 0))))
    done = CliRunner().invoke(app, ["topo", "--by", "switch", "-f", str(path)])
    assert done.exit_code == 2
    assert "the leaf switches are unknown: ConfigMap kube-system/basic-tor-node-cm does not exist" in done.stderr
