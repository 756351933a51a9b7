"""``npuctl plan`` of workloads that were not submitted yet: the pods that their controllers would create."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ascend.annotations import INDEPENDENT, MIN_AVAILABLE
from npuctl.cli import app
from npuctl.plan.workloads import expand
from npuctl.reading.manifests import read_manifests
from tests.npuctl.manifests import Json, as_list, core_node, cut_node, node, pod, super_pod_node

NOW = "2026-01-01T00:00:00Z"
RESOURCE = "huawei.com/Ascend910"


def template(chips: int | str | None = 8, **metadata: Any) -> Json:
    limits = {} if chips is None else {RESOURCE: chips}
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]}}


def workload(kind: str, version: str, spec: Json, **metadata: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "train", **metadata}, "spec": spec}


def job(chips: int | str | None = 8, **spec: Any) -> Json:
    return workload("Job", "batch/v1", {"template": template(chips), **spec})


def run(folder: Path, *objects: Json, nodes: int = 8, output: str = "json") -> tuple[int, str, str]:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*(node(f"n{number}") for number in range(nodes)), *objects)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW, "-o", output])
    return done.exit_code, done.stdout, done.stderr


def plan(folder: Path, *objects: Json, nodes: int = 8) -> dict[str, Any]:
    status, out, _ = run(folder, *objects, nodes=nodes)
    answer: dict[str, Any] = json.loads(out)
    assert status == (2 if answer["unplanned"] else 3 if answer["pending"] else 0)
    return answer


def names(answer: dict[str, Any]) -> list[str]:
    return [each["name"] for each in answer["pods"]]


def distributed(answer: dict[str, Any]) -> set[str]:
    return {each["annotations"]["distributed-job"] for each in answer["pods"]}


JOB_SET = {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": template(1)}}}]}
INDEXED = {"completionMode": "Indexed"}
RAY_CLUSTER = {
    "headGroupSpec": {"template": template(None)},
    "workerGroupSpecs": [
        {"groupName": "big", "replicas": 2, "template": template(8)},
        {"groupName": "hosts", "minReplicas": 1, "numOfHosts": 2, "template": template(4)},
        {"groupName": "off", "replicas": 3, "suspend": True, "template": template(8)},
    ],
}


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        ({"parallelism": 2, "completions": 2}, 2),
        ({"parallelism": 4, "completions": 2}, 2),
        ({"parallelism": 2, "completions": 4}, 2),
        ({"parallelism": 3}, 3),
        ({}, 1),
        ({"completions": 5}, 1),
    ],
)
def test_a_job_has_the_pods_that_run_at_the_same_time(tmp_path: Path, spec: Json, pods: int) -> None:
    answer = plan(tmp_path, job(**spec))
    assert names(answer) == [f"train-{number}" for number in range(pods)]
    assert {each["job"] for each in answer["pods"]} == {"default/train"}
    assert distributed(answer) == {"false"}


def test_an_indexed_job_is_distributed_and_its_pods_have_ranks(tmp_path: Path) -> None:
    answer = plan(tmp_path, job(**INDEXED, parallelism=3, completions=3))
    assert (names(answer), distributed(answer)) == (["train-0", "train-1", "train-2"], {"true"})
    (alone,) = plan(tmp_path, job(**INDEXED, parallelism=1, completions=1))["pods"]
    assert alone["annotations"]["distributed-job"] == "false"


def test_a_job_that_does_not_fit_is_pending(tmp_path: Path) -> None:
    answer = plan(tmp_path, job(parallelism=2, completions=2), nodes=1)
    assert (names(answer), [each["name"] for each in answer["pending"]]) == (["train-0"], ["train-1"])


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet"])
def test_the_replicas_of_a_deployment_work_alone(tmp_path: Path, kind: str) -> None:
    answer = plan(tmp_path, workload(kind, "apps/v1", {"replicas": 2, "template": template(2)}))
    assert (names(answer), distributed(answer)) == (["train-0", "train-1"], {"false"})
    assert len(plan(tmp_path, workload(kind, "apps/v1", {"template": template(2)}))["pods"]) == 1
    assert plan(tmp_path, workload(kind, "apps/v1", {"replicas": 0, "template": template(2)}))["pods"] == []


def test_a_stateful_set_is_one_job_in_the_order_of_its_ordinals(tmp_path: Path) -> None:
    spec = {"replicas": 2, "ordinals": {"start": 5}, "template": template(8)}
    answer = plan(tmp_path, workload("StatefulSet", "apps/v1", spec))
    assert (names(answer), distributed(answer)) == (["train-5", "train-6"], {"true"})


def test_the_jobs_of_a_job_set_are_one_job(tmp_path: Path) -> None:
    jobs = [
        {"name": "leader", "template": {"spec": {"template": template(None)}}},
        {
            "name": "worker",
            "replicas": 2,
            "template": {"spec": {"parallelism": 2, "completions": 2, "template": template()}},
        },
    ]
    answer = plan(tmp_path, workload("JobSet", "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": jobs}))
    assert names(answer) == ["train-worker-0-0", "train-worker-0-1", "train-worker-1-0", "train-worker-1-1"]
    assert ({each["job"] for each in answer["pods"]}, distributed(answer)) == ({"default/train"}, {"true"})


@pytest.mark.parametrize(
    ("kind", "version", "field", "first"),
    [
        ("PyTorchJob", "kubeflow.org/v1", "pytorchReplicaSpecs", "Master"),
        ("TFJob", "kubeflow.org/v1", "tfReplicaSpecs", "Chief"),
        ("MPIJob", "kubeflow.org/v1", "mpiReplicaSpecs", "Launcher"),
        ("MPIJob", "kubeflow.org/v2beta1", "mpiReplicaSpecs", "Launcher"),
        ("PaddleJob", "kubeflow.org/v1", "paddleReplicaSpecs", "Master"),
        ("AscendJob", "mindxdl.gitee.com/v1", "replicaSpecs", "Master"),
    ],
)
def test_the_replicas_of_a_kubeflow_job_are_one_job(
    tmp_path: Path, kind: str, version: str, field: str, first: str
) -> None:
    specs = {"Worker": {"replicas": 2, "template": template()}, first: {"template": template()}}
    answer = plan(tmp_path, workload(kind, version, {field: specs}))
    assert names(answer) == [f"train-{first.lower()}-0", "train-worker-0", "train-worker-1"]
    assert ({each["job"] for each in answer["pods"]}, distributed(answer)) == ({"default/train"}, {"true"})


@pytest.mark.parametrize(("minimum", "nodes", "planned"), [(None, 3, 3), (None, 2, 0), (2, 2, 2)])
def test_a_volcano_job_is_a_gang(tmp_path: Path, minimum: int | None, nodes: int, planned: int) -> None:
    tasks = [{"name": "master", "template": template()}, {"name": "worker", "replicas": 2, "template": template()}]
    spec = {"tasks": tasks, **({} if minimum is None else {"minAvailable": minimum})}
    answer = plan(tmp_path, workload("Job", "batch.volcano.sh/v1alpha1", spec), nodes=nodes)
    assert len(answer["pods"]) == planned
    every = [each["name"] for each in (*answer["pods"], *answer["pending"])]
    assert sorted(every) == ["train-master-0", "train-worker-0", "train-worker-1"]
    assert distributed(answer) <= {"true"}


def test_a_volcano_jobs_group_has_its_labels_and_annotations(tmp_path: Path) -> None:
    tasks = [{"name": "w", "replicas": 2, "template": template(4)}]
    made = workload(
        "Job", "batch.volcano.sh/v1alpha1", {"tasks": tasks}, annotations={"sp-fit": "b"}, labels={"app": "d"}
    )
    path = tmp_path / "job.json"
    path.write_text(json.dumps(made))
    reading = read_manifests([str(path)])
    (group,) = expand(reading.unsubmitted, reading.objects).objects.by_kind["PodGroup.scheduling.volcano.sh/v1beta1"]
    assert (group.metadata.annotations, group.metadata.labels) == ({"sp-fit": "b"}, {"app": "d"})


def test_a_volcano_job_with_a_required_network_topology_waits_for_hyper_nodes(tmp_path: Path) -> None:
    tasks = [{"name": "w", "replicas": 2, "template": template()}]
    spec = {"tasks": tasks, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    pending = plan(tmp_path, workload("Job", "batch.volcano.sh/v1alpha1", spec))["pending"]
    assert {pod["reason"] for pod in pending} == {"GangDoesNotFit"}
    assert all("network topology hard, highest tier 1): no HyperNode is known" in pod["message"] for pod in pending)


def test_a_leader_worker_set_has_a_leader_and_workers_in_each_group(tmp_path: Path) -> None:
    leader_worker = {"size": 3, "leaderTemplate": template(8), "workerTemplate": template(8)}
    spec = {"replicas": 2, "leaderWorkerTemplate": leader_worker}
    answer = plan(tmp_path, workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", spec))
    assert sorted(names(answer)) == [
        "train-0", "train-0-1", "train-0-2", "train-1", "train-1-1", "train-1-2",
    ]  # fmt: skip
    without = {**spec, "leaderWorkerTemplate": {**leader_worker, "leaderTemplate": template(None)}}
    answer = plan(tmp_path, workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", without))
    assert names(answer) == ["train-0-1", "train-0-2", "train-1-1", "train-1-2"]
    same = {"leaderWorkerTemplate": {"size": 1, "workerTemplate": template(8)}}
    assert names(plan(tmp_path, workload("LeaderWorkerSet", "leaderworkerset.x-k8s.io/v1", same))) == ["train-0"]


@pytest.mark.parametrize(
    ("kind", "spec", "cluster"),
    [
        ("RayCluster", RAY_CLUSTER, "train"),
        ("RayJob", {"rayClusterSpec": RAY_CLUSTER}, "train-raycluster-0"),
        ("RayService", {"rayClusterConfig": RAY_CLUSTER}, "train-raycluster-0"),
    ],
)
def test_a_ray_cluster_has_the_workers_of_each_group(tmp_path: Path, kind: str, spec: Json, cluster: str) -> None:
    answer = plan(tmp_path, workload(kind, "ray.io/v1", spec))
    every = [each["name"] for each in (*answer["pods"], *answer["pending"])]
    workers = ("big-worker-0", "big-worker-1", "hosts-worker-0", "hosts-worker-1")
    assert sorted(every) == [f"{cluster}-{each}" for each in workers]


def test_the_groups_of_a_ray_cluster_keep_to_their_limits(tmp_path: Path) -> None:
    limits = [{"replicas": 1, "minReplicas": 2}, {"replicas": 3, "maxReplicas": 1}, {"replicas": 1, "suspend": True}]
    groups = [{"groupName": f"w{at}", "template": template(8), **each} for at, each in enumerate(limits)]
    spec = {"headGroupSpec": {"template": template(None)}, "workerGroupSpecs": groups}
    answer = plan(tmp_path, workload("RayCluster", "ray.io/v1", spec), nodes=4)
    assert names(answer) == ["train-w0-worker-0", "train-w0-worker-1", "train-w1-worker-0"]


@pytest.mark.parametrize(("nodes", "planned"), [(4, 3), (2, 0)])
def test_the_minimum_of_a_volcano_job_is_that_of_its_tasks(tmp_path: Path, nodes: int, planned: int) -> None:
    tasks = [{"name": "ps", "template": template(8), "replicas": 1}]
    tasks += [{"name": "worker", "template": template(8), "replicas": 4, "minAvailable": 2}]
    answer = plan(tmp_path, workload("Job", "batch.volcano.sh/v1alpha1", {"tasks": tasks}), nodes=nodes)
    assert len(answer["pods"]) >= planned
    assert bool(answer["pods"]) is bool(planned)


@pytest.mark.parametrize(("nodes", "planned"), [(4, 4), (2, 0)])
def test_the_cluster_of_a_ray_job_is_a_gang_with_its_label(tmp_path: Path, nodes: int, planned: int) -> None:
    groups = [{"groupName": "w", "replicas": 3, "template": template(8)}]
    cluster = {"headGroupSpec": {"template": template(8)}, "workerGroupSpecs": groups}
    labels = {"ray.io/gang-scheduling-enabled": "true"}
    answer = plan(tmp_path, workload("RayJob", "ray.io/v1", {"rayClusterSpec": cluster}, labels=labels), nodes=nodes)
    assert (len(answer["pods"]), len(answer["pending"])) == (planned, 4 - planned)


@pytest.mark.parametrize("kind", ["RayJob", "RayService"])
def test_ray_clusters_get_the_annotations_of_what_creates_them(tmp_path: Path, kind: str) -> None:
    groups = [{"groupName": "w", "replicas": 3, "template": template(8)}]
    cluster = {"headGroupSpec": {"template": template(None)}, "workerGroupSpecs": groups}
    manifest = workload(kind, "ray.io/v1", {"rayClusterSpec": cluster, "rayClusterConfig": cluster})
    manifest["metadata"]["annotations"] = {"huawei.com/schedule_minAvailable": "4"}  # with the head
    answer = plan(tmp_path, manifest, nodes=2)
    assert (len(answer["pods"]), len(answer["pending"])) == (0, 3)


def test_a_ray_job_in_an_existing_cluster_has_no_pods_with_chips(tmp_path: Path) -> None:
    spec = {"clusterSelector": {"ray.io/cluster": "mine"}, "entrypoint": "python train.py"}
    code, _, err = run(tmp_path, workload("RayJob", "ray.io/v1", spec))
    assert (code, "RayJob default/train" in err) == (0, True)


def test_a_pod_with_chips_that_submits_a_ray_job_is_planned(tmp_path: Path) -> None:
    spec = {"rayClusterSpec": RAY_CLUSTER, "submitterPodTemplate": template(1)}
    answer = plan(tmp_path, workload("RayJob", "ray.io/v1", spec))
    assert "train-0" in names(answer)


@pytest.mark.parametrize(("kind", "field"), [("RayJob", "rayClusterSpec"), ("RayService", "rayClusterConfig")])
def test_a_suspended_ray_cluster_has_no_pods(tmp_path: Path, kind: str, field: str) -> None:
    answer = plan(tmp_path, workload(kind, "ray.io/v1", {field: {**RAY_CLUSTER, "suspend": True}}))
    assert [each["message"] for each in answer["unplanned"]] == ["it is suspended, so its controller creates no pods"]


def test_a_cron_job_is_planned_as_one_of_its_jobs(tmp_path: Path) -> None:
    spec = {"schedule": "0 3 * * *", "jobTemplate": {"spec": {"parallelism": 2, "template": template(4)}}}
    assert names(plan(tmp_path, workload("CronJob", "batch/v1", spec))) == ["train-0-0", "train-0-1"]


def test_an_object_with_only_a_generated_name_gets_a_number(tmp_path: Path) -> None:
    jobs = [job(8), job(8)]
    single = pod("x", 1)
    for each in (*jobs, single):
        each["metadata"] = {"generateName": "try-"}
    assert sorted(names(plan(tmp_path, *jobs, single))) == ["try-0", "try-0-0", "try-1-0"]


def test_a_workload_with_other_devices_is_no_success(tmp_path: Path) -> None:
    other = template(None)
    other["spec"]["containers"][0]["resources"] = {"limits": {"huawei.com/Ascend310P": 1}}
    (unplanned,) = plan(tmp_path, workload("Deployment", "apps/v1", {"template": other}))["unplanned"]
    assert (unplanned["kind"], unplanned["name"]) == ("Pod", "train-0")


def test_labels_annotations_and_namespace_of_the_template_are_on_the_pods(tmp_path: Path) -> None:
    marks = {"scheduling.k8s.io/group-name": "gang", "huawei.com/schedule_minAvailable": "2"}
    spec = {"replicas": 2, "template": template(8, annotations=marks)}
    answer = plan(tmp_path, workload("Deployment", "apps/v1", spec, namespace="team"))
    assert [(each["namespace"], each["job"]) for each in answer["pods"]] == [("team", "team/gang")] * 2


def test_workloads_with_the_same_name_have_different_pods(tmp_path: Path) -> None:
    deployment = workload("Deployment", "apps/v1", {"template": template(1)})
    answer = plan(tmp_path, pod("train-0", 1, uid="u"), job(1), deployment)
    assert sorted(names(answer)) == ["deployment-train-0", "job-train-0", "train-0"]
    assert len({(each["node"], *each["chips"]) for each in answer["pods"]}) == 3


@pytest.mark.parametrize("change", ["uid", "owned"])
def test_a_workload_of_a_cluster_is_not_expanded(tmp_path: Path, change: str) -> None:
    manifest = job(parallelism=2, completions=2)
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u", "controller": True}
    pods = [pod("train-x7f", 8, ownerReferences=[owner])] if change == "owned" else []
    if change == "uid":
        manifest["metadata"]["uid"] = "u"
    answer = plan(tmp_path, manifest, *pods)
    assert (names(answer), answer["unplanned"]) == ([each["metadata"]["name"] for each in pods], [])


@pytest.mark.parametrize(
    ("manifest", "kind", "owner"),
    [
        (workload("Deployment", "apps/v1", {"template": template(1)}), "ReplicaSet", "train-5d4f"),
        (workload("JobSet", "jobset.x-k8s.io/v1alpha2", JOB_SET), "Job", "train-w-0"),
        (workload("RayJob", "ray.io/v1", {"rayClusterSpec": RAY_CLUSTER}), "RayCluster", "train-raycluster-x2k9d"),
        (
            workload("CronJob", "batch/v1", {"jobTemplate": {"spec": {"template": template(1)}}}),
            "Job",
            "train-29371320",
        ),
    ],
)
def test_a_workload_whose_pods_have_another_owner_is_not_expanded(
    tmp_path: Path, manifest: Json, kind: str, owner: str
) -> None:
    owners = [{"apiVersion": "v1", "kind": kind, "name": owner, "uid": "u", "controller": True}]
    existing = pod("train-xyz", 1, ownerReferences=owners)
    answer = plan(tmp_path, manifest, existing)
    assert (names(answer), answer["unplanned"]) == (["train-xyz"], [])
    _, _, err = run(tmp_path, manifest, existing)
    assert f"the pods of {manifest['kind']} default/train exist already, so no others are planned" in err


def test_a_deployment_is_expanded_beside_one_whose_name_begins_alike(tmp_path: Path) -> None:
    owners = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "train-5d4f", "uid": "u", "controller": True}]
    deployment = workload("Deployment", "apps/v1", {"template": template(1)}, name="train-b")
    answer = plan(tmp_path, deployment, pod("train-5d4f-xyz", 1, ownerReferences=owners))
    assert sorted(names(answer)) == ["train-5d4f-xyz", "train-b-0"]


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (
            workload("DaemonSet", "apps/v1", {"template": template()}),
            "npuctl plan does not expand DaemonSet of apps/v1",
        ),
        (
            workload("JobSet", "jobset.x-k8s.io/v9", {"x": template()}),
            "npuctl plan does not expand JobSet of jobset.x-k8s.io/v9",
        ),
        (job(suspend=True), "it is suspended, so its controller creates no pods"),
    ],
)
def test_a_workload_that_can_not_be_planned_is_no_success(tmp_path: Path, manifest: Json, expected: str) -> None:
    (unplanned,) = plan(tmp_path, manifest)["unplanned"]
    assert unplanned == {"kind": manifest["kind"], "namespace": "default", "name": "train", "message": expected}
    status, out, _ = run(tmp_path, manifest, output="table")
    assert (status, out) == (2, f"{manifest['kind']} default/train requests chips, but was not planned: {expected}\n")


def test_a_workload_that_waits_for_kueue_is_planned_as_if_it_were_admitted(tmp_path: Path) -> None:
    queued = job(4, suspend=True)
    queued["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "users"}
    assert names(plan(tmp_path, queued)) == ["train-0"]


def test_a_workload_without_chips_is_no_failure(tmp_path: Path) -> None:
    status, out, err = run(
        tmp_path, job(None), workload("DaemonSet", "apps/v1", {"template": template(None)}), output="table"
    )
    assert (status, out) == (0, "no pod waits for chips\n")
    assert "the pods of Job default/train request no chips" in err
    assert "skipped: 1 DaemonSet" in err


@pytest.mark.parametrize(
    ("manifest", "expected"),
    [
        (job("eight"), "document 1 items[0] (Job train): spec.template.spec.containers[0].resources.limits["),
        (
            workload("Job", "batch/v1", {"template": {"spec": {"nodeName": 7}}}),
            "spec.template.spec.nodeName: Expected `str`",
        ),
        (job(parallelism="two"), "(Job train): spec.parallelism: Expected `int`, got `str`"),
        (
            workload("Job", "batch/v1", {"template": 7}),
            "(Job train): spec.template: Expected `object`, got `int`",
        ),
        (
            workload("Deployment", "apps/v1", {"replicas": 10**6, "template": template()}),
            "spec.replicas: Expected `int` <= ",
        ),
        (
            workload("JobSet", "jobset.x-k8s.io/v1alpha2", {"replicatedJobs": [{}]}),
            "spec.replicatedJobs[0]: Object missing",
        ),
        (
            workload("PyTorchJob", "kubeflow.org/v1", {"tfReplicaSpecs": {"Worker": {"template": template()}}}),
            "spec: a PyTorchJob has the templates of its pods in pytorchReplicaSpecs, and there are none",
        ),
        (
            workload("AscendJob", "mindxdl.gitee.com/v1", {"mpiReplicaSpecs": {"Worker": {"template": template()}}}),
            "spec: an AscendJob has the templates of its pods in replicaSpecs, and there are none",
        ),
    ],
)
def test_an_invalid_workload_is_named_with_document_and_field(tmp_path: Path, manifest: Json, expected: str) -> None:
    status, out, err = run(tmp_path, manifest, nodes=0)
    assert (status, out) == (2, "")
    assert expected in err


@pytest.mark.parametrize("argument", ["job/train", "pod/train-0"])
def test_explain_takes_a_workload_that_was_not_submitted_yet(tmp_path: Path, argument: str) -> None:
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), job(8, parallelism=2))))
    done = CliRunner().invoke(app, ["explain", argument, "-f", str(path), "--now", NOW])
    status = 3 if argument.startswith("job") else 0  # train-1 does not fit beside train-0
    assert (done.exit_code, "train-0 requests 8 chips and fits on 1 node" in done.stdout) == (status, True)
    listed = CliRunner().invoke(app, ["topo", "-f", str(path), "--now", NOW])
    assert "8 of 8 free" in listed.stdout


EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"


@pytest.mark.parametrize(
    "example",
    sorted(
        each.name
        for each in EXAMPLES.glob("*.yaml")
        if not each.name.startswith("cluster") and each.name != "switches.yaml"
    ),
    ids=str,
)
def test_every_example_is_planned_before_it_is_submitted(tmp_path: Path, example: str) -> None:
    def servers(number: int) -> Json:
        if example in {"mindie.yaml", "superpod-job.yaml"}:
            return as_list(*(super_pod_node(0, index) for index in range(number)))
        names = [f"n{index}" for index in range(number)]
        if example == "switch-affinity-job.yaml":
            return as_list(*yaml.safe_load_all((EXAMPLES / "switches.yaml").read_text()), *below_switches(number))
        if example.startswith("npu-core-"):
            return as_list(*map(core_node, names))
        return as_list(*map(cut_node if example == "vnpu-pod.yaml" else node, names))

    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(servers(16)))
    files = ["-f", str(path), "-f", str(EXAMPLES / example)]
    done = CliRunner().invoke(app, ["plan", *files, "--now", NOW, "-o", "json"])
    answer = json.loads(done.stdout)
    assert (done.exit_code, answer["pending"], answer["unplanned"]) == (0, [], []), done.stderr
    assert answer["pods"]
    # With one server fewer, something waits.
    too_few = tmp_path / "too-few.json"
    used = {each["node"] for each in answer["pods"]}
    too_few.write_text(json.dumps(servers(len(used) - 1)))
    done = CliRunner().invoke(
        app, ["plan", "-f", str(too_few), "-f", str(EXAMPLES / example), "--now", NOW, "-o", "json"]
    )
    assert done.exit_code == 3
    assert json.loads(done.stdout)["pending"]


def below_switches(number: int) -> list[Json]:
    """The first servers of ``switches.yaml``."""
    made = [node(f"n{index}", kind="module-910b-8") for index in range(min(number, 12))]
    for index, each in enumerate(made):
        address = f"10.0.{index // 4}.{10 + index % 4}"
        each["status"]["addresses"] = [{"type": "InternalIP", "address": address}]
    return made


def switch_job(tmp_path: Path, command: list[str], *flags: str) -> str:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(as_list(*below_switches(12))))
    files = [
        each
        for file in (path, EXAMPLES / "switches.yaml", EXAMPLES / "switch-affinity-job.yaml")
        for each in ("-f", str(file))
    ]
    done = CliRunner().invoke(app, [*command, *files, "--now", NOW, *flags], terminal_width=200)
    assert done.exit_code == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("command", [["plan"], ["explain", "job/train"]], ids=["plan", "explain"])
def test_the_switches_of_a_job_are_shown(tmp_path: Path, command: list[str]) -> None:
    told = switch_job(tmp_path, command)
    assert "ranks 0-3 below switch 0 (192.168.0.10)" in told
    assert "ranks 4-5 below switch 1 (192.168.0.11)" in told
    told = switch_job(tmp_path, command, "--set", "nslb-version=2.0")
    assert "ranks 0-3 below switch 0 (192.168.0.10), exclusive" in told
    assert "ranks 4-5 below switch 1 (192.168.0.11), shared" in told


@pytest.mark.parametrize("example", ["vnpu-pod.yaml", "npu-core-pod.yaml", "npu-core-deployment.yaml"])
def test_parts_of_chips_can_be_tried_in_the_example_cluster(example: str) -> None:
    files = ["-f", str(EXAMPLES / "cluster-vnpus.yaml"), "-f", str(EXAMPLES / example)]
    answer = json.loads(CliRunner().invoke(app, ["plan", *files, "--now", NOW, "-o", "json"]).stdout)
    assert [each["name"] for each in answer["pending"]] == ["chat-c"]
    assert len(answer["pods"]) > 3
    assert all(each["vnpus"] and not each["chips"] for each in answer["pods"])


def test_the_super_pods_of_blocks_are_shown_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    sizes = {0: 1, 1: 4, 2: 3, 3: 9, 4: 4}
    path.write_text(json.dumps(as_list(*(super_pod_node(at, index) for at, n in sizes.items() for index in range(n)))))
    files = ["-f", str(path), "-f", str(EXAMPLES / "superpod-job.yaml")]
    done = CliRunner().invoke(app, ["plan", *files, "--now", NOW], terminal_width=200)
    assert done.exit_code == 0, done.stderr
    assert "0, SuperPod 1" in done.stdout
    assert "1, SuperPod 4" in done.stdout
    told = " ".join(done.stdout.split())
    for sentence in (
        "job default/train: block 0 in SuperPod 1: 2 of its 4 free servers, its reserve of 2 is kept",
        "job default/train: block 1 in SuperPod 4: 2 of its 4 free servers, its reserve of 2 is kept",
        "job default/train: not SuperPod 0 (1 free): fewer free servers than the 2 of a block",
        "job default/train: not SuperPod 2 (3 free): a block there would use the reserve of 2",
        "job default/train: not SuperPod 3 (9 free): more servers would be left over there",
    ):
        assert sentence in told


def test_a_mind_ie_deployment_without_a_minimum_is_told_only_that(tmp_path: Path) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "mindie.yaml").read_text())
    del made["spec"]["template"]["metadata"]["annotations"][MIN_AVAILABLE]
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(*(super_pod_node(0, index) for index in range(4)), made)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW, "-o", "json"])
    answer = json.loads(done.stdout)
    assert {each["reason"] for each in answer["pending"]} == {"InvalidMinAvailable"}
    assert answer["without_effect"] == []


def test_the_candidates_of_a_pod_are_in_the_super_pod_of_its_block(tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    path.write_text(json.dumps(as_list(*(super_pod_node(at, index) for at in range(3) for index in range(4)))))
    files = ["-f", str(path), "-f", str(EXAMPLES / "superpod-job.yaml")]
    done = CliRunner().invoke(app, ["plan", *files, "--now", NOW, "--candidates", "-o", "json"])
    for each in json.loads(done.stdout)["pods"]:
        home = each["node"].partition("-")[0]
        names = {candidate["node"] for candidate in each["candidates"]}
        assert each["node"] in names
        assert {name.partition("-")[0] for name in names} == {home}


@pytest.mark.parametrize(
    ("labels", "annotations", "chosen", "sentence"),
    [
        ({"inferserviceid": "s"}, {}, 1, "not SuperPod 0 (6 free): others have instances of the service, or more free"),
        (
            {"app": "a", "jobID": "1"},
            {},
            0,
            "not SuperPod 1 (7 free): others are nearer to what the job names, or fuller",
        ),
        (
            {"app": "a", "jobID": "1"},
            {"sp-fit": "idlest"},
            1,
            "not SuperPod 0 (6 free): others are nearer to what the job",
        ),
    ],
)
def test_the_reason_for_a_super_pod_is_that_of_the_jobs_own_rule(
    tmp_path: Path, labels: dict[str, str], annotations: dict[str, str], chosen: int, sentence: str
) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "superpod-job.yaml").read_text())
    metadata = made["spec"]["template"]["metadata"]
    metadata["labels"] = labels
    metadata["annotations"] |= annotations | {"sp-block": "64"}
    path = tmp_path / "objects.json"
    nodes = [super_pod_node(at, index) for at, size in ((0, 6), (1, 7)) for index in range(size)]
    nodes[0]["metadata"]["labels"]["accelerator-type"] = "module-a3-16"  # its node selector does not match
    nodes.append(super_pod_node(0, 9))
    path.write_text(json.dumps(as_list(*nodes, made)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW], terminal_width=200)
    told = " ".join(done.stdout.split())
    assert (done.exit_code, f"0, SuperPod {chosen}" in told) == (0, True), done.stdout
    assert sentence in told


@pytest.mark.parametrize(("in_template", "told"), [({}, True), ({MIN_AVAILABLE: "2"}, False)])
def test_a_setting_on_a_deployment_itself_is_told(
    tmp_path: Path,
    in_template: dict[str, str],
    told: bool,  # noqa: FBT001 - a parameter
) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "deployment.yaml").read_text())
    made["metadata"]["annotations"] = {MIN_AVAILABLE: "2", "team": "a"}
    made["spec"]["template"]["metadata"]["annotations"] = in_template
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), made)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW])
    sentence = f"annotation {MIN_AVAILABLE} on Deployment default/infer has no effect; write it in the metadata of its"
    assert (sentence in " ".join(done.stderr.split())) == told


@pytest.mark.parametrize("example", ["trainjob", "rolebasedgroup", "inferserviceset"])
@pytest.mark.parametrize("key", ["sp-block", INDEPENDENT, "ra-block"])
def test_a_setting_on_a_workload_whose_pods_do_not_get_it_is_told(tmp_path: Path, example: str, key: str) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / f"{example}.yaml").read_text())
    made["metadata"]["annotations"] = {key: "8"}
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), made)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW])
    assert f"annotation {key} on {made['kind']} default/" in " ".join(done.stderr.split())


def test_labels_of_a_train_job_for_its_job_set_are_settings(tmp_path: Path) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "trainjob.yaml").read_text())
    said = {"annotations": {MIN_AVAILABLE: "2"}}
    made["metadata"] |= said
    made["spec"] |= said
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(node("n1"), made)))
    assert "no effect" not in CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW]).stderr


def test_a_setting_on_the_job_template_of_a_cron_job_is_told(tmp_path: Path) -> None:
    (made,) = yaml.safe_load_all((EXAMPLES / "superpod-job.yaml").read_text())
    metadata = {"annotations": {"sp-fit": "idlest"}}
    spec = {"schedule": "@daily", "jobTemplate": {"metadata": metadata, "spec": made["spec"]}}
    cron_job = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly"}, "spec": spec}
    path = tmp_path / "objects.json"
    path.write_text(json.dumps(as_list(*(super_pod_node(0, index) for index in range(4)), cron_job)))
    done = CliRunner().invoke(app, ["plan", "-f", str(path), "--now", NOW, "-o", "json"])
    (found,) = json.loads(done.stdout)["without_effect"]
    assert found["message"].startswith("annotation sp-fit on Job default/nightly-0: settings on a Job have no effect")
