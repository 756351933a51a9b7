"""A job's settings count wherever they are written, and a contradiction is refused."""

from typing import Any

import pytest

from allocator.rules.job_products import SCHEDULE_POLICY
from allocator.rules.unsupported import without_effect
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.leader_worker_set import LEADER_WORKER_SET
from ascend.jobs.pod_groups import COSCHEDULING, VOLCANO
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import ConfigMap, Metadata, Pod
from ascend.kube.workloads import PodGroup, PodGroupSpec
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, noded_says
from tests.allocator.jobs.manifests import TEMPLATE, job_object, kubeflow, leader_worker, made, task

A, B8, A3 = ({TYPE: name} for name in ("module", "module-910b-8", "module-a3-16-super-pod"))


def world(*labels: dict[str, str]) -> World:
    world = World()
    for at, each in enumerate(labels):
        chips = 16 if each is A3 else 8
        world.add(node(f"n{at}", labels=each, chips=range(chips), allocatable=chips))
    return world


def grouped(world: World, minimum: int = 2, kind: str = VOLCANO, **metadata: Any) -> PodGroup:
    """A PodGroup that the world knows, with labels or annotations."""
    group = PodGroup(metadata=Metadata("train", "default", **metadata), spec=PodGroupSpec(minimum))
    world.cluster.jobs.group_applied(kind, group)
    world.cluster.jobs.on_watched(kind)
    return group


def members(
    number: int = 2, *, request: int = 8, annotations: dict[str, str] | None = None, **labels: str
) -> list[Pod]:
    """Pods of the PodGroup."""
    marks = {GROUP: "train", **(annotations or {})}
    return [made(f"train-{at}", None, labels, marks, request=request) for at in range(number)]


def test_a_policy_on_the_pod_group_chooses_the_servers_of_the_job() -> None:
    made = world(A, A, B8, B8)
    grouped(made, annotations={SCHEDULE_POLICY: "chip8-node8"})
    pods = members()
    made.add(*pods)
    assert sorted(made.engine.place(each).node for each in pods) == ["n2", "n3"]


def test_a_policy_on_the_pod_group_is_checked_as_on_the_pod() -> None:
    made = world(A, A)
    grouped(made, annotations={SCHEDULE_POLICY: "chip9-node9"})
    pods = members()
    made.add(*pods)
    assert made.refusal(pods[0]).reason is Reason.UNKNOWN_POLICY


def test_blocks_on_the_pod_group_are_not_ignored() -> None:
    made = world(A3, A3)
    grouped(made, annotations={"sp-block": "48", SCHEDULE_POLICY: "chip2-node16-sp"})
    pods = members(request=16)
    made.add(*pods)
    refusal = made.refusal(pods[0])
    assert refusal.reason is Reason.INVALID_REQUEST
    assert "sp-block=48" in str(refusal)


@pytest.mark.parametrize(("block", "is_placed"), [("4", True), ("16", False), ("abc", False)])
def test_the_block_of_a_single_pod_is_its_request(block: str, is_placed: bool) -> None:  # noqa: FBT001 - a column
    made = world(A3)
    spec = f"{{tasks: [{{name: worker, template: {TEMPLATE}}}]}}"
    made.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, spec, annotations={"sp-block": block}))
    pod = task("worker", 0, request=4)
    made.add(pod)
    if is_placed:
        assert made.engine.place(pod).node == "n0"
    else:
        assert made.refusal(pod).reason is Reason.INVALID_REQUEST


def test_a_strategy_on_the_pod_group_avoids_sub_healthy_servers() -> None:
    made = world(B8, B8, B8)
    data = {"NodeInfo": noded_says({"FaultDevList": [], "NodeStatus": "SubHealthy"})}
    health = ConfigMap(metadata=Metadata("mindx-dl-nodeinfo-n0", "mindx-dl"), data=data)
    made.cluster.reports.health_applied(health)
    pods = members()
    made.add(*pods)
    grouped(made, labels={"subHealthyStrategy": "forceExit"})
    assert sorted(made.engine.place(each).node for each in pods) == ["n1", "n2"]


@pytest.mark.parametrize(
    ("kind", "spec", "pod"),
    [
        (
            "PyTorchJob",
            f"{{pytorchReplicaSpecs: {{Worker: {{template: {TEMPLATE}}}}}}}",
            kubeflow("PyTorchJob", "worker", 0),
        ),
        ("AscendJob", f"{{replicaSpecs: {{Worker: {{template: {TEMPLATE}}}}}}}", kubeflow("AscendJob", "worker", 0)),
        (VOLCANO_JOB, f"{{tasks: [{{name: worker, template: {TEMPLATE}}}]}}", task("worker", 0, group="")),
        (
            LEADER_WORKER_SET,
            f"{{leaderWorkerTemplate: {{size: 1, workerTemplate: {TEMPLATE}}}}}",
            leader_worker(0, 0, name="train", size=1),
        ),
    ],
)
def test_a_policy_on_the_object_of_the_operator_counts(kind: str, spec: str, pod: Pod) -> None:
    made = world(A, B8)
    source = job_object(kind, spec, annotations={SCHEDULE_POLICY: "chip8-node8", "other": "kept out"})
    made.cluster.jobs.source_applied(kind, source)
    made.add(pod)
    assert made.engine.place(pod).node == "n1"


