"""What the verbs of npuctl say of AI cores."""

from pathlib import Path

from ascend.templates import RESOURCE_CORES
from npuctl.explain.remedies import MOST_PODS
from tests.npuctl.manifests import core_node, core_pod, node, report
from tests.npuctl.test_vnpus import run


def test_plan_names_the_part_and_the_annotations_of_its_binding(tmp_path: Path) -> None:
    objects = (
        core_node("n1"),
        core_pod("old", 10, "1-vir10_3c_32g", node="n1"),
        core_pod("p", 5),
        core_pod("whole", 40),
    )
    status, answer = run(tmp_path, "plan", objects=objects)
    assert status == 0
    part, whole = answer["pods"]
    assert (part["node"], part["chips"], part["vnpus"]) == ("n1", [], ["1-vir05_1c_16g"])
    assert part["annotations"][RESOURCE_CORES] == "1-vir05_1c_16g"
    assert (whole["chips"], whole["vnpus"]) == (["Ascend910-0", "Ascend910-2"], [])
    assert whole["annotations"][RESOURCE_CORES] == "0,2"
    _, printed = run(tmp_path, "plan", objects=objects, output="table")
    assert "1-vir05_1c_16g" in printed


def test_explain_says_what_a_pod_has_or_why_it_waits(tmp_path: Path) -> None:
    held = [core_pod(f"old-{number}", 10, f"{number // 2}-vir10_3c_32g", node="n1") for number in range(16)]
    objects = (core_node("n1"), *held)
    _, answer = run(tmp_path, "explain", "old-1", objects=objects)
    assert (answer["state"], answer["vnpus"], answer["cores"]) == ("placed", ["0-vir10_3c_32g"], 10)
    _, printed = run(tmp_path, "explain", "old-1", objects=objects, output="table")
    assert "is on node n1 with vNPU 0-vir10_3c_32g" in printed
    status, answer = run(tmp_path, "explain", "p", objects=(*objects, core_pod("p", 5)))
    assert (status, answer["state"], answer["reason"]) == (3, "waits", "NoFreeVnpu")
    assert len(answer["remedies"]) == 16
    _, answer = run(tmp_path, "explain", "p", objects=(*objects, core_pod("p", 20)))
    assert answer["remedies"][0]["targets"] == ["default/old-0", "default/old-1"]
    assert len(answer["remedies"][0]["targets"]) <= MOST_PODS
    _, printed = run(tmp_path, "explain", "p", objects=(*objects, core_node("n2"), core_pod("p", 5)), output="table")
    assert "requests 5 AI cores and fits on 1 node now" in printed
    _, printed = run(tmp_path, "explain", "p", objects=(*objects, core_pod("p", 5)), output="table")
    assert "requests 5 AI cores and waits" in printed


def test_explain_finds_that_a_chip_has_to_recover(tmp_path: Path) -> None:
    held = [core_pod(f"old-{chip}", 20, str(chip), node="n1", priority=9) for chip in range(7)]
    objects = (core_node("n1", 140), *held, report("n1", unhealthy=1 << 7), core_pod("p", 5))
    _, answer = run(tmp_path, "explain", "p", objects=objects)
    assert any(each["targets"] == ["Ascend910-7"] for each in answer["remedies"])


def test_explain_finds_that_all_chips_have_to_recover_or_to_be_offered(tmp_path: Path) -> None:
    node_of = core_node("n1", 0)
    _, answer = run(tmp_path, "explain", "p", objects=(node_of, report("n1", unhealthy=0xFF), core_pod("p", 5)))
    assert [each["targets"] for each in answer["remedies"]] == [[f"Ascend910-{chip}"] for chip in range(8)]
    _, answer = run(tmp_path, "explain", "p", objects=(node_of, report("n1"), core_pod("p", 5)))
    assert [each["kind"] for each in answer["remedies"]] == ["offer"]


def test_topo_draws_the_parts_and_the_free_cores(tmp_path: Path) -> None:
    objects = (
        core_node("n1"),
        core_pod("a", 5, "1-vir05_1c_16g", node="n1"),
        core_pod("b", 10, "1-vir10_3c_32g", node="n1"),
        core_pod("c", 40, "2,3", node="n1"),
        report("n1"),
    )
    _, answer = run(tmp_path, "topo", objects=objects)
    chips = answer["nodes"][0]["chips"]
    assert [chip["free_cores"] for chip in chips] == [20, 5, 0, 0, 20, 20, 20, 20]
    assert chips[1]["slices"] == [
        {"name": "1-vir05_1c_16g", "template": "vir05_1c_16g", "holders": ["default/a"]},
        {"name": "1-vir10_3c_32g", "template": "vir10_3c_32g", "holders": ["default/b"]},
    ]
    _, printed = run(tmp_path, "topo", objects=objects, output="table")
    assert "[vir05_1c_16g a] [vir10_3c_32g b] [5 cores free]" in printed
    assert "5 of 8 chips free, 105 AI cores free" in printed
    _, printed = run(tmp_path, "topo", objects=(node("n1"), report("n1")), output="table")
    assert "AI cores" not in printed


def test_topo_counts_nothing_free_where_an_unreadable_pod_closes_the_cores(tmp_path: Path) -> None:
    objects = (core_node("n1"), core_pod("foreign", 5, node="n1"), core_node("n2"), report("n1"))
    _, answer = run(tmp_path, "topo", objects=objects)
    assert [each["reason"] for each in answer["nodes"]] == ["UnreadablePod", None]
    _, printed = run(tmp_path, "topo", objects=objects, output="table")
    assert "not used: the free AI cores are unknown: pod default/foreign is bound with 5 AI cores" in printed
    assert "2 nodes, 8 of 16 chips free, 160 AI cores free, 1 node not used" in printed


def test_doctor_finds_chips_of_which_pods_have_more_than_there_is(tmp_path: Path) -> None:
    objects = (
        core_node("n1", 155),
        core_pod("a", 10, "0-vir10_3c_32g", node="n1", real="Ascend910-10c.3cpu.32g-100-0_1"),
        core_pod("b", 10, "0-vir10_3c_32g", node="n1", real="Ascend910-10c.3cpu.32g-101-0_2"),
        core_pod("c", 5, "0-vir05_1c_16g", node="n1", real="Ascend910-5c.1cpu.16g-102-1_1"),
        core_pod("d", 20, "1", node="n1", real="Ascend910-1"),
        core_node("n2", kind="Ascend910-32"),
        report("n1"),
    )
    _, answer = run(tmp_path, "doctor", objects=objects)
    sentences = " ".join(str(answer).split())
    assert "Ascend910-0 of node n1 has 20 AI cores and 6 AI CPUs, but 25 and 7 are held" in sentences
    assert "Ascend910-1 of node n1: held by default/c and default/d" in sentences
    assert "pod default/c on node n1 was given 1-vir05_1c_16g instead of 0-vir05_1c_16g" in sentences
    assert "the kubelet of node n1 offers 155 AI cores, but 160 are healthy" in sentences
