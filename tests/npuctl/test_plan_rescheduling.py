"""``npuctl plan --set reschedule=on``: which pods would be deleted after a fault, and where their successors go."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allocator.settings import Settings
from ascend.annotations import BLOCK, BLOCK_SUPER_POD, MIN_AVAILABLE, RANK
from ascend.deviceinfo import DeviceReport, encode_report
from npuctl.cli import app
from npuctl.plan.placement import Planning
from npuctl.plan.rescheduling import reschedule
from npuctl.reading.objects import ClusterObjects
from tests.allocator.builders import node as allocator_node
from tests.allocator.builders import report as allocator_report
from tests.allocator.rescheduling.scene import job as running_job
from tests.allocator.rescheduling.scene import scene
from tests.npuctl.manifests import Json, as_list, node, pod, report, super_pod_node

SETTINGS = Settings(reschedule="on")
NOW = "2026-01-01T00:00:00Z"
ALL: Json = {"fault-scheduling": "force"}
WIDER: Json = {**ALL, "pod-rescheduling": "on"}


def plan(folder: Path, *objects: Json, mode: str = "on", status: int = 0) -> tuple[dict[str, Any], str]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    flags = ["--now", NOW, "--set", f"reschedule={mode}", "--set", "reserve-nodes=0"]
    done = CliRunner().invoke(app, ["plan", "-f", str(path), *flags, "-o", "json"])
    assert done.exit_code == status, done.stderr
    table = CliRunner().invoke(app, ["plan", "-f", str(path), *flags], terminal_width=200)
    assert table.exit_code == status
    return json.loads(done.stdout), " ".join((done.stderr + table.stdout).split())


def servers(*sizes: int) -> list[Json]:
    return [super_pod_node(number, index) for number, size in enumerate(sizes) for index in range(size)]


def broken(name: str, chips: int = 16) -> Json:
    """The report of a server whose chip 0 is unhealthy."""
    made = report(name)
    everything = (1 << chips) - 1
    health = DeviceReport(free=everything & ~1, unhealthy=1, network_unhealthy=0, update_time_s=1_767_225_600)
    made["data"] = encode_report(health)
    return made


def owned(made: Json, kind: str = "StatefulSet", name: str = "sp") -> Json:
    owner = {"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}
    made["metadata"]["ownerReferences"] = [owner]
    return made


def job(*nodes: str, labels: Json, controller: bool = True) -> list[Json]:
    """The running pods of a job with blocks of two servers."""
    made = [
        pod(
            f"sp-{rank}", 16, node=name, chips=range(16), uid=f"uid-sp-{rank}",
            labels=labels | {"apps.kubernetes.io/pod-index": str(rank)},
            annotations={
                MIN_AVAILABLE: str(len(nodes)), "sp-block": "32", RANK: str(rank), BLOCK: str(rank // 2),
                BLOCK_SUPER_POD: name[0],
            },
        )
        for rank, name in enumerate(nodes)
    ]  # fmt: skip
    return [owned(each) for each in made] if controller else made


def stateful_set(replicas: int) -> Json:
    metadata = {"name": "sp", "namespace": "default", "uid": "uid-sp"}
    spec = {"replicas": replicas, "podManagementPolicy": "Parallel"}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize(
    ("labels", "deleted"), [(WIDER, ["sp-2"]), (ALL, ["sp-0", "sp-1", "sp-2", "sp-3"])], ids=["pod", "job"]
)
def test_a_damaged_block_is_patched_in_its_super_pod_and_the_other_is_kept(
    tmp_path: Path, labels: Json, deleted: list[str]
) -> None:
    pods = job("0-0", "0-1", "1-0", "1-1", labels=labels)
    answer, told = plan(tmp_path, *servers(3, 3), stateful_set(4), broken("1-0"), *pods)
    (found,) = answer["rescheduled"]
    assert (found["job"], found["delete"]) == ("default/sp", deleted)
    assert found["blocks"] == {
        "0": {"verdict": "kept", "nodes": ["0-0", "0-1"]},
        "1": {"verdict": "patched", "nodes": ["1-2", "1-1"]},
    }
    assert "node 1-0 reports a fault of its chips: Ascend910-0" in found["why"]
    assert {each["name"]: each["node"] for each in answer["pods"]}["sp-2"] == "1-2"
    assert [each["name"] for each in answer["pods"]] == deleted
    assert "job default/sp is rescheduled: node 1-0 reports a fault of its chips: Ascend910-0" in told
    assert "job default/sp: block 1 is patched: 1-2, 1-1" in told
    assert "not SuperPod" not in told  # the block is not placed anew


def test_only_the_pod_that_a_hot_switch_has_switched_away_from_goes(tmp_path: Path) -> None:
    """Its successor waits, as long as its backup runs: nothing more goes for that."""
    pods = job("0-0", "0-1", "1-0", "1-1", labels=WIDER | {"subHealthyStrategy": "hotSwitch"})
    pods[2]["metadata"]["annotations"] |= {"needVolcanoOpe": "delete", "backupNewPodName": "sp-2-hot"}
    sub_healthy = report("1-0")
    healthy = DeviceReport(free=0xFFFF, unhealthy=0, network_unhealthy=0, update_time_s=1_767_225_600)
    sub_healthy["data"] = {**encode_report(healthy), "SwitchInfoCfg": '{"NodeStatus": "SubHealthy"}'}
    answer, _ = plan(tmp_path, *servers(2, 2), stateful_set(4), sub_healthy, *pods, status=3)
    (found,) = answer["rescheduled"]
    assert found["delete"] == ["sp-2"]
    assert found["why"].endswith("subHealthyStrategy is hotSwitch: pod sp-2-hot takes over")
    assert [each["name"] for each in answer["pending"]] == ["sp-2"]


def test_a_block_without_room_moves_with_all_of_its_pods(tmp_path: Path) -> None:
    lost = super_pod_node(0, 0)
    lost["status"]["conditions"][0]["status"] = "False"
    pods = job("1-0", "1-1", "0-0", "0-1", labels=WIDER)
    answer, _ = plan(tmp_path, *servers(2, 2, 2)[1:], lost, stateful_set(4), *pods)
    (found,) = answer["rescheduled"]
    assert found["delete"] == ["sp-2", "sp-3"]
    assert found["why"] == "node 0-0 is not Ready"
    assert found["blocks"] == {
        "0": {"verdict": "kept", "nodes": ["1-0", "1-1"]},
        "1": {"verdict": "moved", "nodes": ["2-0", "2-1"]},
    }


def test_successors_without_room_wait_and_their_block_is_not_listed(tmp_path: Path) -> None:
    pods = job("0-0", "0-1", "1-0", "1-1", labels=WIDER)
    answer, _ = plan(tmp_path, *servers(2, 2), stateful_set(4), broken("1-1"), *pods, status=3)
    (found,) = answer["rescheduled"]
    assert found["delete"] == ["sp-0", "sp-1", "sp-2", "sp-3"]
    assert "1" not in found["blocks"]
    assert {each["reason"] for each in answer["pending"]} == {"GangDoesNotFit"}


def test_chips_of_successors_are_given_to_nobody_else(tmp_path: Path) -> None:
    other = pod("other", 16, selector={"accelerator-type": "module-a3-16-super-pod"})
    pods = job("0-0", "0-1", labels=WIDER)
    answer, _ = plan(tmp_path, *servers(3), stateful_set(2), broken("0-1"), *pods, other, status=3)
    assert [(each["name"], each["node"]) for each in answer["pods"]] == [("sp-1", "0-2")]
    assert [each["name"] for each in answer["pending"]] == ["other"]


def test_a_pod_without_blocks_goes_as_well(tmp_path: Path) -> None:
    one, two = (
        owned(pod(f"web-{at}", 2, node="n1", chips=chips, uid=f"uid-web-{at}", labels=ALL), "ReplicaSet", "web")
        for at, chips in enumerate(([0, 1], [2, 3]))
    )
    answer, _ = plan(tmp_path, node("n1"), node("n2"), broken("n1", 8), one, two)
    assert [(each["delete"], each["blocks"]) for each in answer["rescheduled"]] == [(["web-0"], {})]
    assert [each["name"] for each in answer["pods"]] == ["web-0"]


@pytest.mark.parametrize(
    ("labels", "controller", "sentence"),
    [
        (ALL, False, "nothing is deleted: pod default/sp-0 has no controller"),
        ({"fault-scheduling": "forced"}, True, "fault-scheduling is 'forced'; known values: off, grace, force"),
        ({"fault-scheduling": "external-force"}, True, "another program deletes its pods"),
    ],
)
def test_it_is_said_why_a_job_is_not_rescheduled(
    tmp_path: Path,
    labels: Json,
    controller: bool,  # noqa: FBT001 - a parameter
    sentence: str,
) -> None:
    pods = job("0-0", "0-1", labels=labels, controller=controller)
    if not controller:
        for each in pods:
            each["metadata"]["annotations"]["scheduling.k8s.io/group-name"] = "sp"
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
        "metadata": {"name": "sp", "namespace": "default"}, "spec": {"minMember": 2},
    }  # fmt: skip
    answer, told = plan(tmp_path, *servers(3), stateful_set(2), group, broken("0-0"), *pods)
    assert answer["rescheduled"] == []
    assert "job default/sp is not rescheduled: " in told
    assert sentence in told


def test_many_faults_are_taken_for_a_wrong_report(tmp_path: Path) -> None:
    pods = job("0-0", "0-1", labels=ALL)
    answer, told = plan(tmp_path, *servers(9), stateful_set(2), *(broken(f"0-{at}") for at in range(4)), *pods)
    assert answer["rescheduled"] == []
    assert "more than 3 of 9 nodes have faults at one time" in told


@pytest.mark.parametrize("mode", ["off", "dry-run"])
def test_nothing_is_rescheduled_without_the_setting(tmp_path: Path, mode: str) -> None:
    pods = job("0-0", "0-1", labels=ALL)
    answer, _ = plan(tmp_path, *servers(3), stateful_set(2), broken("0-0"), *pods, mode=mode)
    assert (answer["rescheduled"], answer["pods"]) == ([], [])


def test_healthy_jobs_and_those_that_do_not_ask_for_it_stay(tmp_path: Path) -> None:
    for labels, reports in (({}, [broken("0-0")]), (ALL, [])):
        pods = job("0-0", "0-1", labels=labels)
        answer, _ = plan(tmp_path, *servers(3), stateful_set(2), *reports, *pods)
        assert answer["rescheduled"] == []


@pytest.mark.parametrize("faulty", [0, 1, 3])
@pytest.mark.parametrize(
    "labels",
    [
        {},
        {"pod_rescheduling": "on"},
        {"process_recover_enable": "on"},
        {"process_recover_enable": "pause", "fault_scheduling": "grace"},
        {"pod_rescheduling": "on", "process_recover_enable": "on"},
        {"app": "mindie-ms-controller"},
        {"elastic_scheduling": "on"},
        {"fault_scheduling": "off"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["StatefulSet", "ReplicaSet", "DaemonSet"])
async def test_the_pods_that_go_are_those_that_the_allocator_deletes(
    labels: dict[str, Any], faulty: int, kind: str
) -> None:
    pods = running_job(4, blocks=2, kind=kind, **labels)
    nodes = [allocator_node(f"n{number}") for number in range(1, 9)]
    at_fault = allocator_report(f"n{faulty + 1}", unhealthy=[0])
    stage = scene(pods, nodes=8)
    stage.world.add(at_fault)
    deleted = await stage.settle()
    planning = Planning(ClusterObjects.of([*nodes, *pods, at_fault]), SETTINGS, 2 * 10**9)
    held: list[str] = []
    found = await reschedule(planning, SETTINGS, held=held.append)
    assert sorted(name for each in found for name in each.delete) == sorted(deleted)
    assert bool(held) == ("NPUReschedulingHeld" in stage.reasons())
