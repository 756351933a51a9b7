"""``npuctl explain``: why a pod waits, by node, and what would help."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE, chip_set
from ascend.deviceinfo import DeviceReport, encode_report
from ascend.faults import chip_fault
from ascend.jobs.table import JOB_KINDS
from npuctl.cli import app
from npuctl.plan.placement import Planning
from npuctl.reading.manifests import read_manifests
from npuctl.reading.source import Source
from sandbox.apiserver import ApiServer
from tests.npuctl.manifests import (
    Json,
    as_list,
    cut_node,
    member,
    node,
    parts,
    pod,
    pod_group,
    report,
    super_pod_node,
)

NOW = "2026-01-01T00:00:00Z"


def explain(folder: Path, *objects: Json, name: str = "train", flags: Sequence[str] = ()) -> dict[str, Any]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    done = CliRunner().invoke(app, ["explain", name, "-f", str(path), "--now", NOW, "-o", "json", *flags])
    answer: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (3 if answer["state"] == "waits" else 0), done.stderr
    return answer


def people(folder: Path, *objects: Json, name: str = "train") -> str:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*objects)))
    return CliRunner().invoke(app, ["explain", name, "-f", str(path), "--now", NOW]).stdout


def helps(answer: dict[str, Any]) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(each["kind"], each["node"], tuple(each["targets"])) for each in answer["remedies"]]


def in_zone(name: str) -> Json:
    """A pod whose node affinity no node here satisfies."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "Exists"}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    made = pod(name, 8)
    made["spec"]["affinity"] = {"nodeAffinity": required}
    return made


def gated_member(name: str, group: str) -> Json:
    manifest = member(name, group)
    manifest["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return manifest


def test_nodes_of_one_reason_and_several_sentences_show_whose_it_is(tmp_path: Path) -> None:
    held = pod("full", 8, node="n2", chips=range(8))
    some = pod("some", 2, node="n1", chips=[0, 1])
    printed = people(tmp_path, node("n1"), node("n2"), held, some, pod("train", 8))
    assert "2 nodes NotEnoughChips: n1, for example: 8 chips requested, 6 free of 8 healthy" in printed
    alike = people(tmp_path, node("n1"), some, pod("train", 8))
    assert "1 node NotEnoughChips: 8 chips requested, 6 free of 8 healthy" in alike


def test_a_pod_with_two_vnpus_waits_because_it_may_have_one(tmp_path: Path) -> None:
    answer = explain(tmp_path, node("n1"), parts("train", "2"))
    assert (answer["state"], answer["reason"], answer["remedies"]) == ("waits", "InvalidRequest", [])
    printed = people(tmp_path, node("n1"), parts("train", "2"))
    assert printed.startswith("pod default/train requests 2 vNPUs Ascend910-2c and waits: InvalidRequest: pod default")
    for other in (pod("train", 0),):
        assert explain(tmp_path, node("n1"), other)["state"] == "none"


def test_a_pod_waits_for_the_vnpu_of_another_pod_of_its_job(tmp_path: Path) -> None:
    def of_job(rank: int, **more: Any) -> Json:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "idx", "uid": "u", "controller": True}
        index = {"batch.kubernetes.io/job-completion-index": str(rank)}
        return parts(f"idx-{rank}", "1", ownerReferences=[owner], labels=index, **more)

    written = {f"{RESOURCE}-2c": "Ascend910-2c-100-0"}
    runs = of_job(0, node="n1", annotations=written)
    answer = explain(tmp_path, cut_node("n1"), runs, of_job(1), of_job(2), name="pod/idx-1")
    assert answer["advice"] == [
        "wait for the end of default/idx-0: it comes first, unless the allocator's setting vnpus_per_job allows more"
    ]
    both = explain(tmp_path, cut_node("n1"), parts("idx-0", "2"), name="pod/idx-0")
    assert both["advice"] == ["change the pod or its job: nothing on any node helps"]
    assert "wait for the end of default/idx-0: it comes first" in people(
        tmp_path, cut_node("n1"), runs, of_job(1), name="job/idx"
    )


def test_pods_whose_end_would_make_room_are_named(tmp_path: Path) -> None:
    left, right = pod("left", 1, node="n1", chips=[1]), pod("right", 2, node="n1", chips=[4, 5])
    answer = explain(tmp_path, node("n1"), left, right, pod("train", 4))
    assert (answer["state"], answer["reason"]) == ("waits", "RingTooSmall")
    assert helps(answer) == [("end", "n1", ("default/left",)), ("end", "n1", ("default/right",))]


