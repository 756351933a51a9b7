"""What the verbs of npuctl say of vNPUs."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from ascend.annotations import REAL
from ascend.chips import RESOURCE
from npuctl.cli import app
from tests.npuctl.manifests import Json, core_node, core_pod, cut_node, node, parts, pod, report

NOW = "2026-01-01T00:00:00Z"


def has(name: str, vnpu: str, *, where: str, real: str = "") -> Json:
    """A pod that has a vNPU."""
    return parts(name, "1", node=where, annotations={f"{RESOURCE}-2c": vnpu, REAL: real or vnpu})


def run(folder: Path, *arguments: str, objects: tuple[Json, ...], output: str = "json") -> tuple[int, Any]:
    path = folder / "objects.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    done = CliRunner().invoke(app, [*arguments, "-f", str(path), "--now", NOW, "-o", output])
    return done.exit_code, json.loads(done.stdout) if output == "json" else done.stdout


def test_plan_names_the_vnpu_and_the_annotations_of_its_binding(tmp_path: Path) -> None:
    objects = (cut_node("n1"), has("old", "Ascend910-2c-102-1", where="n1"), parts("p", "1"), pod("whole", 2))
    status, answer = run(tmp_path, "plan", objects=objects)
    assert status == 0
    placed, whole = answer["pods"]
    assert (placed["node"], placed["chips"], placed["vnpus"]) == ("n1", [], ["Ascend910-2c-103-1"])
    assert placed["annotations"][f"{RESOURCE}-2c"] == "Ascend910-2c-103-1"
    assert RESOURCE not in placed["annotations"]
    assert "predicate-time" in placed["annotations"]
    assert (whole["chips"], whole["vnpus"]) == (["Ascend910-2", "Ascend910-3"], [])
    _, printed = run(tmp_path, "plan", objects=objects, output="table")
    assert "2c-103-1" in printed


def test_explain_says_which_vnpu_a_pod_has_or_why_it_waits(tmp_path: Path) -> None:
    held = [has(f"old-{number}", f"Ascend910-2c-{100 + number}-0", where="n1") for number in range(2)]
    nodes = (cut_node("n1", chips=1), *held)
    _, answer = run(tmp_path, "explain", "old-1", objects=nodes)
    assert (answer["state"], answer["vnpus"], answer["vnpu"]) == ("placed", ["Ascend910-2c-101-0"], "2c")
    _, printed = run(tmp_path, "explain", "old-1", objects=nodes, output="table")
    assert "is on node n1 with vNPU 2c-101-0" in printed
    status, answer = run(tmp_path, "explain", "p", objects=(*nodes, parts("p", "1")))
    assert (status, answer["state"], answer["reason"]) == (3, "waits", "NoFreeVnpu")
    assert {tuple(each["targets"]) for each in answer["remedies"]} == {("default/old-0",), ("default/old-1",)}
    _, printed = run(tmp_path, "explain", "p", objects=(*nodes, parts("p", "1")), output="table")
    assert printed.startswith("pod default/p requests 1 vNPU Ascend910-2c and waits: NoFreeVnpu")
    _, answer = run(tmp_path, "explain", "p", objects=(*nodes, cut_node("n2"), parts("p", "1")))
    assert (answer["state"], answer["candidates"][0]["vnpus"]) == ("fits", ["Ascend910-2c-100-0"])
    _, printed = run(tmp_path, "explain", "p", objects=(*nodes, cut_node("n2"), parts("p", "1")), output="table")
    assert "requests 1 vNPU Ascend910-2c and fits on 1 node now" in printed


def test_of_nodes_without_the_size_one_that_has_vnpus_is_the_example(tmp_path: Path) -> None:
    objects = (node("a-whole"), core_node("b-cores"), cut_node("c-cut"))
    four = parts("four", "1")
    four["spec"]["containers"][0]["resources"] = {"limits": {f"{RESOURCE}-4c": "1"}}
    _, printed = run(tmp_path, "explain", "four", objects=(*objects, four), output="table")
    says = "3 nodes NoSuchVnpu: c-cut, for example: 1 vNPU Ascend910-4c requested, the node has only Ascend910-2c"
    assert says in printed
    _, printed = run(tmp_path, "explain", "ten", objects=(*objects, core_pod("ten", 12)), output="table")
    assert "3 nodes NoSuchVnpu: b-cores, for example: 12 AI cores requested; a pod on this node may request" in printed


def test_explain_finds_that_the_chip_of_a_vnpu_has_to_recover(tmp_path: Path) -> None:
    # The kubelet offers the vNPU again as soon as the chip is healthy.
    cut, whole = cut_node("n1", chips=1, each=1, allocatable=0), report("n1", unhealthy=0b1)
    _, answer = run(tmp_path, "explain", "p", objects=(cut, whole, parts("p", "1")))
    assert [(each["kind"], each["targets"]) for each in answer["remedies"]] == [("repair", ["Ascend910-0"])]
    # The pod with the faulty part keeps it, so the kubelet offers it all the time.
    cut, held = cut_node("n1", chips=1, allocatable=1), has("old", "Ascend910-2c-100-0", where="n1")
    _, answer = run(tmp_path, "explain", "p", objects=(cut, whole, held, parts("p", "1")))
    assert [(each["kind"], each["targets"]) for each in answer["remedies"]] == [("repair", ["Ascend910-0"])]


def test_topo_draws_the_parts_of_cut_chips(tmp_path: Path) -> None:
    objects = (cut_node("n1"), has("old", "Ascend910-2c-102-1", where="n1"), report("n1"))
    _, answer = run(tmp_path, "topo", objects=objects)
    chips = answer["nodes"][0]["chips"]
    assert len(chips) == 8
    assert [len(chip["vnpus"]) for chip in chips] == [2, 2, 0, 0, 0, 0, 0, 0]
    assert chips[1]["vnpus"][0] == {
        "name": "Ascend910-2c-102-1",
        "size": "2c",
        "vdev_id": 102,
        "holders": ["default/old"],
        "unknown": "",
    }
    _, printed = run(tmp_path, "topo", objects=objects, output="table")
    assert "[2c-102 old] [2c-103 ·]" in printed
    assert "6 of 8 chips free, 3 of 4 vNPUs free" in printed


def test_topo_counts_no_free_vnpus_of_a_size_that_an_unreadable_pod_closes(tmp_path: Path) -> None:
    objects = (cut_node("n1"), parts("foreign", "1", node="n1"), report("n1"))
    _, printed = run(tmp_path, "topo", objects=objects, output="table")
    says = "pod default/foreign is bound with 1 vNPU Ascend910-2c, but no annotation names it"
    assert f"not used: the vNPUs Ascend910-2c: {says} (UnreadablePod)" in " ".join(printed.replace("│", "").split())
    assert "[2c-102 ?]" in printed
    assert "6 of 8 chips free, 0 of 4 vNPUs free" in printed
    _, answer = run(tmp_path, "doctor", objects=objects)
    (found,) = (each for each in answer["findings"] if each["check"] == "pods" and each["severity"] == "problem")
    assert (
        "list the resource in managedResources (deploy/charts/ascend-affinity/kube-scheduler.yaml)" in found["advice"]
    )


def test_doctor_finds_vnpus_held_twice_and_swapped_and_not_offered(tmp_path: Path) -> None:
    objects = (
        cut_node("n1", allocatable=3),
        has("a", "Ascend910-2c-100-0", where="n1"),
        has("b", "Ascend910-2c-101-0", where="n1", real="Ascend910-2c-100-0"),
        report("n1"),
    )
    _, answer = run(tmp_path, "doctor", objects=objects)
    sentences = " ".join(json.dumps(answer).split())
    assert "Ascend910-2c-100-0 of node n1: held by default/a and default/b" in sentences
    assert "pod default/b on node n1 was given Ascend910-2c-100-0 instead of Ascend910-2c-101-0" in sentences
    assert "the kubelet of node n1 offers 3 vNPUs Ascend910-2c, but 4 are healthy" in sentences


def test_doctor_finds_one_device_under_two_names(tmp_path: Path) -> None:
    objects = (
        cut_node("n1"),
        has("a", "Ascend910-2c-100-0", where="n1"),
        has("b", "Ascend910-2c-100-1", where="n1"),
        has("part", "Ascend910-2c-103-1", where="n1"),
        pod("whole", 1, node="n1", annotations={RESOURCE: "Ascend910-1", REAL: "Ascend910-1"}),
        report("n1"),
    )
    _, answer = run(tmp_path, "doctor", objects=objects)
    sentences = " ".join(json.dumps(answer).split())
    assert "Ascend910-2c-100-0,Ascend910-2c-100-1 of node n1: held by default/a and default/b" in sentences
    assert "Ascend910-2c-103-1,Ascend910-1 of node n1: held by default/part and default/whole" in sentences
    _, printed = run(tmp_path, "topo", objects=objects, output="table")
    assert "Ascend910-1 is held by default/whole, and Ascend910-2c-103-1 of it by default/part" in printed
    assert "Ascend910-2c-100-0 is held by default/a and default/b" in printed
