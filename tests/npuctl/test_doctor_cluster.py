"""``npuctl doctor --cluster``: each test makes a problem."""

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner

from ascend.annotations import REAL
from ascend.chips import RESOURCE
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.serving.http import serve_http
from npuctl.cli import app
from npuctl.doctor.allocator import check_allocator
from sandbox.apiserver import ApiServer
from tests.allocator.authority import Authority, settings_for
from tests.allocator.harness import running
from tests.npuctl.manifests import (
    Json,
    as_list,
    core_node,
    core_pod,
    cut_node,
    node,
    parts,
    pod,
    report,
    super_pod_node,
)

NOW = "2026-01-01T00:00:00Z"


def doctor(folder: Path, *objects: Json) -> tuple[int, dict[str, Any]]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    done = CliRunner().invoke(app, ["doctor", "--cluster", "-f", str(path), "--now", NOW, "-o", "json"])
    assert done.stderr == "" or "so all are stale; give the time of the files by --now" in done.stderr
    return done.exit_code, json.loads(done.stdout)


def bad(folder: Path, *objects: Json) -> list[tuple[str, str, str]]:
    _, diagnosis = doctor(folder, *objects)
    return [(e["check"], e["severity"], e["sentence"]) for e in diagnosis["findings"] if e["severity"] != "ok"]


def claimed(name: str, chips: list[int], real: list[int], **more: Any) -> Json:
    names = ",".join(f"Ascend910-{chip}" for chip in real)
    return pod(name, len(chips), node="n1", chips=chips, annotations={REAL: names}, **more)


@pytest.mark.parametrize("command", [("topo",), ("doctor", "--cluster")], ids=lambda command: command[0])
def test_the_cluster_is_checked_by_the_allocators_settings(command: tuple[str, ...], tmp_path: Path) -> None:
    path, config = tmp_path / "objects.json", tmp_path / "allocator.yaml"
    path.write_text(json.dumps(as_list(node("n1"), report("n1"))))
    config.write_text("max_report_age_s: 60\n")

    def told(*flags: str) -> str:
        at = ("--now", "2026-01-01T00:02:00Z")
        return CliRunner().invoke(app, [*command, "-f", str(path), *at, *flags]).stdout

    assert "StaleReport" not in told()
    assert "StaleReport" in told("--set", "max-report-age-s=60")
    assert "StaleReport" in told("--config", str(config))
    assert "StaleReport" not in told("--config", str(config), "--set", "max-report-age-s=600")


def test_a_healthy_cluster_has_no_problems(tmp_path: Path) -> None:
    status, diagnosis = doctor(tmp_path, node("n1"), report("n1"), claimed("a", [0, 1], [0, 1]))
    assert (status, diagnosis["node"], diagnosis["problems"], diagnosis["warnings"]) == (0, "cluster", 0, 0)
    assert [each["check"] for each in diagnosis["findings"]] == [
        "nodes",
        "programs",
        "reports",
        "kubelets",
        "chips",
        "faults",
        "pods",
        "waiting",
    ]


def test_a_cluster_without_chips_is_a_problem(tmp_path: Path) -> None:
    assert bad(tmp_path) == [("nodes", "problem", "no node reports chips")]


def test_unusable_nodes_are_reported_by_reason(tmp_path: Path) -> None:
    nodes = [node(f"n{number}") for number in range(5)]
    found = bad(tmp_path, *nodes, *(report(f"n{number}", at_s=1) for number in range(5)), node("n9", cordoned=True))
    assert found[0][:2] == ("nodes", "problem")
    assert found[0][2].startswith("StaleReport: ")
    assert found[0][2].endswith("(5: n0, n1, n2 and 2 more)")
    assert found[1] == ("nodes", "warning", "NodeCordoned: node n9 is cordoned")


def test_a_report_with_a_timestamp_in_the_future_is_a_warning(tmp_path: Path) -> None:
    found = bad(tmp_path, node("n1"), node("n2"), report("n1"), report("n2", at_s=1_767_225_600 + 331))
    assert found == [("reports", "warning", "timestamp in the future: n2")]


def test_missing_old_and_orphaned_reports_are_warnings(tmp_path: Path) -> None:
    now_s = 1_767_225_600
    found = bad(tmp_path, node("n1"), node("n2"), report("n2", at_s=now_s - 331), report("gone"))
    assert found == [
        ("reports", "warning", "no ConfigMap mindx-dl-deviceinfo-<node>: n1"),
        ("reports", "warning", "older than 330 s, but renewed every 300 s: n2"),
        ("reports", "warning", "the node does not exist: kube-system/mindx-dl-deviceinfo-gone"),
    ]