def limited(name: str, on: str, started: str, limit_s: int, *chips: int) -> Json:
    made = pod(name, len(chips), node=on, chips=chips)
    made["spec"]["activeDeadlineSeconds"] = limit_s
    made["status"] |= {"phase": "Running", "startTime": started}
    return made


def waits_until(answer: dict[str, Any]) -> list[str]:
    return [sentence for sentence in answer["advice"] if sentence.startswith("wait: ")]


def test_time_limits_of_pods_say_when_a_pod_fits_at_the_latest(tmp_path: Path) -> None:
    runs = [
        limited("early", "n1", "2025-12-31T23:00:00Z", 2 * 3600, 0, 1),
        limited("late", "n1", "2025-12-31T23:00:00Z", 5 * 3600, 4),
        limited("later", "n2", "2025-12-31T23:00:00Z", 9 * 3600, 0),
    ]
    cluster = [node("n1"), node("n2"), pod("stays", 1, node="n2", chips=(4,)), *runs]
    (sentence,) = waits_until(explain(tmp_path, *cluster, pod("train", 8)))
    assert "fits by 2026-01-01T04:00:00Z at the latest: 2 pods have reached activeDeadlineSeconds then" in sentence
    assert sentence in people(tmp_path, *cluster, pod("train", 8)).replace("\n", " ")
    gang = [pod_group("both", 2), member("train", "both", 8), member("train-1", "both", 8)]
    assert waits_until(explain(tmp_path, *cluster, *gang)) == []  # a pod without a limit has to end as well
    (sentence,) = waits_until(explain(tmp_path, *cluster[:2], *runs, *gang))
    assert "fits by 2026-01-01T08:00:00Z at the latest: 3 pods have" in sentence
    assert waits_until(explain(tmp_path, *cluster[:2], *runs, *gang, name="train-1")) == [sentence]  # behind its peer
    older = pod("older", 8, creationTimestamp="2025-12-31T00:00:00Z")
    (sentence,) = waits_until(explain(tmp_path, *cluster, older, pod("train", 8)))
    assert "at the latest, unless those before it take the chips: " in sentence
    unlimited = [node("n1"), pod("stays", 1, node="n1", chips=(4,))]
    assert waits_until(explain(tmp_path, *unlimited, pod("train", 8))) == []


def test_a_chip_whose_recovery_would_make_room_is_named(tmp_path: Path) -> None:
    right = pod("right", 4, node="n1", chips=range(4, 8))
    answer = explain(tmp_path, node("n1", chips=7), report("n1", unhealthy=0b10), right, pod("train", 4))
    assert helps(answer) == [("end", "n1", ("default/right",)), ("repair", "n1", ("Ascend910-1",))]


def test_a_separating_chip_helps_only_after_its_recovery(tmp_path: Path) -> None:
    fault = chip_fault(chip_id=1, level="PreSeparateNPU", codes={})
    faulty = DeviceReport(0xFF, 0, 0, update_time_s=1_767_225_600, faults=(fault,))
    answer = explain(tmp_path, node("n1"), {**report("n1"), "data": encode_report(faulty)}, pod("train", 8))
    assert helps(answer) == [("repair", "n1", ("Ascend910-1",))]


def test_chips_that_must_all_recover_are_named_together(tmp_path: Path) -> None:
    answer = explain(tmp_path, node("n1", chips=5), report("n1", unhealthy=0b111), pod("train", 8))
    assert helps(answer) == [("repair", "n1", ("Ascend910-0", "Ascend910-1", "Ascend910-2"))]


def test_a_faulty_chip_in_use_is_offered_all_the_time(tmp_path: Path) -> None:
    full = node("n1", chips=8)
    full["status"]["capacity"] = {"huawei.com/Ascend910": "8"}
    held = pod("old", 1, node="n1", chips=[4])
    answer = explain(tmp_path, full, report("n1", unhealthy=0b1_0000), held, pod("train", 8))
    assert helps(answer) == []
    idle = {**full, "status": {**full["status"], "allocatable": {"huawei.com/Ascend910": "7"}}}
    answer = explain(tmp_path, idle, report("n1", unhealthy=0b1_0001), held, pod("train", 4))
    assert helps(answer) == [("repair", "n1", ("Ascend910-0",))]


def test_pods_that_must_all_end_are_named_together(tmp_path: Path) -> None:
    holders = [pod(f"h{chip}", 1, node="n1", chips=[chip]) for chip in (0, 5)]
    answer = explain(tmp_path, node("n1"), *holders, pod("train", 8))
    assert helps(answer) == [("end", "n1", ("default/h0", "default/h5"))]


