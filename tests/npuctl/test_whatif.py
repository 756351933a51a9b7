"""``npuctl whatif``: what would run, wait and be free after changes, which are not made."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from ascend.annotations import PLACEMENT_GATE
from npuctl.cli import app
from tests.npuctl.manifests import Json, as_list, member, node, pod, pod_group, report, super_pod_node

NOW = ("--now", "2026-01-01T00:00:10Z")
KIND = "module-910b-8"


def owned(manifest: Json, kind: str = "ReplicaSet", name: str = "serve") -> Json:
    version = "batch/v1" if kind == "Job" else "apps/v1"
    owner = {"apiVersion": version, "kind": kind, "name": name, "uid": name, "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def invoke(folder: Path, objects: list[Json], *options: str, verb: str = "whatif") -> Any:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    return CliRunner().invoke(app, [verb, "-f", str(path), *NOW, *options])


def answer(folder: Path, objects: list[Json], *options: str, verb: str = "whatif") -> Json:
    done = invoke(folder, objects, *options, "-o", "json", verb=verb)
    assert done.exit_code in {0, 3}, done.output
    found: Json = json.loads(done.stdout)
    return found


def jobs(found: Json) -> dict[str, tuple[tuple[int, int], tuple[int, int]]]:
    """By job, its pods that run and that wait before and after."""
    return {
        each["job"].removeprefix("default/"): (
            (each["before"]["running"], each["before"]["waiting"]),
            (each["after"]["running"], each["after"]["waiting"]),
        )
        for each in found["jobs"]
    }


def free(state: Json) -> tuple[int, int, int]:
    (product,) = state["free"]
    return product["chips"], product["rings"], product["servers"]


def test_the_pods_of_a_drained_node_start_elsewhere_or_wait(tmp_path: Path) -> None:
    servers = [node("n1", kind=KIND), node("n2", kind=KIND)]
    runs = [
        owned(pod("serve-a", 4, node="n1", chips=range(4)), name="a"),
        owned(pod("serve-b", 4, node="n1", chips=range(4, 8)), name="b"),
        pod("other", 4, node="n2", chips=range(4)),
    ]
    found = answer(tmp_path, [*servers, *runs], "--drain", "n1")
    assert found["changes"] == ["node n1 is drained (2 pods end)"]
    # Of two successors one finds room.
    assert sorted(jobs(found).values()) == [((1, 0), (0, 1)), ((1, 0), (1, 0))]
    assert [each["ended"] for each in found["jobs"]] == [1, 1]
    lost = found["jobs"][0]
    assert (found["before"]["running"], found["after"]["running"], found["after"]["waiting"]) == (3, 2, 1)
    (entry,) = [each for each in found["after"]["queue"] if each["job"] == lost["job"]]
    assert entry["reason"] == "NoNodeFits"
    assert (free(found["before"]), free(found["after"])) == ((4, 0, 0), (0, 0, 0))


def test_the_allocators_own_gate_changes_nothing_and_those_of_others_are_said_not_to_be_known(tmp_path: Path) -> None:
    def drained(*gates: str) -> Json:
        runs = owned(pod("serve", 8, node="n1", chips=range(8)))
        waits = owned(pod("next", 8, creationTimestamp="2025-12-31T00:00:00Z"), name="next")
        waits["spec"]["schedulingGates"] = [{"name": each} for each in gates]
        return answer(tmp_path, [node("n1"), node("n2"), runs, waits], "--drain", "n1")

    assert drained(PLACEMENT_GATE) == drained()
    assert drained("kueue.x-k8s.io/admission")["after"] != drained()["after"]
    runs = owned(pod("serve", 8, node="n1", chips=range(8)))
    assert drained()["successors"] == 1
    printed = invoke(tmp_path, [node("n1"), node("n2"), runs], "--drain", "n1").stdout
    assert "1 pod that is created anew counts as without scheduling gates of others" in " ".join(printed.split())
    assert "gates" not in invoke(tmp_path, [node("n1"), node("n2"), runs], "--drain", "n2").stdout


def test_pods_without_a_controller_and_of_daemon_sets_have_no_successor(tmp_path: Path) -> None:
    runs = [
        pod("bare", 1, node="n1", chips=(0,)),
        owned(pod("daemon", 1, node="n1", chips=(1,)), "DaemonSet", "agent"),
    ]
    drained = answer(tmp_path, [node("n1"), node("n2"), *runs], "--drain", "n1")
    assert jobs(drained) == {"bare": ((1, 0), (0, 0))}
    lost = answer(tmp_path, [node("n1"), node("n2"), *runs], "--lose", "n1")
    assert jobs(lost) == {"daemon": ((1, 0), (0, 0)), "bare": ((1, 0), (0, 0))}


@pytest.mark.parametrize("known", [[report("n1")], []], ids=["with a report", "without one"])
def test_chips_that_are_lost_end_only_the_pods_on_them(known: list[Json], tmp_path: Path) -> None:
    runs = [owned(pod(f"serve-{at}", 4, node="n1", chips=range(4 * at, 4 * at + 4)), name=f"s{at}") for at in range(2)]
    found = answer(tmp_path, [node("n1"), *known, *runs], "--lose", "n1:1-2")
    assert found["changes"] == ["chips 1-2 of node n1 are lost (1 pod ends)"]
    assert jobs(found) == {"s0": ((1, 0), (0, 1))}
    assert (free(found["before"]), free(found["after"])) == ((0, 0, 0), (2, 0, 0))
    elsewhere = answer(tmp_path, [node("n1"), node("n2"), *known, *runs], "--lose", "n1:1-2")
    assert jobs(elsewhere) == {"s0": ((1, 0), (1, 0))}
    assert [each["node"] for entry in elsewhere["after"]["queue"] for each in entry["pods"]] == ["n2"]


def test_an_unhealthy_chip_that_is_lost_changes_nothing(tmp_path: Path) -> None:
    found = answer(tmp_path, [node("n1", chips=7), report("n1", unhealthy=1)], "--lose", "n1:0")
    assert found["before"] == found["after"]
    assert found["jobs"] == []


def test_more_nodes_start_a_gang_that_waits(tmp_path: Path) -> None:
    gang = [pod_group("large", 3), *(member(f"large-{at}", "large") for at in range(3))]
    sick = [node("n1", chips=7, cordoned=True), report("n1", unhealthy=1), pod("runs", 1, node="n1", chips=(1,))]
    found = answer(tmp_path, [*sick, *gang], "--add", "n1=4")
    assert jobs(found) == {"large": ((0, 3), (3, 0))}
    assert (found["before"]["free"], free(found["after"])) == ([], (8, 2, 1))
    (entry,) = found["after"]["queue"]
    assert {each["node"] for each in entry["pods"]} <= {f"n1-new-{at}" for at in range(1, 5)}
    assert answer(tmp_path, [*sick, *gang], "--add", "n1")["after"]["free"][0]["servers"] == 1


def test_a_chip_of_a_new_node_can_be_lost(tmp_path: Path) -> None:
    found = answer(tmp_path, [node("n1")], "--add", "n1", "--lose", "n1-new-1:0")
    assert found["changes"][-1] == "chip 0 of node n1-new-1 is lost"
    assert (free(found["before"])[0], free(found["after"])[0]) == (8, 15)


def test_new_servers_are_in_the_super_pod_of_those_they_are_like(tmp_path: Path) -> None:
    found = answer(tmp_path, [super_pod_node(3, 0)], "--add", "3-0=2")
    assert found["after"]["free"] == [{"product": "A3-16", "nodes": 3, "chips": 48, "rings": 24, "servers": 3}]


def test_the_end_of_a_job_is_as_if_it_was_not_there(tmp_path: Path) -> None:
    runs = [owned(pod(f"train-{at}", 8, node=f"n{at}", chips=range(8)), "Job", "train") for at in range(2)]
    waits = [pod("waits", 8), pod("small", 1)]
    servers = [node("n0"), node("n1")]
    found = answer(tmp_path, [*servers, *runs, *waits], "--end", "default/train")
    assert found["changes"] == ["job default/train ends (2 pods)"]
    assert jobs(found) == {"train": ((2, 0), (0, 0)), "small": ((0, 1), (1, 0)), "waits": ((0, 1), (1, 0))}
    assert found["after"]["queue"] == answer(tmp_path, [*servers, *waits], verb="queue")["entries"]


def test_a_job_of_higher_priority_comes_first(tmp_path: Path) -> None:
    waits = [pod("old", 8, creationTimestamp="2026-01-01T00:00:00Z"), pod("young", 8)]
    found = answer(tmp_path, [node("n1"), *waits], "--priority", "young=10")
    assert jobs(found) == {"old": ((1, 0), (0, 1)), "young": ((0, 1), (1, 0))}
    lower = answer(tmp_path, [node("n1"), *waits], "--priority", "default/young=-10")
    assert (jobs(lower), lower["before"]["queue"][0]) == ({}, lower["after"]["queue"][0])


def test_changes_are_combined(tmp_path: Path) -> None:
    runs = owned(pod("serve", 8, node="n1", chips=range(8)))
    options = ("--drain", "n1", "--add", "n1", "--end", "waits")
    found = answer(tmp_path, [node("n1"), runs, pod("waits", 8)], *options)
    assert found["changes"] == [
        "job default/waits ends (1 pod)",
        "1 node like n1 is added",
        "node n1 is drained (1 pod ends)",
    ]
    assert jobs(found) == {"serve": ((1, 0), (1, 0)), "waits": ((0, 1), (0, 0))}
    (entry,) = found["after"]["queue"]
    assert entry["pods"][0]["node"] == "n1-new-1"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--drain", "n9"), "--drain: there is no node 'n9'"),
        (("--lose", "n9:0"), "--lose: there is no node 'n9'"),
        (("--lose", "n1:8"), "--lose: node n1 has no Ascend910-8; it has 0-7"),
        (("--lose", "n1:x"), "--lose: node n1: 'x' is no chip; write chips as in 0-3,5 or Ascend910-2"),
        (("--lose", "n1:3-1"), "--lose: node n1: '3-1' is no chip; write chips as in 0-3,5 or Ascend910-2"),
        (("--add", "n9=2"), "--add: there is no node 'n9'"),
        (("--add", "n1=0"), "--add: 'n1=0' is not NODE=NUMBER with a number from 1 to 10000"),
        (("--add", "n1=99999999999"), "--add: 'n1=99999999999' is not NODE=NUMBER with a number from 1 to 10000"),
        (("--end", "gone"), "--end: no pod with chips is of a job 'gone'; npuctl usage --by job lists jobs"),
        (("--end", "twin"), "--end: name the namespace of the job: a/twin, b/twin"),
        (("--priority", "twin"), "--priority: 'twin' is not JOB=NUMBER, as in train=1000"),
        (("--priority", "a/twin=9999999999"), "--priority: 'a/twin=9999999999' is not JOB=NUMBER, as in train=1000"),
    ],
)
def test_a_change_that_can_not_be_made_is_refused(options: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    twins = [pod("twin", 1, namespace=space) for space in ("a", "b")]
    done = invoke(tmp_path, [node("n1"), *twins], *options)
    assert (done.exit_code, done.stderr) == (2, f"npuctl: {sentence}\n")


def test_the_table_says_what_differs(tmp_path: Path) -> None:
    runs = owned(pod("serve", 8, node="n1", chips=range(8)))
    waits = pod("waits", 8, creationTimestamp="2026-01-01T00:00:00Z")
    done = invoke(tmp_path, [node("n1"), node("n2"), runs, waits], "--drain", "n1")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "node n1 is drained (1 pod ends)"
    assert "910A: nodes that can be used 2 1 -1" in lines
    assert "default/serve 1 1 → 0 0 → 1 - → 2 behind default/waits" in lines
    assert any(line.startswith("NoNodeFits: 8 chips fit on none of 2 nodes") for line in lines)
    nothing = invoke(tmp_path, [node("n1")]).stdout
    assert "every job runs and waits as before" in nothing


def test_the_picture_is_an_svg_with_both_states(tmp_path: Path) -> None:
    runs = owned(pod("serve", 8, node="n1", chips=range(8)), name="<&>")
    done = invoke(tmp_path, [node("n1"), node("n2"), runs], "--drain", "n1", "-o", "svg")
    assert done.exit_code == 0, done.output
    root = ET.fromstring(done.stdout)
    space = "{http://www.w3.org/2000/svg}"
    said = [each.text for each in root.iter(f"{space}text")]
    assert {"node n1 is drained (1 pod ends)", "now", "then", "n1", "n2"} <= set(said)
    squares = [each.get("d", "").count("z") for each in root.iter(f"{space}path")]
    assert sum(squares) == 2 * 2 * 8
    assert {each.text for each in root.iter(f"{space}title")} >= {"n1, default/<&>"}


def test_the_picture_is_in_utf_8_whatever_the_locale_is(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), node("n2"))))
    words = ["whatif", "-f", str(path), *NOW, "--drain", "n1", "-o", "svg"]
    done = CliRunner(charset="ascii").invoke(app, words)
    assert (done.exit_code, "→" in done.stdout_bytes.decode()) == (0, True)


def test_the_picture_of_many_nodes_has_those_that_change(tmp_path: Path) -> None:
    servers = [node(f"n{at}", kind=KIND) for at in range(700)]
    done = invoke(tmp_path, servers, "--drain", "n1", "--lose", "n2:0", "-o", "svg")
    assert "2 nodes that change; 698 nodes more not drawn" in done.stdout
    assert len(done.stdout) < 10_000