def test_a_node_without_base_device_infos_is_a_problem(tmp_path: Path) -> None:
    unnamed = node("n1")
    unnamed["metadata"]["annotations"] = {}
    assert bad(tmp_path, unnamed, report("n1")) == []
    told = encode_report(DeviceReport(0x7F, 0, 0, update_time_s=1_767_225_600))
    (found,) = bad(tmp_path, unnamed, {**report("n1"), "data": told})
    assert found[:2] == ("nodes", "problem")
    assert found[2].startswith("NoBaseDeviceInfos: node n1 has no annotation baseDeviceInfos")


def of_kubelets(folder: Path, *objects: Json) -> list[tuple[str, str, str]]:
    return [each for each in bad(folder, *objects) if each[0] == "kubelets"]


def test_a_kubelet_that_offers_unhealthy_chips_is_a_warning(tmp_path: Path) -> None:
    (found,) = of_kubelets(tmp_path, node("n1", chips=8), report("n1", unhealthy=0b1))
    assert found == ("kubelets", "warning", "the kubelet of node n1 offers 8 chips, but 7 are healthy")


def test_what_pods_have_of_an_unhealthy_chip_is_offered_and_no_problem(tmp_path: Path) -> None:
    whole = claimed("a", [0, 1], [0, 1])
    # The plugin keeps it healthy until its pod has ended; MindCluster's does not.
    for chips in (8, 7):
        assert of_kubelets(tmp_path, node("n1", chips=chips), report("n1", unhealthy=0b1), whole) == []
    (found,) = of_kubelets(tmp_path, node("n1", chips=6), report("n1", unhealthy=0b1), whole)
    assert found[2].endswith("offers 6 chips, but 7 are healthy, and 1 of unhealthy chips in use")
    made = core_pod("p", 5, "0-vir05_1c_16g", node="n2", real="Ascend910-5c.1cpu.16g-100-0_1")
    chip = core_pod("q", 20, "1", node="n2", real="Ascend910-1")
    assert of_kubelets(tmp_path, core_node("n2", 145), report("n2", unhealthy=0b1), made, chip) == []
    assert of_kubelets(tmp_path, core_node("n2", 145), report("n2", unhealthy=0b11), made, chip) == []
    (found,) = of_kubelets(tmp_path, core_node("n2", 150), report("n2", unhealthy=0b1), made)
    assert found[2].endswith("offers 150 AI cores, but 140 are healthy, and 5 of unhealthy chips in use")
    part = parts("v", "1", node="n3", annotations={f"{RESOURCE}-2c": "Ascend910-2c-100-0", REAL: "Ascend910-2c-100-0"})
    cut = cut_node("n3", chips=1, allocatable=1)
    assert of_kubelets(tmp_path, cut, report("n3", unhealthy=0b1), part) == []
    (found,) = of_kubelets(tmp_path, cut, report("n3", unhealthy=0b1))
    assert found[2].endswith("offers 1 vNPU Ascend910-2c, but 0 are healthy")


@pytest.mark.parametrize(
    ("odd", "severity", "said"),
    [
        (pod("a", 2, node="n1", chips=[0, 1]), "problem", "pod default/a on node n1 runs, but has no"),
        (claimed("a", [0, 1], [2, 3]), "warning", "was given Ascend910-2,Ascend910-3 instead of Ascend910-0,"),
    ],
)
def test_pods_with_other_chips_than_recorded_are_reported(odd: Json, severity: str, said: str, tmp_path: Path) -> None:
    (found,) = bad(tmp_path, node("n1"), report("n1"), odd)
    assert found[:2] == ("pods", severity)
    assert said in found[2]


def test_a_pod_that_is_still_starting_is_not_reported(tmp_path: Path) -> None:
    starting = pod("a", 2, node="n1", chips=[0, 1], phase="Pending")
    assert bad(tmp_path, node("n1"), report("n1"), starting) == []


def test_pods_bound_without_chips_or_with_invalid_ones_are_problems(tmp_path: Path) -> None:
    senseless = pod("b", 1, node="n1", annotations={"huawei.com/Ascend910": "Ascend910-x"})
    found = bad(tmp_path, node("n1"), report("n1"), pod("a", 2, node="n1"), senseless)
    told = [sentence for check, severity, sentence in found if (check, severity) == ("pods", "problem")]
    assert told[0] == "pod default/a on node n1 was bound without chips"
    assert "'Ascend910-x' is not a chip name" in told[1]


