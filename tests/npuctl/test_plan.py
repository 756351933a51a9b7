"""``npuctl plan``: the allocator's decisions on files, their output, and exit statuses."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ascend.annotations import MIN_AVAILABLE
from npuctl.cli import app
from tests.allocator.builders import noded_says
from tests.npuctl.manifests import Json, as_list, member, node, parts, pod, pod_group, report, with_nodes

NOW = "2026-01-01T00:00:00Z"
NOW_NS = 1_767_225_600 * 10**9


@pytest.fixture
def npuctl(tmp_path: Path) -> "Npuctl":
    return Npuctl(tmp_path)


class Npuctl:
    """Runs ``npuctl plan`` on objects."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, *objects: Json, name: str = "cluster.json") -> str:
        path = self.folder / name
        path.write_text(json.dumps(as_list(*objects)))
        return str(path)

    def run(self, *arguments: str, stdin: str | None = None) -> tuple[int, str, str]:
        done = CliRunner().invoke(app, ["plan", *arguments], input=stdin)
        return done.exit_code, done.stdout, done.stderr

    def plan(self, *objects: Json, flags: tuple[str, ...] = ()) -> dict[str, Any]:
        status, out, err = self.run("-f", self.write(*objects), "--now", NOW, "-o", "json", *flags)
        answer = with_nodes(json.loads(out))
        assert answer.pop("schema") == "npuctl/plan/v1"
        assert status == (2 if answer["unplanned"] else 3 if answer["pending"] else 0), err
        return answer

    def printed(self, *objects: Json) -> str:
        return self.run("-f", self.write(*objects), "--now", NOW)[1]


def test_a_pod_gets_the_chips_and_annotations_of_its_binding(npuctl: Npuctl) -> None:
    busy = pod("busy", 2, node="node-a", chips=(4, 5))
    assert npuctl.plan(node("node-a"), node("node-b"), busy, pod("train", 2)) == {
        "pods": [
            {
                "namespace": "default",
                "name": "train",
                "job": "default/train",
                "node": "node-a",
                "chips": ["Ascend910-6", "Ascend910-7"],
                "vnpus": [],
                "annotations": {
                    "huawei.com/Ascend910": "Ascend910-6,Ascend910-7",
                    "predicate-time": str(NOW_NS),
                    "distributed-job": "false",
                },
                "preempts": [],
            }
        ],
        "pending": [],
        "jobs": [],
        "rescheduled": [],
        "unplanned": [],
        "without_effect": [],
    }


def test_a_pending_pod_has_a_reason_as_a_whole_and_by_node(npuctl: Npuctl) -> None:
    taken = (pod(f"on-{name}", 2, node=name, chips=(1, 5)) for name in ("node-a", "node-b"))
    answer = npuctl.plan(node("node-a"), node("node-b", ready=False), *taken, pod("big", 4))
    (pending,) = answer["pending"]
    assert (pending["name"], pending["reason"]) == ("big", "NoNodeFits")
    assert "1 RingTooSmall" in pending["message"]
    assert {name: why["reason"] for name, why in pending["nodes"].items()} == {
        "node-a": "RingTooSmall",
        "node-b": "NodeNotReady",
    }
    assert "the rings have 3 + 3 free" in pending["nodes"]["node-a"]["message"]


def test_nodes_without_chips_do_not_change_the_reason(npuctl: Npuctl) -> None:
    plain = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plain"}}
    answer = npuctl.plan(plain, node("node-a", ready=False), pod("train", 4))
    assert answer["pending"][0]["reason"] == "NodeNotReady"
    assert "1 NotAnNpuNode" in answer["pending"][0]["message"]


def test_an_invalid_request_is_refused_by_every_node(npuctl: Npuctl) -> None:
    (pending,) = npuctl.plan(node("node-a"), pod("odd", 17))["pending"]
    assert (pending["reason"], pending["nodes"]["node-a"]["reason"]) == ("InvalidRequest", "InvalidRequest")


def test_only_pods_with_more_than_one_vnpu_are_refused(npuctl: Npuctl) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    index = "batch.kubernetes.io/job-completion-index"
    pods = [parts(f"train-{number}", "1", ownerReferences=[owner], labels={index: str(number)}) for number in range(2)]
    answer = npuctl.plan(node("node-a"), parts("one", "1"), parts("two", "2"), *pods, pod("whole", 8))
    assert [each["name"] for each in answer["pods"]] == ["whole"]
    waits = "1 vNPU Ascend910-2c requested, the node has no vNPUs"
    expected = {each["name"]: (each["message"], each["nodes"]["node-a"]["message"]) for each in answer["pending"]}
    rule = "a job may have one at a time (allocator setting vnpus_per_job)"
    job = f"job default/train requests 2 vNPUs; {rule}"
    alone = "pod default/two: 2 Ascend910-2c in container main; a pod may have one vNPU, in one container"
    assert expected.pop("one")[1] == expected.pop("train-0")[1] == waits
    assert expected == {"train-1": (job, job), "two": (alone, alone)}
    bound = npuctl.plan(node("node-a"), parts("two", "2", node="node-a"), parts("done", "2", phase="Succeeded"))
    assert bound["pending"] == []