def test_a_contradiction_is_refused_and_names_both_places() -> None:
    made = world(A, B8)
    grouped(made, 1, COSCHEDULING, annotations={SCHEDULE_POLICY: "chip8-node8"})
    made_from = job_object(
        "PyTorchJob",
        f"{{pytorchReplicaSpecs: {{Worker: {{template: {TEMPLATE}}}}}}}",
        annotations={SCHEDULE_POLICY: "chip4-node8"},
    )
    made.cluster.jobs.source_applied("PyTorchJob", made_from)
    pod = kubeflow("PyTorchJob", "worker", 0)
    pod.metadata.labels["scheduling.x-k8s.io/pod-group"] = "train"
    made.add(pod)
    refusal = made.refusal(pod)
    assert refusal.reason is Reason.POLICY_MISMATCH
    assert refusal.message == (
        "pod default/train-worker-0: annotation huawei.com/schedule_policy is chip8-node8 on "
        "PodGroup.scheduling.x-k8s.io default/train, but chip4-node8 on PyTorchJob default/train; make them agree, or "
        "remove one"
    )


def test_the_pods_may_contradict_their_group_no_more_than_repeat_it() -> None:
    made = world(A, B8, B8)
    grouped(made, labels={"subHealthyStrategy": "forceExit"}, annotations={SCHEDULE_POLICY: "chip8-node8"})
    same = members(annotations={SCHEDULE_POLICY: "chip8-node8"}, subHealthyStrategy="forceExit")
    made.add(*same)
    assert sorted(made.engine.place(each).node for each in same) == ["n1", "n2"]
    other = members(annotations={SCHEDULE_POLICY: "chip8-node8"}, subHealthyStrategy="ignore")[0]
    with pytest.raises(Refusal, match=r"label subHealthyStrategy is forceExit on PodGroup.* but ignore on pod"):
        made.engine.place(other)


@pytest.mark.parametrize(("on_group", "on_pod", "expected"), [("2", None, 2), ("2", "2", 2), (None, "2", 2)])
def test_a_minimum_may_be_annotated_on_the_pod_group(on_group: str | None, on_pod: str | None, expected: int) -> None:
    made = world(B8, B8)
    grouped(made, 1, annotations={MIN_AVAILABLE: on_group} if on_group else {})
    pods = members(annotations={MIN_AVAILABLE: on_pod} if on_pod else {})
    made.add(*pods[:1])
    assert made.cluster.jobs.job_of(pods[0]).min_available == expected
    assert made.refusal(pods[0]).reason is Reason.GANG_INCOMPLETE


@pytest.mark.parametrize(
    ("on_group", "sentence"), [("two", "'two' is not a positive number"), ("3", "is 3 on PodGroup")]
)
def test_a_wrong_or_contradicting_minimum_is_refused(on_group: str, sentence: str) -> None:
    made = world(B8, B8)
    grouped(made, 1, annotations={MIN_AVAILABLE: on_group})
    pods = members(annotations={MIN_AVAILABLE: "2"})
    made.add(*pods)
    refusal = made.refusal(pods[0])
    assert refusal.reason is Reason.INVALID_MIN_AVAILABLE
    assert sentence in refusal.message


@pytest.mark.parametrize(("field", "annotated", "expected"), [(3, "2", 3), (2, "3", 2), (1, "3", 3), (1, None, 1)])
def test_the_minimum_of_an_object_counts_before_its_annotation_and_the_other_one_is_told(
    field: int, annotated: str | None, expected: int
) -> None:
    spec = (
        f"{{runPolicy: {{schedulingPolicy: {{minAvailable: {field}}}}}, "
        f"pytorchReplicaSpecs: {{Worker: {{replicas: 3, template: {TEMPLATE}}}}}}}"
    )
    made = world(A, A, A)
    annotations = {MIN_AVAILABLE: annotated} if annotated else {}
    made.cluster.jobs.source_applied("PyTorchJob", job_object("PyTorchJob", spec, annotations=annotations))
    pod = kubeflow("PyTorchJob", "worker", 0)
    made.add(pod)
    job = made.cluster.jobs.job_of(pod)
    assert job.min_available == expected
    told = [f"annotation {MIN_AVAILABLE}={annotated}, where another minimum is {field}"] if field > 1 else []
    assert [each.partition(": ")[0] for each in without_effect(pod, job.facts)] == told