def test_pods_over_mindclusters_plugin_are_claimed_later(tmp_path: Path) -> None:
    labels = {"name": "ascend-device-plugin-ds"}
    plugin = pod("plugin", None, node="n1", namespace="kube-system", labels=labels)
    vnpu = pod("cut", None, node="n1")
    vnpu["spec"]["containers"][0]["resources"]["limits"] = {f"{RESOURCE}-2c": "1"}
    ours = pod("written", None, node="n1", annotations={f"{RESOURCE}-2c": "Ascend910-2c-101-0", "predicate-time": "7"})
    ours["spec"]["containers"][0]["resources"]["limits"] = {f"{RESOURCE}-2c": "1"}
    starting = pod("starting", 1, node="n1", chips=[7])
    found = [
        each for each in bad(tmp_path, cut_node("n1"), report("n1"), plugin, vnpu, ours, starting) if each[0] == "pods"
    ]
    assert found == [
        ("pods", "warning", "pod default/cut on node n1: MindCluster's device plugin does not say which vNPU it has"),
        ("pods", "warning", "pod default/starting on node n1 runs, but has no annotation huawei.com/AscendReal yet"),
    ]


def test_a_chip_that_two_pods_hold_is_a_problem(tmp_path: Path) -> None:
    status, diagnosis = doctor(tmp_path, node("n1"), report("n1"), claimed("a", [3], [3]), claimed("b", [2, 3], [2, 3]))
    told = [each["sentence"] for each in diagnosis["findings"] if each["check"] == "chips"]
    assert (status, told) == (1, ["Ascend910-3 of node n1: held by default/a and default/b"])


def test_waiting_pods_are_reported_with_the_command_that_explains(tmp_path: Path) -> None:
    full = claimed("a", list(range(8)), list(range(8)))
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), full, pod("b", 1), pod("c", 1))
    last = diagnosis["findings"][-1]
    assert (last["sentence"], last["advice"]) == (
        "NotEnoughChips: default/b and 1 more wait for chips",
        "npuctl explain default/b",
    )


def test_a_pod_that_its_scheduler_refuses_although_there_are_chips_is_reported(tmp_path: Path) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu."}
    refused = [pod("a", 1), pod("b", 1)]
    for each in refused:
        each["status"] = {"phase": "Pending", "conditions": [condition]}
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), *refused)
    last = diagnosis["findings"][-1]
    assert last["severity"] == "warning"
    assert last["sentence"] == "default/a and 1 more wait, though there are chips: Insufficient cpu."


async def test_a_running_allocator_is_ready(tmp_path: Path) -> None:
    async with ApiServer() as server, running(server, tmp_path) as allocator:
        found = await check_allocator(allocator.app.extender_address)
        assert [(each.severity, each.sentence.partition(" ")[2]) for each in found][:1] == [("ok", "is ready")]
        assert all(each.severity == "ok" for each in found)


@pytest.mark.parametrize("clients", [False, True], ids=["open", "for known clients"])
async def test_an_allocators_certificate_is_verified_by_the_given_authority(*, clients: bool, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    stranger = Authority(tmp_path, "stranger").cert
    settings = settings_for(tmp_path, authority)
    if not clients:
        del settings["client_ca_file"], settings["client_names"]
    async with ApiServer() as server, running(server, tmp_path, **settings) as allocator:
        address = f"127.0.0.1:{allocator.app.probe_address.rpartition(':')[2]}"
        for typed in (address, f"https://{address}/"):
            found = await check_allocator(typed, authority.cert)
            assert found[0].sentence == f"https://{address} is ready"
            assert [each.severity for each in found] == ["ok"]
        for wrong in (None, stranger):
            (found_wrong,) = await check_allocator(f"https://{address}", wrong)
            assert found_wrong.sentence.startswith(f"the certificate of https://{address} is not trusted: ")
            assert "--allocator-ca" in found_wrong.advice
        (plain,) = await check_allocator(address)
        assert "https://" in plain.advice


def test_an_authority_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), report("n1"))))
    (tmp_path / "none.crt").write_text("no certificate")
    for name in ("none.crt", "missing.crt"):
        flags = ("--allocator", "127.0.0.1:1", "--allocator-ca", str(tmp_path / name))
        done = CliRunner().invoke(app, ["doctor", "--cluster", "-f", str(path), "--now", NOW, *flags])
        assert done.exit_code == 2
        assert done.stderr.startswith(f"npuctl: --allocator-ca: {tmp_path / name} can't be used: ")