def test_bound_pods_hold_chips_and_only_live_unbound_ones_are_planned(npuctl: Npuctl) -> None:
    answer = npuctl.plan(
        node("node-a"),
        pod("runs", 4, node="node-a", chips=range(4)),
        pod("done", 4, phase="Succeeded"),
        pod("leaves", 4, deletionTimestamp=NOW),
        pod("plain", None),
        pod("none", 0),
        pod("train", 4),
    )
    assert [(each["name"], each["chips"][0]) for each in answer["pods"]] == [("train", "Ascend910-4")]
    assert answer["pending"] == []


def test_jobs_are_planned_in_order_of_creation_then_name(npuctl: Npuctl) -> None:
    answer = npuctl.plan(
        node("node-a"),
        node("node-b"),
        pod("later-10", 1),
        pod("later-9", 1),
        pod("old", 1, creationTimestamp="2026-01-01T09:00:00+09:30"),
        pod("young", 1, creationTimestamp="2026-01-01T00:00:00Z"),
    )
    assert [each["name"] for each in answer["pods"]] == ["old", "young", "later-10", "later-9"]
    times = [int(each["annotations"]["predicate-time"]) for each in answer["pods"]]
    assert times == [NOW_NS, NOW_NS + 1, NOW_NS + 2, NOW_NS + 3]


def test_candidates_are_all_nodes_that_fit_best_first(npuctl: Npuctl) -> None:
    busy = pod("busy", 4, node="node-c", chips=range(4))
    nodes = (node(name) for name in ("node-b", "node-a", "node-c"))
    answer = npuctl.plan(*nodes, node("node-d", cordoned=True), busy, pod("train", 4), flags=("--candidates",))
    left, right = [f"Ascend910-{chip}" for chip in range(4)], [f"Ascend910-{chip}" for chip in range(4, 8)]
    assert answer["pods"][0]["candidates"] == [
        {"node": "node-c", "rank": 1, "score": 260, "chips": right, "vnpus": []},
        {"node": "node-a", "rank": 2, "score": 256, "chips": left, "vnpus": []},
        {"node": "node-b", "rank": 2, "score": 256, "chips": left, "vnpus": []},
    ]


@settings(max_examples=30, deadline=None)
@given(asked=st.lists(st.sampled_from([1, 2, 4, 8]), max_size=8), shuffle=st.randoms(use_true_random=False))
def test_input_order_does_not_matter_and_no_chip_is_given_twice(
    tmp_path_factory: pytest.TempPathFactory, asked: list[int], shuffle: Any
) -> None:
    npuctl = Npuctl(tmp_path_factory.mktemp("plan"))
    objects = [node("node-a"), node("node-b"), *(pod(f"p-{number}", count) for number, count in enumerate(asked))]
    first = npuctl.plan(*objects, flags=("--candidates",))
    shuffle.shuffle(objects)
    assert npuctl.plan(*objects, flags=("--candidates",)) == first
    given_out = [(each["node"], chip) for each in first["pods"] for chip in each["chips"]]
    assert len(set(given_out)) == len(given_out) == sum(len(each["chips"]) for each in first["pods"])
    for each in first["pods"]:
        assert each["candidates"][0]["node"] == each["node"]
        assert each["candidates"][0]["chips"] == each["chips"]


def test_whether_a_report_is_stale_depends_on_the_given_time(npuctl: Npuctl) -> None:
    file = npuctl.write(node("node-a"), report("node-a"), pod("train", 1))
    assert npuctl.run("-f", file, "--now", "2026-01-01T00:14:59Z")[0] == 0
    late = ("-f", file, "--now", "2026-01-01T00:15:01Z")
    status, out, _ = npuctl.run(*late, "-o", "json")
    assert (status, json.loads(out)["pending"][0]["reason"]) == (3, "StaleReport")
    assert npuctl.run(*late, "--set", "max-report-age-s=1000")[0] == 0
    assert npuctl.run(*late, "--set", "max_report_age_s=1000")[0] == 0