@pytest.mark.parametrize(
    ("changed", "reason", "kind"),
    [
        ([node("n1", cordoned=True)], "NodeCordoned", "uncordon"),
        ([node("n1", ready=False)], "NodeNotReady", "ready"),
        ([node("n1", chips=0)], "ResourceNotOffered", "offer"),
        ([node("n1"), report("n1", at_s=1)], "StaleReport", "report"),
        ([node("n1"), {**report("n1"), "data": {"DeviceInfoCfg": "{}"}}], "InvalidReport", "report"),
    ],
)
def test_what_would_make_a_node_usable_is_named(changed: list[Json], reason: str, kind: str, tmp_path: Path) -> None:
    answer = explain(tmp_path, *changed, pod("train", 4))
    assert answer["reason"] == reason
    assert helps(answer) == [(kind, "n1", ())]


def test_a_pod_with_unreadable_chips_is_named(tmp_path: Path) -> None:
    answer = explain(tmp_path, node("n1"), pod("unclear", 2, node="n1"), pod("train", 2))
    assert answer["reason"] == "UnreadablePod"
    assert helps(answer) == [("end", "n1", ("default/unclear",))]


def test_nodes_that_a_selector_excludes_get_no_remedies(tmp_path: Path) -> None:
    wanted = pod("train", 8, selector={"zone": "a"})
    holder = pod("holder", 1, node="n1", chips=[0])
    answer = explain(tmp_path, node("n1"), node("n2"), holder, wanted)
    assert (answer["state"], answer["reason"], helps(answer)) == ("waits", "NodeSelectorMismatch", [])
    answer = explain(tmp_path, node("n1"), node("n2"), node("n3", zone="a"), holder, wanted)
    assert (answer["state"], [each["node"] for each in answer["candidates"]]) == ("fits", ["n3"])


def test_a_request_that_fits_no_server_has_no_remedy(tmp_path: Path) -> None:
    answer = explain(tmp_path, node("n1"), pod("train", 3))
    assert (answer["reason"], helps(answer)) == ("InvalidRequest", [])
    assert "change the pod's request" in people(tmp_path, node("n1"), pod("train", 3))


@pytest.mark.parametrize(
    ("objects", "reason", "advice"),
    [
        (
            [node("n1"), pod_group("train", 3), member("train", "train")],
            "GangIncomplete",
            "create 2 missing pods of job default/train",
        ),
        (
            [node("n1"), pod_group("train", 2), member("train", "train")],
            "GangIncomplete",
            "create 1 missing pod of job default/train",
        ),
        (
            [node("n1"), pod_group("train", 2), member("train", "train"), gated_member("peer", "train")],
            "GangIncomplete",
            "wait until the scheduling gates of 1 pod are removed (job default/train)",
        ),
        (
            [node("n1"), pod_group("train", 4), member("train", "train"), gated_member("peer", "train")],
            "GangIncomplete",
            "create 2 missing pods and wait until the scheduling gates of 1 pod are removed (job default/train)",
        ),
        (
            [node("n1"), member("train", "gang")],
            "GroupMissing",
            "create the PodGroup.scheduling.volcano.sh default/gang, or correct the name in the pod",
        ),
        (
            [
                *(node("n1"), node("n2", kind="module-910b-8")),
                *(pod_group("train", 2), member("train", "train"), member("peer", "train")),
            ],
            "ProductNotNamed",
            "set the node selector accelerator-type in the pods of job default/train, or default_product",
        ),
        (
            [node("n1"), node("n2", kind="module"), pod("train", 8, selector={"zone": "a", "rack": "1"})],
            "NodeSelectorMismatch",
            "label a node that has room with rack=1,zone=a, or change the pod's node selector",
        ),
        (
            [node("n1"), in_zone("train")],
            "NodeSelectorMismatch",
            "label a node that has room with what that requires, or change the pod's required node affinity",
        ),
    ],
    ids=["pods", "pod", "gated", "pods-and-gated", "group", "product", "selector", "affinity"],
)
def test_an_obstacle_outside_the_nodes_gets_advice(
    objects: list[Json], reason: str, advice: str, tmp_path: Path
) -> None:
    answer = explain(tmp_path, *objects)
    assert (answer["reason"], answer["advice"]) == (reason, [advice])
    printed = people(tmp_path, *objects).split("what would help:\n")[1]
    assert printed == f"  {advice}\n"


def test_the_end_of_a_peer_is_not_advised(tmp_path: Path) -> None:
    peer = member("peer", "train", node="n1", chips=range(8))
    other = pod("other", 8, node="n2", chips=range(8))
    group = pod_group("train", 2)
    answer = explain(tmp_path, node("n1"), node("n2"), group, peer, other, member("train", "train"))
    assert helps(answer) == [("end", "n2", ("default/other",))]