async def test_an_allocator_that_is_not_ready_is_a_problem(tmp_path: Path) -> None:
    async with ApiServer() as server:
        server.fail_next("GET", "/nodes", 500, times=1000)
        async with running(server, tmp_path, synced=False) as allocator:
            (found,) = await check_allocator(f"http://{allocator.app.extender_address}/")
    assert found.severity == "problem"
    assert "waiting for nodes" in found.sentence


async def test_an_address_without_an_allocator_is_a_problem() -> None:
    async with ApiServer() as server:
        (away,) = await check_allocator("http://127.0.0.1:1")
        (other,) = await check_allocator(server.url)
    assert "http://127.0.0.1:1 does not answer like an allocator" in away.sentence
    assert other.severity == "problem"


async def test_a_quiet_watch_is_a_warning() -> None:
    async def page(_request: web.Request) -> web.Response:
        return web.Response(text="ascend_allocator_snapshot_age_seconds 500\n")

    http = web.Application()
    http.router.add_get("/{page}", page)
    async with serve_http(http, "127.0.0.1:0") as address:
        found = await check_allocator(address)
    assert [each.severity for each in found] == ["ok", "warning"]
    assert "has received nothing from the API server for 500 s" in found[1].sentence


@pytest.mark.parametrize(
    "flags",
    [
        ("--cluster", "--driver", "dcmi"),
        ("--cluster", "--allocator-ca", "a"),
        ("--now", NOW),
        ("--context", "c"),
        ("--allocator", "a"),
        ("--allocator-ca", "a"),
        ("--set", "a=b"),
    ],
)
def test_flags_of_the_other_mode_are_refused(flags: tuple[str, ...]) -> None:
    assert CliRunner().invoke(app, ["doctor", *flags]).exit_code == 2


def test_devices_that_are_not_whole_chips_are_a_warning(tmp_path: Path) -> None:
    cut = node("n1", chips=7)
    infos = json.loads(cut["metadata"]["annotations"]["baseDeviceInfos"])
    del infos["Ascend910-7"]
    cut["metadata"]["annotations"]["baseDeviceInfos"] = json.dumps({**infos, "Ascend910-x-100-7": {}})
    ((check, severity, sentence),) = bad(tmp_path, cut, report("n1"))
    assert (check, severity) == ("nodes", "warning")
    assert sentence == "node n1 names devices that are neither chips nor vNPUs, and are ignored: Ascend910-x-100-7"


def test_an_id_of_a_super_pod_that_is_no_number_is_a_problem(tmp_path: Path) -> None:
    odd, fine, none, other = (super_pod_node(0, index) for index in range(4))
    for each in (odd, other):
        each["metadata"]["annotations"]["superPodID"] = "seven"
    odd["metadata"]["labels"]["huawei.com/topotree.superpodid"] = "x"
    none["metadata"]["annotations"]["superPodID"] = "-2"
    found = [each for each in bad(tmp_path, odd, fine, none, other) if each[0] == "SuperPods"]
    assert found == [
        ("SuperPods", "problem", "annotation superPodID='seven' of nodes 0-0, 0-3 is no number"),
        ("SuperPods", "problem", "label huawei.com/topotree.superpodid='x' of node 0-0 is no number"),
        (
            "SuperPods",
            "warning",
            "in no SuperPod, though their label accelerator-type says that they are: 0-0, 0-2, 0-3",
        ),
    ]


def test_nodes_without_super_pods_are_not_checked_for_them(tmp_path: Path) -> None:
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"))
    assert not [each for each in diagnosis["findings"] if each["check"] == "SuperPods"]


def test_a_pod_whose_request_is_invalid_waits_for_its_author(tmp_path: Path) -> None:
    diagnosis = doctor(tmp_path, node("n1"), report("n1"), pod("bad", 3), pod("many", 16))[1]
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "waiting"]
    assert found["sentence"] == (
        "InvalidRequest: default/bad and 1 more wait for their authors, who have to change them"
    )
    assert (found["reason"], found["pods"]) == ("InvalidRequest", ["default/bad", "default/many"])