def test_settings_come_from_the_file_and_not_from_the_environment(
    npuctl: Npuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_ALLOCATOR_MAX_REPORT_AGE_S", "1")
    file = npuctl.write(node("node-a"), report("node-a"), pod("train", 1))
    config = npuctl.folder / "allocator.yaml"
    config.write_text("max_report_age_s: 60\nextender_address: 127.0.0.1:1\n")
    at = ("--now", "2026-01-01T00:02:00Z")
    assert npuctl.run("-f", file, *at)[0] == 0
    assert npuctl.run("-f", file, *at, "--config", str(config))[0] == 3
    assert npuctl.run("-f", file, *at, "--config", str(config), "--set", "max-report-age-s=600")[0] == 0


def test_unhealthy_chips_are_not_allocated(npuctl: Npuctl) -> None:
    answer = npuctl.plan(node("node-a", chips=6), report("node-a", unhealthy=0b11), pod("train", 2))
    assert answer["pods"][0]["chips"] == ["Ascend910-2", "Ascend910-3"]


def test_a_gang_is_planned_as_a_whole_in_rank_order(npuctl: Npuctl) -> None:
    nodes = (node(f"n{number:02}") for number in range(12))
    members = (member(f"train-{number}", "train") for number in reversed(range(12)))
    answer = npuctl.plan(*nodes, *members, pod_group("train", 12))
    assert answer["pending"] == []
    assert [(each["name"], each["job"]) for each in answer["pods"]] == [
        (f"train-{number}", "default/train") for number in range(12)
    ]
    assert len({each["node"] for each in answer["pods"]}) == 12
    assert {each["annotations"]["distributed-job"] for each in answer["pods"]} == {"true"}


def test_a_gang_that_does_not_fit_holds_no_chips(npuctl: Npuctl) -> None:
    members = [member(f"train-{number}", "train", creationTimestamp=NOW) for number in range(3)]
    answer = npuctl.plan(node("n1"), node("n2"), *members, pod_group("train", 3), pod("alone", 8))
    assert [each["name"] for each in answer["pending"]] == ["train-0", "train-1", "train-2"]
    assert {each["job"] for each in answer["pending"]} == {"default/train"}
    assert [each["name"] for each in answer["pods"]] == ["alone"]


def in_group(name: str, group: str) -> Json:
    """A pod of a pod group of Kubernetes."""
    made = pod(name, 8)
    made["spec"]["schedulingGroup"] = {"podGroupName": group}
    return made


def native_group(name: str, minimum: int, api: str = "scheduling.k8s.io/v1beta1") -> Json:
    return pod_group(name, 0, group=api) | {"spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}}}


@pytest.mark.parametrize("version", ["v1beta1", "v1alpha3", "v1alpha2"])
def test_a_gang_by_a_pod_group_of_kubernetes_is_planned_whole(version: str, npuctl: Npuctl) -> None:
    group, pods = native_group("train", 2, f"scheduling.k8s.io/{version}"), [in_group("a", "train")]
    (pending,) = npuctl.plan(node("n1"), *pods, group)["pending"]
    assert (pending["reason"], pending["job"]) == ("GangIncomplete", "default/train")
    pods.append(in_group("b", "train"))
    assert {waiting["reason"] for waiting in npuctl.plan(node("n1"), *pods, group)["pending"]} == {"GangDoesNotFit"}
    planned = npuctl.plan(node("n1"), node("n2"), *pods, group)["pods"]
    assert {placed["node"] for placed in planned} == {"n1", "n2"}
    assert {waiting["reason"] for waiting in npuctl.plan(node("n1"), *pods)["pending"]} == {"GroupMissing"}


@pytest.mark.parametrize("api", ["scheduling.volcano.sh/v1beta1", "scheduling.x-k8s.io/v1alpha1"])
def test_an_incomplete_gang_says_how_many_pods_are_missing(api: str, npuctl: Npuctl) -> None:
    mark = {"scheduling.k8s.io/group-name": "train"}, {"scheduling.x-k8s.io/pod-group": "train"}
    waiting = pod("train-0", 8, annotations=mark[0]) if "volcano" in api else pod("train-0", 8, labels=mark[1])
    answer = npuctl.plan(node("n1"), waiting, pod_group("train", 3, group=api))
    (pending,) = answer["pending"]
    assert (pending["reason"], pending["nodes"]["n1"]["reason"]) == ("GangIncomplete", "GangIncomplete")
    assert "3 pods must be placed together; 1 exists, 2 are missing" in pending["message"]


@pytest.mark.parametrize(
    "others",
    [[pod_group("other", 1)], [], [pod_group("train", 2, group="scheduling.volcano.sh/v1beta2")]],
    ids=["others", "none", "unknown version"],
)
@pytest.mark.parametrize(
    "mark",
    [
        {"annotations": {"scheduling.k8s.io/group-name": "train"}},
        {"labels": {"scheduling.x-k8s.io/pod-group": "train"}},
    ],
    ids=["volcano", "coscheduling"],
)
def test_pods_wait_for_a_group_that_no_file_has(others: list[Json], mark: Json, npuctl: Npuctl) -> None:
    answer = npuctl.plan(node("n1"), pod("train-0", 8, **mark), pod("train-1", 8, **mark), *others)
    assert [(each["name"], each["reason"]) for each in answer["pending"]] == [
        ("train-0", "GroupMissing"),
        ("train-1", "GroupMissing"),
    ]
    assert answer["pods"] == []


def test_pods_that_state_their_minimum_need_no_group(npuctl: Npuctl) -> None:
    marks = {"scheduling.k8s.io/group-name": "train", "huawei.com/schedule_minAvailable": "2"}
    answer = npuctl.plan(node("n1"), node("n2"), *(pod(f"train-{at}", 8, annotations=marks) for at in range(2)))
    assert [each["node"] for each in answer["pods"]] == ["n1", "n2"]


@pytest.mark.parametrize(
    "command", [("plan",), ("explain", "train-0"), ("topo",), ("doctor", "--cluster")], ids=lambda command: command[0]
)
def test_every_command_warns_about_a_group_of_unknown_version(command: tuple[str, ...], npuctl: Npuctl) -> None:
    file = npuctl.write(node("n1"), member("train-0", "train"), pod_group("train", 2, group="scheduling.volcano.sh/v9"))
    errors = CliRunner().invoke(app, [*command, "-f", file]).stderr
    assert f"npuctl: {file}: document 1 items[2] (PodGroup default/train): apiVersion: " in errors
    kubernetes = ", ".join(f"scheduling.k8s.io/{version}" for version in ("v1beta1", "v1alpha3", "v1alpha2"))
    supported = f"{kubernetes}, scheduling.volcano.sh/v1beta1, scheduling.x-k8s.io/v1alpha1"
    assert (
        f"'scheduling.volcano.sh/v9' is not supported, only {supported} are; pods of this group are treated" in errors
    )


def test_a_pod_is_placed_on_a_node_that_matches_its_selector(npuctl: Npuctl) -> None:
    nodes = [node("n1"), node("n2", zone="b"), node("n3", zone="a", disk="hdd"), node("n4", zone="a", disk="ssd")]
    # n1 would be the best node: it has a ring that is half full.
    half = pod("half", 2, node="n1", chips=(0, 1))
    wanted = pod("train", 2, selector={"zone": "a", "disk": "ssd"})
    (planned,) = npuctl.plan(*nodes, half, wanted, flags=("--candidates",))["pods"]
    assert (planned["node"], [each["node"] for each in planned["candidates"]]) == ("n4", ["n4"])
    (planned,) = npuctl.plan(*nodes, half, pod("train", 2), flags=("--candidates",))["pods"]
    assert (planned["node"], len(planned["candidates"])) == ("n1", 4)


def test_a_node_that_does_not_match_a_selector_names_the_labels(npuctl: Npuctl) -> None:
    nodes = [node("n1"), node("n2", zone="b", ready=False), node("n3", zone="a", cordoned=True)]
    plain = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "plain"}}
    (pending,) = npuctl.plan(*nodes, plain, pod("train", 8, selector={"zone": "a"}))["pending"]
    assert pending["reason"] == "NoNodeFits"
    assert pending["message"].endswith("of 4 nodes: 2 NodeSelectorMismatch, 1 NodeCordoned, 1 NotAnNpuNode")
    asked = "the pod's node selector requires zone=a, but the node has "
    assert pending["nodes"] == {
        "n1": {"reason": "NodeSelectorMismatch", "message": f"{asked}no such label"},
        "n2": {"reason": "NodeSelectorMismatch", "message": f"{asked}zone=b"},
        "n3": {"reason": "NodeCordoned", "message": "node n3 is cordoned"},
        "plain": pending["nodes"]["plain"],
    }
    (pending,) = npuctl.plan(*nodes, pod("train", 8, selector={"zone": "c", "disk": "ssd"}))["pending"]
    assert pending["reason"] == "NodeSelectorMismatch"
    assert "disk=ssd, but the node has no such label; zone=c, but " in pending["nodes"]["n3"]["message"]