def test_a_label_is_advised_only_if_nothing_else_helps(tmp_path: Path) -> None:
    wanted = pod("train", 8, selector={"zone": "a"})
    answer = explain(tmp_path, node("n1"), node("n2", zone="a", ready=False), wanted)
    assert (helps(answer), answer["advice"]) == ([("ready", "n2", ())], [])
    answer = explain(tmp_path, node("n1"), node("n2", zone="a", chips=0, ready=False), wanted)
    assert answer["remedies"] == []
    printed = people(tmp_path, node("n1"), node("n2", zone="a", chips=0, ready=False), wanted)
    assert "nothing that was tried on 1 node: " in printed
    assert "label a node that has room with zone=a" in printed


def test_a_pod_that_is_being_deleted_waits_for_nothing(tmp_path: Path) -> None:
    going = pod("train", 8, deletionTimestamp=NOW)
    objects = [node("n1", ready=False), going]
    answer = explain(tmp_path, *objects)
    assert (answer["state"], answer["reason"], answer["remedies"]) == ("terminating", "", [])
    assert people(tmp_path, *objects) == "pod default/train is being deleted: no scheduler binds it any more\n"
    holder = pod("train", 2, node="n1", chips=[4, 5], deletionTimestamp=NOW)
    assert explain(tmp_path, node("n1"), holder)["state"] == "placed"


@settings(max_examples=40, deadline=None)
@given(
    held=st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=4), max_size=4),
    sick=st.sets(st.integers(0, 7), max_size=2),
    request=st.sampled_from([1, 2, 4, 8]),
)
def test_every_remedy_makes_the_pod_fit(
    tmp_path_factory: pytest.TempPathFactory, held: list[set[int]], sick: set[int], request: int
) -> None:
    folder = tmp_path_factory.mktemp("explain")
    taken: set[int] = set()
    holders = []
    for number, chips in enumerate(held):
        own = chips - taken - sick
        taken |= own
        if own:
            holders.append(pod(f"h{number}", len(own), node="n1", chips=sorted(own)))
    ill = chip_set(sick)
    answer = explain(
        folder, node("n1", chips=8 - len(sick)), report("n1", unhealthy=ill), *holders, pod("train", request)
    )
    for each in answer["remedies"]:
        ended = [holder for holder in holders if f"default/{holder['metadata']['name']}" not in each["targets"]]
        cured = ill & ~chip_set(int(name[10:]) for name in each["targets"] if each["kind"] == "repair")
        after = [node("n1", chips=8 - cured.bit_count()), report("n1", unhealthy=cured), *ended, pod("train", request)]
        path = folder / "after.json"
        path.write_text(json.dumps(as_list(*after)))
        source = Source.of(files=[str(path)], now=NOW)
        planning = Planning(read_manifests(source.files).objects, source.settings, source.now_ns)
        assert not asyncio.run(planning.rest()).pending, each


def test_a_pod_that_fits_gets_its_best_nodes(tmp_path: Path) -> None:
    busy = pod("busy", 4, node="n2", chips=range(4))
    waiting = pod("train", 4)
    waiting["status"] = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: 2 tainted"}]}
    answer = explain(tmp_path, node("n1"), node("n2"), busy, waiting)
    assert (answer["state"], [each["node"] for each in answer["candidates"]]) == ("fits", ["n2", "n1"])
    printed = people(tmp_path, node("n1"), node("n2"), busy, waiting)
    assert "fits on 2 nodes now" in printed
    assert "its scheduler says: 0/2 nodes: 2 tainted" in printed


def test_placed_finished_and_chipless_pods_are_described(tmp_path: Path) -> None:
    placed = pod("train", 2, node="n1", chips=[4, 5])
    assert "is on node n1 with chips 4-5" in people(tmp_path, placed)
    assert "no annotation says which chips" in people(tmp_path, pod("train", 2, node="n1"))
    rejected = pod("train", 2, node="n1", phase="Failed")
    rejected["status"] |= {"reason": "UnexpectedAdmissionError", "message": "ChipHeld: Ascend910-0 is held"}
    assert "UnexpectedAdmissionError: ChipHeld: Ascend910-0 is held" in people(tmp_path, rejected)
    assert "requests no chips" in people(tmp_path, pod("train", None))


