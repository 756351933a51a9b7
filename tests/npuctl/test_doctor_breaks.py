"""``npuctl doctor --cluster`` is red where users suffer, and nothing is green beside it: each test breaks something."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from allocator.observe.expiry import REMIND_S
from allocator.settings import Settings
from ascend.annotations import DISTRIBUTED
from ascend.chips import RESOURCE
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.faults import FaultTime, chip_fault
from ascend.kube.client import KubeClient
from ascend.kube.objects import EVENTS, NODES
from device_plugin.publish.node_conditions import NOT_READY, Lack
from npuctl.cli import app
from npuctl.doctor.cluster import check_cluster
from npuctl.doctor.details import Details, read_details
from npuctl.doctor.schedulers import check_schedulers
from npuctl.doctor.told import ADVICE, EventSighting, check_told
from npuctl.reading.manifests import read_manifests
from sandbox.apiserver import ApiServer
from tests.failure_rows import ROOT
from tests.npuctl.manifests import Json, as_list, node, pod, report
from tests.npuctl.test_doctor_cluster import NOW, claimed, doctor

NOW_S = 1_767_225_600


def finding(folder: Path, *objects: Json, check: str) -> dict[str, Any]:
    """The first finding of a check, which has to be a problem, and nothing else of that check is green."""
    status, diagnosis = doctor(folder, *objects)
    own = [each for each in diagnosis["findings"] if each["check"] == check]
    assert [each["severity"] for each in own if each["severity"] == "ok"] == []
    assert (status, own[0]["severity"]) == (1, "problem")
    found: dict[str, Any] = own[0]
    return found


def faulty_report(
    name: str, *, level: str = "SeparateNPU", codes: tuple[str, ...] = ("80E18402",), chip: int = 0
) -> Json:
    fault = chip_fault(chip_id=chip, level=level, codes=dict.fromkeys(codes, FaultTime(0, level)))
    made = DeviceReport(0xFE, 1 << chip, 0, NOW_S, faults=(fault,) if codes else ())
    return {**report(name), "data": encode_report(made)}


def rejected(name: str, reason: str, *, scheduler: str = "default-scheduler", at: str = "2026-01-01T00:00:00Z") -> Json:
    made = pod(name, 1, node="n1", phase="Failed", creationTimestamp=at)
    message = f"Allocate failed due to rpc error: code = Unknown desc = {reason}: pod {name} …, which is unexpected"
    made["status"] |= {"reason": "UnexpectedAdmissionError", "message": message}
    made["spec"]["schedulerName"] = scheduler
    return made


def test_failed_pods_that_nobody_placed_tell_of_a_scheduler_that_does_not_ask(tmp_path: Path) -> None:
    pods = [rejected(f"web-{number}", "NotPlaced") for number in range(5)]
    found = finding(tmp_path, node("n1"), report("n1"), *pods, check="schedulers")
    assert found["sentence"] == (
        "NotPlaced: 5 pods (default/web-0, default/web-1, default/web-2 and 2 more) failed at their nodes, because "
        "scheduler default-scheduler did not ask the allocator"
    )
    assert found["advice"].startswith("connect it by the extender (docs/kube-scheduler.md): its --config was never")
    assert (found["reason"], len(found["pods"])) == ("NotPlaced", 5)


def test_a_scheduler_that_is_not_served_is_named(tmp_path: Path) -> None:
    found = finding(tmp_path, node("n1"), report("n1"), rejected("a", "NotPlaced", scheduler="own"), check="schedulers")
    assert (
        "give the pods a schedulerName that the allocator serves (default-scheduler), or serve own" in found["advice"]
    )


def test_failed_pods_of_a_scheduler_that_asks_now_are_only_left_over(tmp_path: Path) -> None:
    later = claimed("later", [0], [0])
    later["spec"]["schedulerName"] = "default-scheduler"
    later["metadata"]["annotations"]["predicate-time"] = str((NOW_S + 60) * 10**9)
    status, diagnosis = doctor(tmp_path, node("n1"), report("n1"), rejected("a", "NotPlaced"), later)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "schedulers"]
    assert (status, found["severity"]) == (0, "warning")
    assert "failed before scheduler default-scheduler asked the allocator, which it does now" in found["sentence"]


def test_pods_that_failed_for_other_reasons_are_counted_by_these(tmp_path: Path) -> None:
    pods = [rejected("a", "ChipUnhealthy"), rejected("b", "ChipUnhealthy"), rejected("c", "NoSuchPod")]
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), *pods)
    said = {each["reason"]: each["pods"] for each in diagnosis["findings"] if each["check"] == "schedulers"}
    assert said == {"ChipUnhealthy": ["default/a", "default/b"], "NoSuchPod": ["default/c"]}


def waiting(name: str, *conditions: Json, at: str = "2025-12-31T23:00:00Z") -> Json:
    made = pod(name, 1, creationTimestamp=at, phase="Pending")
    made["status"]["conditions"] = list(conditions)
    made["spec"]["schedulerName"] = "second"
    return made


def test_pods_that_no_scheduler_has_tried_are_a_problem(tmp_path: Path) -> None:
    found = finding(tmp_path, node("n1"), report("n1"), waiting("old"), waiting("new", at=NOW), check="schedulers")
    assert found["sentence"] == "scheduler second has not tried pod default/old, for 120 s or more"


def test_a_scheduler_that_tries_other_pods_is_only_slow(tmp_path: Path) -> None:
    tried = waiting("tried", {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}, at=NOW)
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), waiting("old"), tried)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "schedulers"]
    assert (found["severity"], found["pods"]) == ("warning", ["default/old"])


VOLCANO_RUNS: Json = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "v", "namespace": "volcano-system", "labels": {"app": "volcano-scheduler"}},
    "spec": {"nodeName": "n1", "containers": [{"name": "v", "image": "v"}]},
    "status": {"phase": "Running"},
}


@pytest.mark.parametrize("shown", ["program", "placed pod"])
def test_volcano_need_not_have_tried_the_pods_of_a_job(shown: str, tmp_path: Path) -> None:
    queued, placed = waiting("queued"), claimed("placed", [0], [0])
    queued["spec"]["schedulerName"] = placed["spec"]["schedulerName"] = "volcano"
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), queued, VOLCANO_RUNS if shown == "program" else placed)
    assert [each for each in diagnosis["findings"] if each["check"] == "schedulers"] == []


def test_pods_that_wait_for_a_scheduler_that_nobody_serves_are_told(tmp_path: Path) -> None:
    queued = waiting("queued")
    queued["spec"]["schedulerName"] = "volcano"
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1"), queued)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "schedulers"]
    assert (found["severity"], found["pods"]) == ("warning", ["default/queued"])
    assert found["sentence"] == "no scheduler volcano is known to ask the allocator for pod default/queued"
    assert "that the allocator serves (default-scheduler), or serve volcano" in found["advice"]


def test_a_scheduler_that_gets_no_answer_is_a_problem(tmp_path: Path) -> None:
    message = "Post https://allocator/scheduler/filter: dial tcp 10.0.0.1:8080: connect: connection refused"
    condition = {"type": "PodScheduled", "status": "False", "reason": "SchedulerError", "message": message}
    found = finding(tmp_path, node("n1"), report("n1"), waiting("a", condition), check="schedulers")
    assert found["sentence"] == f"scheduler second can't schedule pod default/a: {message}"
    assert "check that an allocator leads" in found["advice"]


@pytest.mark.parametrize(
    ("line", "placed", "told"),
    [("kube-scheduler", False, True), ("kube-scheduler --config=/a", False, False), ("kube-scheduler", True, False)],
)
def test_a_kube_scheduler_without_a_configuration_is_a_problem_before_pods_fail(
    line: str,
    placed: bool,  # noqa: FBT001 - a parameter
    told: bool,  # noqa: FBT001 - a parameter
    tmp_path: Path,
) -> None:
    own = claimed("a", [0], [0])
    own["spec"]["schedulerName"] = "default-scheduler"
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(*([own] if placed else []))))
    pods = read_manifests([str(path)]).objects.pods
    found = list(check_schedulers(pods, ["default-scheduler"], (line,), NOW_S))
    assert [each.severity for each in found] == ["problem"] * told
    # The chart's own kube-scheduler is enough, as long as the pods name it.
    assert not list(check_schedulers([], ["default-scheduler", "ascend-scheduler"], (line,), NOW_S))


def test_pods_on_broken_chips_are_a_problem_with_the_meaning_of_the_code(tmp_path: Path) -> None:
    found = finding(tmp_path, node("n1"), faulty_report("n1"), claimed("a", [0, 1], [0, 1]), check="faults")
    assert found["sentence"].startswith("pod default/a runs on n1/Ascend910-0, which has a fault: 80E18402 (64 rows")
    assert found["advice"] == "end the pods on it; the chip has to be repaired or replaced"
    assert (found["nodes"], found["pods"], found["codes"]) == (["n1"], ["default/a"], ["80E18402"])


def test_a_pod_on_a_broken_chip_is_explained_with_its_fault(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), faulty_report("n1"), claimed("a", [0, 1], [0, 1]))))
    arguments = ["explain", "a", "-f", str(path), "--now", NOW]
    answer = json.loads(CliRunner().invoke(app, [*arguments, "-o", "json"]).stdout)
    (broken,) = answer["broken"]
    assert (answer["state"], broken["chip"], broken["codes"]) == ("placed", "Ascend910-0", ["80E18402"])
    printed = CliRunner().invoke(app, arguments).stdout
    assert "broken:\n  Ascend910-0: 80E18402 (64 rows of its memory" in printed


def test_broken_chips_that_nobody_uses_are_warnings_by_code(tmp_path: Path) -> None:
    nodes = [node("n1", chips=7), node("n2", chips=7)]
    status, diagnosis = doctor(tmp_path, *nodes, faulty_report("n1"), faulty_report("n2"))
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "faults"]
    assert (status, found["severity"], found["nodes"]) == (0, "warning", ["n1", "n2"])
    assert found["sentence"].startswith("2 chips (n1/Ascend910-0, n2/Ascend910-0) have a fault: 80E18402 (")


def test_a_pod_may_go_on_with_a_chip_that_only_bars_new_use(tmp_path: Path) -> None:
    made = faulty_report("n1", level="PreSeparateNPU")
    fault = chip_fault(chip_id=0, level="PreSeparateNPU", codes={"8F180220": FaultTime(0, "PreSeparateNPU")})
    made["data"] = encode_report(DeviceReport(0xFE, 0, 0, NOW_S, faults=(fault,)))
    status, diagnosis = doctor(tmp_path, node("n1"), made, claimed("a", [0], [0]))
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "faults"]
    assert (status, found["severity"], found["pods"]) == (0, "warning", ["default/a"])


def test_a_node_whose_driver_is_silent_is_a_problem(tmp_path: Path) -> None:
    silent = {**report("n1"), "data": encode_report(DeviceReport(0, 0xF0, 0, NOW_S))}
    holder = claimed("a", [0, 1, 2, 3], [0, 1, 2, 3])
    found = finding(tmp_path, node("n1", chips=4), silent, holder, check="faults")
    assert (
        found["sentence"]
        == "the driver does not answer on node n1, or did not until now: no chip there is given to a pod"
    )
    # One chip that can't be read is not the driver, also if all others are in use.
    one = {**report("n1"), "data": encode_report(DeviceReport(0xFE, 1, 0, NOW_S))}
    for held in ([], [claimed("a", list(range(1, 8)), list(range(1, 8)))]):
        status, diagnosis = doctor(tmp_path, node("n1", chips=7), one, *held)
        (said,) = [each for each in diagnosis["findings"] if each["check"] == "faults"]
        assert (status, said["severity"]) == (0, "warning")
        assert "unhealthy without a fault code: the driver does not answer for it" in said["sentence"]


def test_nothing_green_is_said_of_reports_beside_a_stale_one(tmp_path: Path) -> None:
    _, diagnosis = doctor(tmp_path, node("n1"), report("n1", at_s=NOW_S - 3600), node("n2"), report("n2"))
    severities = {each["check"]: each["severity"] for each in diagnosis["findings"]}
    assert severities["nodes"] == "problem"
    assert "reports" not in severities


def test_nothing_green_is_said_of_kubelets_beside_one_that_offers_nothing(tmp_path: Path) -> None:
    silent = node("n1")
    del silent["status"]["allocatable"][RESOURCE]
    _, diagnosis = doctor(tmp_path, silent, report("n1"), node("n2"), report("n2"))
    checks = [each["check"] for each in diagnosis["findings"]]
    assert "kubelets" not in checks


def event(reason: str, note: str, *, at: int, on: str = "n1", kind: str = "Node") -> Json:
    namespace, _, name = on.rpartition("/")
    return {
        "metadata": {"generateName": "event-", "namespace": "default"},
        "reason": reason,
        "note": note,
        "regarding": {"kind": kind, "name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "eventTime": f"2026-01-01T00:00:{at:02}.000000Z",
        "reportingController": "test",
        "reportingInstance": "test",
        "action": "Test",
        "type": "Warning",
    }


async def test_events_tell_of_what_no_object_says(tmp_path: Path) -> None:
    made = [
        event("NPUResetFailed", "the reset of Ascend910-0 failed", at=1),
        event("NPUResetFailed", "the reset of Ascend910-3 failed", at=2, on="n2"),
        event("NPURunsWithoutChips", "the pod runs without its chips", at=1, on="default/a", kind="Pod"),
        event("NPURunsWithoutChips", "the pod runs without its chips", at=2, on="default/gone", kind="Pod"),
        event("CertificateExpires", "the certificate of the allocator expired at …: renew it", at=3, kind="Lease"),
    ]
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as client:
            for each in made:
                await client.create(EVENTS, each, "default")
            details = await read_details(client)
    assert details.expiring == (("the certificate of the allocator expired at …: renew it", NOW_S + 3.0),)
    assert not details.unread
    holder = claimed("a", [0], [0])
    holder["metadata"]["uid"] = "uid-a"
    path.write_text(json.dumps(as_list(node("n1"), report("n1"), holder)))
    objects = read_manifests([str(path)]).objects
    found = await check_cluster(objects, details, Settings(), NOW_S * 10**9)
    said = [(each.check, each.severity, each.sentence) for each in found if each.check in {"certificates", "events"}]
    assert said == [
        ("certificates", "problem", "the certificate of the allocator expired at …"),
        (
            "events",
            "warning",
            "NPUResetFailed on node n2, within the last hour: the reset of Ascend910-3 failed; also on n1",
        ),
        (
            "events",
            "problem",
            "NPURunsWithoutChips on pod default/a, within the last hour: the pod runs without its chips",
        ),
    ]


def unready(name: str, reason: str, message: str, *, chips: int = 8) -> Json:
    made = node(name, chips=chips)
    condition = {"type": NOT_READY, "status": "True", "reason": reason, "message": message}
    made["status"].setdefault("conditions", []).append(condition)
    return made


def test_a_device_plugin_that_lacks_something_is_told_with_what_to_do(tmp_path: Path) -> None:
    nodes = [unready("n1", "Report", "report: immutable"), unready("n2", "Report", "report: immutable")]
    nodes.append(unready("n3", "Driver", "driver: dcmi_init: -8005"))
    status, diagnosis = doctor(tmp_path, *nodes, *(report(f"n{number}") for number in (1, 2, 3)))
    found = [each for each in diagnosis["findings"] if each["check"] == "plugins"]
    assert [(each["severity"], each["sentence"], each["nodes"]) for each in found] == [
        ("problem", "the device plugin of node n3 is not ready: driver: dcmi_init: -8005", ["n3"]),
        ("problem", "the device plugin of 2 nodes (n1, n2) is not ready: report: immutable", ["n1", "n2"]),
    ]
    assert (status, all(each["advice"] for each in found)) == (1, True)


REGISTERED = [Lack.REPORT, Lack.CLAIMS, Lack.KUBELETS_PODS, Lack.RIGHTS]
"""What a device plugin can lack that is registered at its kubelet."""


@pytest.mark.parametrize("lack", Lack)
@pytest.mark.parametrize(("heartbeat_s", "chips"), [(NOW_S, 8), (NOW_S - 331, 8), (NOW_S, 0)])
def test_a_plugin_that_was_killed_is_not_told_by_what_it_lacked_then(
    lack: Lack, heartbeat_s: int, chips: int, tmp_path: Path
) -> None:
    broken = unready("n1", lack.reason, f"{lack}: why", chips=chips)
    at = datetime.fromtimestamp(heartbeat_s, UTC)
    broken["status"]["conditions"][-1]["lastHeartbeatTime"] = f"{at:%Y-%m-%dT%H:%M:%SZ}"
    found = finding(tmp_path, broken, report("n1"), check="plugins")
    is_over = heartbeat_s < NOW_S or (not chips and lack in REGISTERED)
    state = "does not run, or can't reach the API server; it was" if is_over else "is"
    assert found["sentence"] == f"the device plugin of node n1 {state} not ready: {lack}: why"
    assert found["advice"].startswith("start it") == is_over


@pytest.mark.parametrize("lack", REGISTERED)
def test_a_plugin_without_a_healthy_chip_is_told_by_what_it_lacks(lack: Lack, tmp_path: Path) -> None:
    broken = unready("n1", lack.reason, f"{lack}: why", chips=0)
    broken["status"]["capacity"] = {RESOURCE: "8"}
    found = finding(tmp_path, broken, report("n1", unhealthy=0xFF), check="plugins")
    assert found["sentence"] == f"the device plugin of node n1 is not ready: {lack}: why"


async def test_heartbeats_are_read_of_the_nodes_whose_plugins_are_not_ready(tmp_path: Path) -> None:
    broken = unready("n1", "Claims", "claims: why")
    broken["status"]["conditions"][-1]["lastHeartbeatTime"] = "2026-01-01T00:00:00Z"
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as client:
            for each in (broken, node("n2")):
                await client.create(NODES, each)
            details = await read_details(client, await client.list_objects(NODES))
    assert (details.heartbeats, details.unread) == ({"n1": NOW_S}, {})


async def test_a_certificate_counts_until_its_event_is_repeated_no_longer(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), report("n1"))))
    objects, details = read_manifests([str(path)]).objects, Details(expiring=(("a expires at …: renew it", NOW_S),))
    for after_s, told in ((0, True), (REMIND_S + 60, True), (331, False)):
        found = await check_cluster(objects, details, Settings(), int((NOW_S + after_s) * 10**9))
        assert ("certificates" in {each.check for each in found}) == told


def test_what_people_write_of_faults_and_has_no_effect_is_a_warning(tmp_path: Path) -> None:
    edited, rules = report("n1"), report("n1")
    edited["data"]["ManuallySeparateNPU"] = "Ascend910-5,Ascend910-77,chip"
    rules |= {"metadata": {"name": "mindx-dl-fault-config", "namespace": "kube-system"}}
    rules["data"] = {"faultCode.json": "{"}
    status, diagnosis = doctor(tmp_path, node("n1"), edited, rules)
    said = [each["sentence"] for each in diagnosis["findings"] if each["check"] == "faults"]
    assert status == 0
    assert said[-1] == "ManuallySeparateNPU of node n1 names what is no chip of it: Ascend910-77, chip"
    assert said[-2].startswith("the site's fault rules are invalid: ")


@pytest.mark.parametrize("lack", Lack)
def test_everything_that_a_device_plugin_can_lack_has_an_advice(lack: Lack, tmp_path: Path) -> None:
    _, diagnosis = doctor(tmp_path, unready("n1", lack.reason, "m"), report("n1"))
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "plugins"]
    assert found["advice"] not in {"", "npuctl doctor there says more"}


@pytest.mark.parametrize(("peers", "severity"), [(("n1", "n1"), "warning"), (("n1", "n2"), "problem"), ((), "warning")])
def test_a_network_port_is_a_problem_for_jobs_on_several_nodes(
    peers: tuple[str, ...], severity: str, tmp_path: Path
) -> None:
    fault = chip_fault(
        chip_id=0, level="PreSeparateNPU", codes={"81078603": FaultTime(0, "PreSeparateNPU")}, network=True
    )
    broken = {**report("n1"), "data": encode_report(DeviceReport(0xFF, 0, 1, NOW_S, faults=(fault,)))}
    pods = [claimed(f"a-{number}", [number], [number]) for number, _ in enumerate(peers)]
    for made, where in zip(pods, peers, strict=True):
        made["spec"]["nodeName"] = where
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "job", "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
    status, diagnosis = doctor(tmp_path, node("n1"), broken, node("n2"), report("n2"), *pods)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "faults"]
    assert (status, found["severity"], found["codes"]) == (int(severity == "problem"), severity, ["81078603"])
    assert "n1/Ascend910-0" in found["sentence"]
    assert "a fault of its network port: 81078603" in found["sentence"]


def test_a_network_port_is_no_problem_for_pods_that_work_alone_on_several_nodes(tmp_path: Path) -> None:
    broken = {**report("n1"), "data": encode_report(DeviceReport(0xFF, 0, 1, NOW_S))}
    pods = [claimed(f"web-{number}", [0], [0]) for number in range(2)]
    for made, where in zip(pods, ("n1", "n2"), strict=True):
        made["spec"]["nodeName"] = where
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
        made["metadata"]["ownerReferences"] = [owner]
        made["metadata"]["annotations"][DISTRIBUTED] = "false"  # as the allocator writes it
    status, diagnosis = doctor(tmp_path, node("n1"), broken, node("n2"), report("n2"), *pods)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "faults"]
    assert (status, found["severity"]) == (0, "warning")


def test_of_an_object_the_last_event_is_told() -> None:
    told = [
        EventSighting("NPUResetFailed", note, "Node", name, name)
        for note, name in (("a", "n1"), ("b", "n2"), ("c", "n1"))
    ]
    (found,) = check_told(told, ())
    assert found.sentence == "NPUResetFailed on node n1, within the last hour: c; also on n2"


def changed(*path: str, value: Any, **made: Any) -> list[Json]:
    """A node with a report, of which one value was changed."""
    target = parent = node("n1", **made)
    for key in path[:-1]:
        parent = parent.setdefault(key, {})
    parent[path[-1]] = value
    return [target, report("n1")]


BREAKS: list[tuple[str, list[Json], int]] = [
    ("NodeNotReady", [node("n1", ready=False), report("n1")], 0),
    ("NodeCordoned", [node("n1", cordoned=True), report("n1")], 0),
    ("ResourceNotOffered", changed("status", "allocatable", value={"cpu": "64"}), 1),
    ("InconsistentCapacity", changed("status", "capacity", value={RESOURCE: "4"}), 1),
    ("ProductMismatch", changed("metadata", "labels", "accelerator-type", value="module-a3-16"), 1),
    ("NodeUnhealthy", changed("metadata", "annotations", "NodeHealthyStatus", value="UnHealthy"), 1),
    ("InvalidReport", changed("metadata", "annotations", "baseDeviceInfos", value="{"), 1),
    ("InvalidReport", [node("n1"), {**report("n1"), "data": {"DeviceInfoCfg": "edited"}}], 1),
    ("StaleReport", [node("n1"), report("n1", at_s=NOW_S - 3600)], 1),
    ("StaleReport", [node("n1"), report("n1", at_s=0)], 1),
    ("UnreadablePod", [node("n1"), report("n1"), pod("a", 1, node="n1", annotations={RESOURCE: "chip"})], 1),
    ("UnreadablePod", [node("n1"), report("n1"), pod("a", 1, node="n1")], 1),
]


@pytest.mark.parametrize(
    ("reason", "objects", "status"), BREAKS, ids=[f"{each[0]}-{at}" for at, each in enumerate(BREAKS)]
)
def test_a_node_that_can_not_be_used_is_told_by_its_reason(
    reason: str, objects: list[Json], status: int, tmp_path: Path
) -> None:
    exit_status, diagnosis = doctor(tmp_path, *objects)
    (found,) = [each for each in diagnosis["findings"] if each["check"] == "nodes"]
    assert (exit_status, found["severity"]) == (status, "problem" if status else "warning")
    assert (found["reason"], found["nodes"]) == (reason, ["n1"])
    assert found["advice"]


@pytest.mark.parametrize("reason", ADVICE)
def test_every_event_that_doctor_tells_is_posted_by_a_program(reason: str) -> None:
    sources = (
        path.read_text() for program in ("allocator", "device_plugin") for path in (ROOT / program).rglob("*.py")
    )
    assert any(f'"{reason}"' in source for source in sources)