def test_an_invalid_request_is_reported_whatever_the_selector(npuctl: Npuctl) -> None:
    (pending,) = npuctl.plan(node("n1"), pod("train", 17, selector={"zone": "a"}))["pending"]
    assert (pending["reason"], pending["nodes"]["n1"]["reason"]) == ("InvalidRequest", "InvalidRequest")


def test_a_waiting_gang_names_the_nodes_its_selector_excludes(npuctl: Npuctl) -> None:
    nodes = [node("n1"), node("n2", zone="a"), node("n3")]
    members = [member(f"train-{number}", "train", selector={"zone": "a"}) for number in range(2)]
    pending = npuctl.plan(*nodes, *members, pod_group("train", 2))["pending"]
    assert [each["reason"] for each in pending] == ["GangDoesNotFit"] * 2
    for each in pending:
        reasons = {name: why["reason"] for name, why in each["nodes"].items()}
        assert reasons == {"n1": "NodeSelectorMismatch", "n2": "GangDoesNotFit", "n3": "NodeSelectorMismatch"}
    refused = "only 1 fits at once; beside it, for another one (8 chips) the nodes refuse: 1 NotEnoughChips"
    assert refused in pending[0]["message"]
    (first, _) = npuctl.plan(node("n1"), *members, pod_group("train", 2))["pending"]
    assert first["message"].endswith(
        "none fits; for the first one (8 chips) no node matches its node selector and affinity"
    )
    (early,) = npuctl.plan(*nodes, members[0], pod_group("train", 2))["pending"]
    assert {why["reason"] for why in early["nodes"].values()} == {"GangIncomplete"}