def test_a_pod_of_a_gang_gets_the_remedies_of_its_job(tmp_path: Path) -> None:
    busy = pod("busy", 8, node="n2", chips=range(8))
    gang = [
        node("n1"),
        report("n1"),
        node("n2"),
        busy,
        pod_group("train", 2),
        member("train", "train"),
        member("other", "train"),
    ]
    answer = explain(tmp_path, *gang)
    assert (answer["state"], answer["gang"], answer["job"]) == ("waits", True, "default/train")
    assert helps(answer) == [("end", "n2", ("default/busy",))]
    assert "job default/train is placed as a whole" in people(tmp_path, *gang)
    incomplete = explain(tmp_path, node("n1"), pod_group("train", 2), member("train", "train"))
    assert (incomplete["reason"], helps(incomplete)) == ("GangIncomplete", [])


def test_the_pods_of_a_gang_that_fits_are_printed_once(tmp_path: Path) -> None:
    members = [member(f"big-{at}", "big") for at in range(3)]
    printed = people(tmp_path, *(node(f"n{at}") for at in range(3)), pod_group("big", 3), *members, name="job/big")
    assert (
        "pod default/big-0 requests 8 chips and fits on 3 nodes now, and so do the other pods of its gang; " in printed
    )
    assert printed.count("best nodes:") == 1
    assert "the same for 2 other pods: default/big-1, default/big-2" in printed


def test_more_nodes_are_not_advised_for_a_request_that_none_can_take(tmp_path: Path) -> None:
    printed = people(tmp_path, node("n1"), pod("train", 8, labels={"tor-affinity": "?"}))
    assert printed.split("what would help:\n")[1] == "  change the pod or its job: nothing on any node helps\n"


def test_nodes_are_grouped_by_reason(tmp_path: Path) -> None:
    printed = people(
        tmp_path, *(node(f"n{number}", ready=False) for number in range(5)), node("full", chips=1), pod("train", 4)
    )
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines[0].startswith("pod default/train requests 4 chips and waits: NoNodeFits: ")
    groups = lines[lines.index("why not:") + 1 :]
    assert groups[0] == "  5 nodes NodeNotReady: node n0 is not Ready"
    assert groups[1].endswith("n0, n1, n2 and 2 more")
    assert groups[2].startswith("  1 node  NoRoomAtKubelet: ")
    assert "  on node n0, once it is Ready" in lines


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("none",), "there is no pod default/none"),
        (("train", "-n", "team"), "there is no pod team/train; there is default/train"),
        (("default/train", "-n", "team"), "is not in the namespace team"),
    ],
)
def test_a_pod_that_does_not_exist_is_an_error(arguments: tuple[str, ...], printed: str, tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(pod("train", 1))))
    done = CliRunner().invoke(app, ["explain", *arguments, "-f", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert printed in done.stderr


async def test_a_live_cluster_is_read_in_the_namespace_of_the_context(tmp_path: Path) -> None:
    async with ApiServer() as server:
        for each in (node("n1", ready=False), pod("train", "2"), pod("train", "4", namespace="kube-public")):
            await server.create(each)
        path = tmp_path / "kubeconfig.json"
        document = server.kubeconfig()
        document["contexts"][0]["context"]["namespace"] = "kube-public"
        path.write_text(json.dumps(document))

        async def asked(*flags: str) -> str:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "npuctl.cli", "explain", "train", "--kubeconfig", str(path), *flags),
                stdout=asyncio.subprocess.PIPE,
            )
            out, _ = await process.communicate()
            assert process.returncode == 3
            return out.decode()

        assert "pod kube-public/train requests 4 chips and waits: NodeNotReady" in await asked()
        assert "pod default/train requests 2 chips and waits: NodeNotReady" in await asked("-n", "default")


@pytest.mark.parametrize("current", [None, "", "gone", "sandbox"])
def test_a_named_context_gives_the_namespace_whatever_is_current(current: str | None, tmp_path: Path) -> None:
    document = ApiServer(port=1).kubeconfig()
    team = {"name": "team", "context": {"cluster": "sandbox", "user": "sandbox", "namespace": "kube-public"}}
    document["contexts"].append(team)
    document["current-context"] = current
    if current is None:
        del document["current-context"]
    path = tmp_path / "kubeconfig.json"
    path.write_text(json.dumps(document))

    def meant(context: str | None) -> str:
        return Source.of(kubeconfig=str(path), context=context).namespace()

    assert meant("team") == "kube-public"
    assert meant("sandbox") == "default"
    assert meant("none of these") == "default"
    assert meant(None) == "default"