def test_the_pods_of_one_owner_are_one_job(npuctl: Npuctl) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
    pods = (pod(f"train-{number}", 8, ownerReferences=[owner]) for number in (10, 9))
    answer = npuctl.plan(node("n1"), node("n2"), *pods)
    assert [(each["name"], each["job"]) for each in answer["pods"]] == [
        ("train-9", "default/train"),
        ("train-10", "default/train"),
    ]


def test_a_gang_on_a_mixed_cluster_names_its_product(npuctl: Npuctl) -> None:
    mixed = [node("a"), node("b1", kind="module-910b-8"), node("b2", kind="module-910b-8"), node("c", kind="card")]
    members = [*(member(f"train-{number}", "train") for number in range(2)), pod_group("train", 2)]
    answer = npuctl.plan(*mixed, *members)
    assert [each["reason"] for each in answer["pending"]] == ["ProductNotNamed", "ProductNotNamed"]
    assert "910-card or 910A or 910B-8 servers" in answer["pending"][0]["message"]


def test_the_default_product_is_for_jobs_that_name_none(npuctl: Npuctl) -> None:
    mixed = [node("a"), node("b1", kind="module-910b-8"), node("b2", kind="module-910b-8")]
    members = [*(member(f"train-{number}", "train") for number in range(2)), pod_group("train", 2)]
    answer = npuctl.plan(*mixed, *members, flags=("--candidates", "--set", "default_product=910B-8"))
    assert [each["node"] for each in answer["pods"]] == ["b1", "b2"]
    assert [[each["node"] for each in one["candidates"]] for one in answer["pods"]] == [["b1", "b2"], ["b2"]]


def test_the_pods_of_a_stateful_set_are_not_spread_over_products(npuctl: Npuctl) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
    pods = [pod(f"train-{number}", 8, ownerReferences=[owner]) for number in range(2)]
    answer = npuctl.plan(node("a"), node("c", kind="card"), *pods, flags=("--set", "default_product=910A"))
    assert [(each["name"], each["node"]) for each in answer["pods"]] == [("train-0", "a")]
    (pending,) = answer["pending"]
    assert pending["nodes"]["c"] == {
        "reason": "WrongProduct",
        "message": "the job is for 910A servers; this is a 910-card server",
    }


@pytest.mark.parametrize(("replicas", "distributed"), [(1, "false"), (2, "true"), (None, "true")])
def test_the_first_pod_of_a_stateful_set_counts_its_replicas(
    replicas: int | None, distributed: str, npuctl: Npuctl
) -> None:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
    made: Json = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "train"}}
    owners = [] if replicas is None else [{**made, "spec": {"replicas": replicas}}]
    answer = npuctl.plan(node("n1"), *owners, pod("train-0", 8, ownerReferences=[owner]))
    assert answer["pods"][0]["annotations"]["distributed-job"] == distributed


def test_the_previous_node_is_preferred_if_the_setting_says_so(npuctl: Npuctl) -> None:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    marks: Json = {"ownerReferences": [owner], "labels": {"batch.kubernetes.io/job-completion-index": "0"}}
    before = pod("train-0-old", 2, node="n2", chips=[0, 1], deletionTimestamp=NOW, **marks)
    objects = [
        node("n1"),
        node("n2"),
        before,
        pod("busy", 4, node="n1", chips=range(4)),
        pod("train-0-new", 4, **marks),
    ]
    assert npuctl.plan(*objects)["pods"][0]["node"] == "n1"
    assert npuctl.plan(*objects, flags=("--set", "prefer-previous-node=true"))["pods"][0]["node"] == "n2"


def test_the_node_health_that_noded_reports_is_used(npuctl: Npuctl) -> None:
    health: Json = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "mindx-dl-nodeinfo-node-a", "namespace": "mindx-dl"},
        "data": {"NodeInfo": noded_says({"NodeStatus": "UnHealthy"})},
    }
    answer = npuctl.plan(node("node-a"), health, pod("train", 2))
    assert answer["pending"][0]["reason"] == "NodeUnhealthy"
    file = npuctl.write(node("node-a"), health, pod("train", 2))
    for command in (("plan",), ("explain", "train"), ("topo",), ("doctor", "--cluster")):
        unasked = CliRunner().invoke(app, [*command, "-f", file])
        assert (
            "MindCluster's ConfigMaps in mindx-dl are used (mindx-dl-nodeinfo-node-a), as by an allocator with "
            in unasked.stderr
        )
        asked = CliRunner().invoke(app, [*command, "-f", file, "--set", "node-health-namespace=mindx-dl"])
        assert (asked.stderr, asked.stdout) == ("", unasked.stdout)
        other = CliRunner().invoke(app, [*command, "-f", file, "--set", "node-health-namespace=default"])
        assert other.stderr == ""
        assert "NodeUnhealthy" in asked.stdout
        assert "NodeUnhealthy" not in other.stdout
    elsewhere = {**health, "metadata": {**health["metadata"], "namespace": "default"}}
    assert npuctl.plan(node("node-a"), elsewhere, pod("train", 2))["pending"] == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (("--set", "max-report-age-s"), "is not key=value"),
        (("--set", "no-such-setting=1"), "no_such_setting"),
        (("--set", "max-report-age-s=old"), "max_report_age_s"),
        (("--now", "yesterday"), "--now: 'yesterday'"),
        (("--now", "2026-01-01T00:00:00"), "is not an RFC 3339 time"),
        (("--config", "/nowhere.yaml"), "/nowhere.yaml"),
    ],
)
def test_an_invalid_flag_is_named(npuctl: Npuctl, flags: tuple[str, ...], expected: str) -> None:
    status, out, err = npuctl.run("-f", npuctl.write(node("node-a")), *flags)
    assert (status, out) == (2, "")
    assert expected in err


def test_people_get_a_table(npuctl: Npuctl) -> None:
    nodes = [node(f"node-{number}") for number in range(5)]
    holders = [pod(f"on-{number}", 2, node=f"node-{number}", chips=(1, 5)) for number in range(5)]
    status, out, _ = npuctl.run("-f", npuctl.write(*nodes, *holders, pod("one", 1), pod("two", 4)))
    lines = [line.rstrip() for line in out.splitlines()]
    assert status == 3
    assert lines[0] == "1 of 2 pods placed, 1 waits: RingTooSmall"
    assert lines[1].split() == ["POD", "JOB", "NODE", "CHIPS"]
    assert lines[2].split() == ["default/one", "default/one", "node-0", "0"]
    assert lines[3].startswith("default/two waits: RingTooSmall: ")
    assert " ".join(" ".join(lines[4:]).split()) == (  # default/one is on node-0
        "5 nodes RingTooSmall: node-0, for example: 4 chips requested must be within one ring; the rings have "
        "2 + 3 free chips (node-0, node-1, node-2 and 2 more)"
    )
    assert npuctl.run("-f", npuctl.write(*nodes))[1] == "no pod waits for chips\n"


def test_many_pods_are_summed_up_by_job_and_by_reason(npuctl: Npuctl) -> None:
    nodes = [node(f"n{number:02}") for number in range(50)]
    waiting = [pod(f"web-{number:03}", 8) for number in range(300)]
    objects = npuctl.write(*nodes, node("out", cordoned=True), *waiting)
    lines = npuctl.run("-f", objects)[1].splitlines()
    assert lines[0] == "50 of 300 pods placed, 250 wait: NoNodeFits"
    assert lines[1].split() == ["JOB", "PODS", "CHIPS", "NODES", "NODE"]
    assert any(
        line.startswith("default/web-050, default/web-051, default/web-052 and 247 more wait: ") for line in lines
    )
    assert len(lines) < 60
    assert len(npuctl.run("-f", objects, "--pods")[1].splitlines()) == len(lines) - 1


def test_nodes_that_can_not_be_used_are_named_once_for_all_that_wait(npuctl: Npuctl) -> None:
    out = npuctl.printed(node("n1"), node("out", cordoned=True), pod("a", 8), pod("b", 8), pod("c", 4))
    assert out.count("node out is cordoned") == 1
    assert "and for all of them" in out
    assert npuctl.printed(node("out", cordoned=True), pod("a", 8)).count("node out is cordoned") == 1


def test_what_nodes_say_is_written_once_however_many_pods_wait(npuctl: Npuctl) -> None:
    def answer(waiting: int) -> dict[str, Any]:
        nodes = [node(f"n{number}") for number in range(5)]
        pods = [pod(f"waits-{number:02}", size) for size in (2, 8) for number in range(waiting)]
        gang = [member(f"train-{number}", "train") for number in range(7)]
        held = [pod(f"on-{number}", 7, node=f"n{number}", chips=range(7)) for number in range(5)]
        file = npuctl.write(*nodes, node("out", cordoned=True), *held, *pods, *gang, pod_group("train", 7))
        plan: dict[str, Any] = json.loads(npuctl.run("-f", file, "--now", NOW, "-o", "json")[1])
        return plan

    # Beside those of the first pod, for which a chip is kept, and those of the pods after it.
    few, many = answer(2), answer(30)
    assert len(many["pending"]) > len(few["pending"])
    for table in ("verdicts", "refusals", "node_sets"):
        assert len(many[table]) == len(few[table])
    assert with_nodes(many)["pending"][0]["nodes"] == with_nodes(few)["pending"][0]["nodes"]


def test_the_nodes_that_drain_for_a_gang_are_candidates_of_its_own_pods(npuctl: Npuctl) -> None:
    members = [member(f"train-{number}", "train") for number in range(3)]
    nodes = [node(f"n{number:02}") for number in range(12)]
    for each in npuctl.plan(*nodes, *members, pod_group("train", 3), flags=("--candidates",))["pods"]:
        assert each["node"] in [candidate["node"] for candidate in each["candidates"]]