def gated(name: str, *gates: str, count: int = 4) -> Json:
    manifest = pod(name, count)
    manifest["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    condition = {"type": "PodScheduled", "status": "False", "message": "Scheduling is blocked due to gates"}
    manifest["status"] = {"conditions": [condition]}
    return manifest


def test_a_gated_pod_names_its_gates(tmp_path: Path) -> None:
    gates = ("kueue.x-k8s.io/admission", "example.com/quota")
    answer = explain(tmp_path, node("n1"), gated("train", *gates))
    assert (answer["state"], answer["gates"]) == ("fits", list(gates))
    printed = people(tmp_path, node("n1"), gated("train", *gates))
    assert printed.splitlines()[-1] == (
        "it is gated: no scheduler looks at it before somebody removes its scheduling gates: "
        "kueue.x-k8s.io/admission, example.com/quota"
    )
    assert "its scheduler" not in printed
    waits = people(tmp_path, node("n1", ready=False), gated("train", gates[0]))
    assert "train requests 4 chips and waits: NodeNotReady" in waits
    assert waits.splitlines()[-1].endswith("removes its scheduling gate: kueue.x-k8s.io/admission")


def test_a_gated_pod_of_a_gang_is_judged_as_if_its_job_had_no_gates(tmp_path: Path) -> None:
    manifests = [gated(f"train-{number}", "kueue.x-k8s.io/admission", count=8) for number in range(2)]
    for manifest in manifests:
        manifest["metadata"]["annotations"] = {
            "huawei.com/schedule_minAvailable": "2",
            "scheduling.k8s.io/group-name": "t",
        }
    first = manifests[0]["metadata"]["name"]
    answer = explain(tmp_path, node("n1"), node("n2"), *manifests, name=first)
    assert (answer["state"], answer["gates"]) == ("fits", ["kueue.x-k8s.io/admission"])
    del manifests[0]["spec"]["schedulingGates"]
    answer = explain(tmp_path, node("n1"), node("n2"), *manifests, name=first)
    assert (answer["state"], answer["reason"]) == ("waits", "GangIncomplete")
    assert answer["message"].endswith("1 has scheduling gates")


def owned(name: str, kind: str, owner: str, count: int | None = 8, **more: Any) -> Json:
    reference = {"apiVersion": "x/v1", "kind": kind, "name": owner, "uid": f"uid-{owner}", "controller": True}
    return pod(name, count, ownerReferences=[reference], **more)


@pytest.mark.parametrize(
    ("argument", "made"),
    [
        ("pod/train", pod("train", 8)),
        ("pods/train", pod("train", 8)),
        ("po/train", pod("train", 8)),
        ("default/train", pod("train", 8)),
        ("job/train", pod("train", 8, namespace="job")),
    ],
)
def test_a_pod_may_be_named_as_with_kubectl(argument: str, made: Json, tmp_path: Path) -> None:
    answer = explain(tmp_path, node("n1"), made, name=argument)
    assert (answer["name"], answer["state"]) == ("train", "fits")


@pytest.mark.parametrize(
    ("argument", "members"),
    [
        ("job/big", [owned(f"big-{at}", "Job", "big") for at in range(2)]),
        ("jobs/big", [owned(f"big-{at}", "Job", "big") for at in range(2)]),
        ("job.batch/big", [owned(f"big-{at}", "Job", "big") for at in range(2)]),
        ("sts/big", [owned(f"big-{at}", "StatefulSet", "big") for at in range(2)]),
        ("job/big", [owned(f"big-{at}", "StatefulSet", "big") for at in range(2)]),
        ("replicaset/big", [owned(f"big-{at}", "ReplicaSet", "big") for at in range(2)]),
        ("deploy/big", [owned(f"a-{at}", "ReplicaSet", "big-77", labels={"pod-template-hash": "77"}) for at in (0, 1)]),
        ("pytorchjob/big", [owned(f"big-{at}", "PyTorchJob", "big") for at in range(2)]),
        ("jobset/big", [pod(f"big-{at}", 8, labels={"jobset.sigs.k8s.io/jobset-name": "big"}) for at in range(2)]),
        ("podgroup/big", [member(f"big-{at}", "big") for at in range(2)]),
        ("vcjob/big", [member(f"big-{at}", "big") for at in range(2)]),
    ],
)
def test_the_pods_of_a_job_are_explained(argument: str, members: list[Json], tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    others = [owned("other-0", "Job", "other"), owned("big-9", "Job", "big", namespace="team")]
    path.write_text(json.dumps(as_list(node("n1", ready=False), *members, *others)))
    done = CliRunner().invoke(app, ["explain", argument, "-f", str(path), "--now", NOW, "-o", "json"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["job"]) == (3, "default/big")
    assert [each["name"] for each in answer["pods"]] == sorted(each["metadata"]["name"] for each in members)
    assert {each["state"] for each in answer["pods"]} == {"waits"}


def test_pods_of_a_job_with_the_same_explanation_are_printed_once(tmp_path: Path) -> None:
    members = [owned(f"big-{at}", "Job", "big") for at in range(6)]
    placed = owned("big-7", "Job", "big", node="n1", chips=range(8))
    launcher = owned("launcher", "Job", "big", None)
    printed = people(tmp_path, node("n1"), *members, placed, launcher, name="job/big")
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines[0] == "job default/big, 7 pods: 6 waiting, 1 placed"
    assert [line.partition(":")[0] for line in lines if line.startswith("pod ")] == [
        "pod default/big-0 requests 8 chips and waits",
        "pod default/big-7 is on node n1 with chips 0-7",
    ]
    assert "the same for 5 other pods: default/big-1, default/big-2, default/big-3 and 2 more" in lines


@pytest.mark.parametrize(
    ("argument", "printed"),
    [
        ("job/none", "there are no pods of job default/none"),
        ("default/none", "there is no pod default/none"),
        ("team/train", "there is no pod team/train; there is default/train; team is neither a namespace with pods nor"),
        ("nokind/x", "there is no pod nokind/x; nokind is neither a namespace with pods nor a kind; kinds are pod, "),
        ("nokind/x", " ascendjob, cronjob, deployment, inferserviceset, job, jobset, leaderworkerset, "),
        ("job/", "'job/' has no name after the slash; give a pod as NAME, NAMESPACE/NAME or pod/NAME, and the"),
        ("default/", "'default/' has no name after the slash; "),
        ("/train", "'/train' has neither a kind nor a namespace before the slash; "),
        ("", "the name is empty; give a pod as "),
        ("job/default/train", "'job/default/train' has more than one slash; "),
        ("job/default/train", "with -n for its namespace"),
        ("deployment/none", "there are no pods of deployment default/none"),
        ("rc/none", "there are no pods of replicationcontroller default/none"),
        ("lws/none", "there are no pods of leaderworkerset default/none"),
    ],
)
def test_a_job_that_does_not_exist_says_what_is_accepted(argument: str, printed: str, tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(pod("train", 1))))
    done = CliRunner().invoke(app, ["explain", argument, "-f", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert printed in " ".join(done.stderr.split())


def test_an_argument_without_a_name_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["explain", "job/", "--kubeconfig", str(tmp_path / "none")])
    assert done.exit_code == 2
    assert "'job/' has no name after the slash" in done.stderr


def test_every_kind_of_job_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(pod("train", 1))))
    for kind in sorted({row.name.partition(".")[0] for row in JOB_KINDS if " " not in row.name} - {"", "Pod"}):
        done = CliRunner().invoke(app, ["explain", f"{kind}/none", "-f", str(path)])
        assert f"there are no pods of {kind.lower()} default/none" in done.stderr


def said(each: Json, message: str, reason: str = "Unschedulable") -> Json:
    """The pod after its scheduler has said this of it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return {**each, "status": {"phase": "Pending", "conditions": [condition]}}


STEPPED_BACK = "binding rejected: GangSteppedBack: job default/big releases its chips: 1 Binding waited for its other"
CPU = "0/3 nodes are available: 3 Insufficient cpu."


def members_that(*saying: tuple[str, str] | None, minimum: int) -> list[Json]:
    """Nodes with room for a gang, and its pods with what their scheduler says, a reason and a message, or nothing."""
    pods = [member(f"big-{at}", "big") for at in range(len(saying))]
    told = [said(each, message[1], message[0]) if message else each for each, message in zip(pods, saying, strict=True)]
    return [*(node(f"n{at}") for at in range(len(saying))), pod_group("big", minimum), *told]


HELD = ("SchedulerError", STEPPED_BACK)
REFUSED = ("Unschedulable", CPU)
LATER = ("Unschedulable", "0/3 nodes are available: 3 GangSteppedBack: job default/big waits.")
FITS_NOT = ("Unschedulable", "0/3 nodes are available: 3 GangDoesNotFit: job default/big: 2 pods fit.")


@pytest.mark.parametrize(
    ("saying", "minimum", "holdups"),
    [
        ([HELD, REFUSED, LATER], 3, ["pod default/big-1 was refused: 0/3 nodes are available: 3 Insufficient cpu"]),
        ([HELD, None, LATER], 3, ["pod default/big-1: its scheduler has not tried it, or tries it now"]),
        ([REFUSED] * 5, 5, ["pod default/big-0 was refused: 0/3 nodes are available: 3 Insufficient cpu"]),
        # The others are enough.
        ([HELD, REFUSED, LATER], 2, []),
        # Nothing is wrong yet, or the allocator itself has refused them.
        ([None, None, None], 3, []),
        ([FITS_NOT, FITS_NOT, FITS_NOT], 3, []),
    ],
)
def test_the_pod_that_keeps_its_gang_from_starting_is_named(
    saying: list[tuple[str, str] | None], minimum: int, holdups: list[str], tmp_path: Path
) -> None:
    objects = members_that(*saying, minimum=minimum)
    answer = explain(tmp_path, *objects, name="big-0")
    assert answer["state"] == ("waits" if any("refused" in each for each in holdups) else "fits")
    assert answer["holdups"][:1] == holdups
    printed = " ".join(people(tmp_path, *objects, name="big-0").split())
    assert ("what keeps its gang from starting:" in printed) is bool(holdups)
    assert all(each in printed for each in holdups)


def test_a_pod_behind_others_in_the_queue_is_told_of_them(tmp_path: Path) -> None:
    first = pod("first", 8, creationTimestamp="2026-01-01T00:00:00Z")
    train = pod("train", 4, creationTimestamp="2026-01-01T00:01:00Z")
    answer = explain(tmp_path, node("n1"), first, train)
    assert (answer["state"], answer["reason"], answer["fits_alone"]) == ("waits", "NotEnoughChips", 1)
    assert answer["ahead"] == [{"job": "default/first", "priority": 0, "pods": 1, "placed": 1, "chips": 8}]
    printed = people(tmp_path, node("n1"), first, train)
    assert "before it in the queue:\n  job default/first: 8 chips for 1 pod\n" in printed
    assert "without these it would fit on 1 node; behind them it does not" in printed
    assert explain(tmp_path, node("n1"), first, train, name="first")["state"] == "fits"


def test_a_pod_that_preempts_names_its_victims(tmp_path: Path) -> None:
    train = pod("train", 8)
    train["spec"]["priority"] = 10
    objects = node("n1"), pod("runs", 1, node="n1", chips=[0]), train
    answer = explain(tmp_path, *objects)
    assert (answer["state"], answer["node"], answer["preempts"]) == ("preempts", "n1", ["default/runs"])
    assert "it gets chips 0-7 of node n1 once default/runs ends, of lower priority" in " ".join(
        people(tmp_path, *objects).split()
    )


def owned_by_a_set(manifest: Json) -> Json:
    owner = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "train", "uid": "u", "controller": True}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def stateful_set(management: str) -> Json:
    metadata = {"name": "train", "namespace": "default", "uid": "u"}
    spec = {"replicas": 2, "podManagementPolicy": management}
    return {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": spec}


def test_an_invalid_request_is_said_once(tmp_path: Path) -> None:
    first = owned_by_a_set(pod("train-0", 8, annotations={MIN_AVAILABLE: "2"}))
    sentence = "StatefulSet default/train creates a pod only when the one before it is ready"
    first = said(first, f"0/2 nodes are available: 2 InvalidMinAvailable: pod default/train-0: {sentence}")
    objects = node("n1"), node("n2"), stateful_set("OrderedReady"), first
    printed = " ".join(people(tmp_path, *objects, name="train-0").split())
    assert printed.count(sentence) == 1
    assert "change the pod or its job: nothing on any node helps" in printed


def test_pods_that_fit_only_alone_are_advised_not_to_work_together(tmp_path: Path) -> None:
    placed = owned_by_a_set(pod("train-0", 4, node="n1", chips=range(4)))
    objects = node("n1"), stateful_set("Parallel"), placed, owned_by_a_set(pod("train-1", 4))
    answer = explain(tmp_path, *objects, name="train-1")
    assert answer["reason"] == "InvalidRequest"
    (advice,) = answer["advice"]
    assert advice.startswith(
        "it would fit if the pods of job default/train did not work together: if they don't, give "
    )
    assert advice.endswith('ascend-affinity.io/independent: "true"')


def test_pods_that_may_not_share_a_server_are_advised_to_share_or_not_to_work_together(tmp_path: Path) -> None:
    placed = owned_by_a_set(pod("train-0", 4, node="0-0", chips=range(4)))
    objects = super_pod_node(0, 0), stateful_set("Parallel"), placed, owned_by_a_set(pod("train-1", 4))
    answer = explain(tmp_path, *objects, name="train-1")
    (advice,) = answer["advice"]
    assert advice.endswith('independent: "true"; or name the product in the setting sharing_products')