def test_pods_that_are_refused_alike_are_printed_once(npuctl: Npuctl) -> None:
    members = [member(f"train-{number}", "train") for number in range(5)]
    status, out, _ = npuctl.run("-f", npuctl.write(node("n1"), *members, pod_group("train", 6), pod("big", 9)))
    lines = [line.rstrip() for line in out.splitlines()]
    incomplete = "job default/train: 6 pods must be placed together; 5 exist, 1 is missing"
    assert status == 3
    assert lines == [
        "0 of 6 pods placed, 6 wait: 5 GangIncomplete, 1 InvalidRequest",
        "default/big waits: InvalidRequest: pod default/big: 9 chips fit on none of 1 node: 1 InvalidRequest",
        "  1 node InvalidRequest: a pod may request 1, 2, 4, 8 chips of a 910A server, not 9 (n1)",
        f"default/train-0, default/train-1, default/train-2 and 2 more wait: GangIncomplete: {incomplete}",
        "job default/train: 5 pods of at least 6 that start together",
    ]


@pytest.mark.parametrize(
    ("minimum", "sentence"),
    [
        (1, "3 pods; each starts when there is room for it"),
        (2, "3 pods; at least 2 of them start together or not at all"),
        (3, "3 pods start together or not at all"),
        (4, "3 pods of at least 4 that start together"),
    ],
)
def test_how_many_pods_of_a_job_start_together_is_shown(npuctl: Npuctl, minimum: int, sentence: str) -> None:
    nodes = [node(f"n{number}") for number in range(4)]
    members = [member(f"train-{number}", "train") for number in range(3)]
    given = (*nodes, *members, pod_group("train", minimum), pod("alone", 1))
    assert npuctl.plan(*given)["jobs"] == [
        {"job": "default/train", "pods": 3, "together": minimum, "blocks": [], "switches": []}
    ]
    assert npuctl.run("-f", npuctl.write(*given), "--now", NOW)[1].splitlines()[-1] == f"job default/train: {sentence}"


def test_yaml_and_json_have_the_same_content(npuctl: Npuctl) -> None:
    file = npuctl.write(node("node-a"), pod("train", 1), pod("big", 16))
    flags = ("-f", file, "--now", NOW, "--candidates", "-o")
    assert yaml.safe_load(npuctl.run(*flags, "yaml")[1]) == json.loads(npuctl.run(*flags, "json")[1])


def test_the_command_is_repeatable_byte_for_byte(npuctl: Npuctl) -> None:
    file = npuctl.write(node("node-a"), node("node-b"), *(pod(f"p-{n}", 2) for n in range(9)))
    # One process prints all three formats, because its start takes longest.
    program = """
import io, sys
from npuctl.cli import app
text = sys.stdin.read()
for output in ("table", "json", "yaml"):
    sys.stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    try:
        app(sys.argv[1:] + ["-o", output])
    except SystemExit as end:
        print("exit", end.code, flush=True)
"""

    def out(seed: str) -> bytes:
        done = subprocess.run(
            [sys.executable, "-c", program, "plan", "-f", "-", "--now", NOW, "--candidates"],
            input=Path(file).read_bytes(),
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        )
        return done.stdout

    first = out("1")
    assert first.count(b"exit 3\n") == 3
    assert out("2") == first


@pytest.mark.parametrize("resource", ["Ascend910B-2c", "npu", "Ascend310P"])
def test_a_pod_with_other_devices_is_named_and_is_no_success(npuctl: Npuctl, resource: str) -> None:
    other = pod("other", None)
    other["spec"]["containers"][0]["resources"] = {"limits": {f"huawei.com/{resource}": "1"}}
    (unplanned,) = npuctl.plan(node("node-a"), other, pod("train", 8))["unplanned"]
    assert (unplanned["kind"], unplanned["name"]) == ("Pod", "other")
    assert unplanned["message"].startswith(f"resource huawei.com/{resource}: the allocator does not place it")
    done = CliRunner().invoke(app, ["explain", "other", "-f", npuctl.write(node("node-a"), other)])
    assert (done.exit_code, unplanned["message"] in " ".join(done.stdout.split())) == (0, True)


def test_what_has_no_effect_is_named_once_for_each_job(npuctl: Npuctl) -> None:
    group = pod_group("train", 2)
    pods = [member(f"train-{number}", "train", labels={"fault-scheduling": "grace"}) for number in range(2)]
    (named,) = npuctl.plan(node("node-a"), node("node-b"), group, *pods)["without_effect"]
    assert (named["job"], named["name"]) == ("default/train", "train-0")
    assert named["message"].startswith("label fault-scheduling=grace: ")


@pytest.mark.parametrize(("mode", "told"), [("on", []), ("dry-run", ["grace"]), ("off", ["grace"])])
def test_labels_of_rescheduling_have_no_effect_only_where_it_is_off(npuctl: Npuctl, mode: str, told: list[str]) -> None:
    asking = pod("train", labels={"fault-scheduling": "grace"})
    found = npuctl.plan(node("node-a"), asking, flags=("--set", f"reschedule={mode}"))["without_effect"]
    assert [each["message"].partition(": ")[0] for each in found] == [f"label fault-scheduling={each}" for each in told]
    path = npuctl.write(node("node-a"), asking)
    done = CliRunner().invoke(app, ["explain", "train", "-f", path, "--now", NOW, "--set", f"reschedule={mode}"])
    assert ("fault-scheduling=grace" in done.stdout) == bool(told)


def test_an_unknown_value_of_a_label_of_rescheduling_is_named(npuctl: Npuctl) -> None:
    asking = pod("train", labels={"fault-scheduling": "forced"})
    (found,) = npuctl.plan(node("node-a"), asking, flags=("--set", "reschedule=on"))["without_effect"]
    assert found["message"] == (
        "label fault-scheduling=forced (known values: off, grace, force, external-grace, external-force): "
        "the value is unknown, so no pod of the job is deleted after a fault"
    )


@pytest.mark.parametrize(
    ("what", "key", "value"),
    [
        ("annotation", MIN_AVAILABLE, "2"),
        ("annotation", "sp-block", "32"),
        ("label", "fault-scheduling", "force"),
        ("label", "fault-retry-times", "2"),
    ],
)
def test_a_setting_outside_of_the_pod_template_is_named(npuctl: Npuctl, what: str, key: str, value: str) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod("train", 8)["spec"]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "train", "namespace": "default", f"{what}s": {key: value}},
        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template},
    }
    (named,) = npuctl.plan(node("node-a"), node("node-b"), job)["without_effect"]
    assert named["message"].startswith(f"{what} {key} on Job default/train: settings on a Job have no effect")


def names(listed: list[dict[str, Any]]) -> list[str]:
    return [each["name"] for each in listed]


def of_priority(manifest: Json, priority: int, **spec: Any) -> Json:
    manifest["spec"] |= {"priority": priority, **spec}
    return manifest


def test_pods_of_higher_priority_are_decided_on_first(npuctl: Npuctl) -> None:
    low = pod("old-low", 1, creationTimestamp="2026-01-01T00:00:00Z")
    high = of_priority(pod("new-high", 1, creationTimestamp="2026-01-01T00:01:00Z"), 1_000_000)
    busy = of_priority(pod("busy", 7, node="n1", chips=range(7)), 1_000_000)
    plan = npuctl.plan(node("n1"), busy, low, high)
    assert (names(plan["pods"]), names(plan["pending"])) == (["new-high"], ["old-low"])


def test_a_pod_of_higher_priority_preempts_those_whose_chips_it_needs(npuctl: Npuctl) -> None:
    runs = [pod(f"runs-{ring}", 4, node="n1", chips=range(4 * ring, 4 * ring + 4)) for ring in (0, 1)]
    of_priority(runs[1], 5)
    urgent = of_priority(pod("urgent", 4), 10)
    plan = npuctl.plan(node("n1"), *runs, urgent, pod("late", 4))
    (placed,) = plan["pods"]
    assert (placed["name"], placed["node"], placed["preempts"]) == ("urgent", "n1", ["default/runs-0"])
    assert placed["chips"] == [f"Ascend910-{chip}" for chip in range(4)]
    assert names(plan["pending"]) == ["late"]
    assert "default/urgent preempts default/runs-0 on node n1" in npuctl.printed(node("n1"), *runs, urgent)


def test_nobody_is_preempted_where_kube_scheduler_would_not(npuctl: Npuctl) -> None:
    runs = pod("runs", 8, node="n1", chips=range(8))
    for urgent in (pod("equal", 4), of_priority(pod("never", 4), 10, preemptionPolicy="Never")):
        assert npuctl.plan(node("n1"), runs, urgent)["pods"] == []
    # By number four chips are free, so kube-scheduler looks for no victims, though the free ones are in two rings.
    halves = [pod(f"half-{ring}", 2, node="n1", chips=[4 * ring, 4 * ring + 1]) for ring in (0, 1)]
    assert npuctl.plan(node("n1"), *halves, of_priority(pod("ring", 4), 10))["pods"] == []


def test_a_gang_preempts_only_if_all_of_it_fits_then(npuctl: Npuctl) -> None:
    def gang(size: int) -> list[Json]:
        return [pod_group("big", size), *(of_priority(member(f"big-{at}", "big"), 10) for at in range(size))]

    runs = [pod(f"runs-{at}", 1, node=f"n{at}", chips=[0]) for at in (1, 2)]
    plan = npuctl.plan(node("n1"), node("n2"), node("n3"), *runs, *gang(3))
    assert sorted(names(plan["pods"])) == ["big-0", "big-1", "big-2"]
    assert sorted(key for each in plan["pods"] for key in each["preempts"]) == ["default/runs-1", "default/runs-2"]
    plan = npuctl.plan(node("n1"), node("n2"), node("n3"), *runs, *gang(4))
    assert (plan["pods"], len(plan["pending"])) == ([], 4)
