"""Pods that don't communicate collectively: of owners of unknown kinds, and of jobs that say so; jobs that grow."""

import pytest

from ascend.annotations import INDEPENDENT, MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.jobs.ray import RAY_CLUSTER
from ascend.jobs.volcano_job import VOLCANO_JOB
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import TYPE, World, node, owned_by, pod, stateful_set
from tests.allocator.cores import A3_24, core_node, core_pod
from tests.allocator.jobs.manifests import job_object

A3 = {TYPE: "module-a3-16-super-pod"}


def of_job(number: int, chips: int, **annotations: str) -> Pod:
    return owned_by(pod(f"train-{number}", chips, annotations=annotations), "Fleet", "example.com/v1")


def world_of(*pods: Pod, a3: int = 1) -> World:
    world = World()
    world.add(*(node(f"a{at}", chips=range(16), allocatable=16, labels=A3) for at in range(a3)), *pods)
    return world


def test_pods_of_an_owner_of_an_unknown_kind_share_a_server() -> None:
    pods = [of_job(number, 1) for number in range(4)]
    world = world_of(*pods)
    assert {world.engine.place(waiting).node for waiting in pods} == {"a0"}


def test_the_only_pod_of_such_an_owner_goes_to_any_product() -> None:
    waiting = of_job(0, 2)
    world = World()
    world.add(node("a", labels={TYPE: "module"}), node("b", labels={TYPE: "module-910b-8"}), waiting)
    assert world.engine.place(waiting).node in {"a", "b"}


def test_a_minimum_says_that_its_pods_work_together() -> None:
    pods = [of_job(number, 1, **{MIN_AVAILABLE: "2"}) for number in range(2)]
    refusal = world_of(*pods, a3=2).refusal(pods[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "a pod of a job of several pods may request 2, 4" in refusal.message


def test_a_gang_of_independent_pods_starts_together_and_shares_servers() -> None:
    marks = {MIN_AVAILABLE: "2", INDEPENDENT: "true"}
    pods = [of_job(number, 4, **marks) for number in range(2)]
    world = world_of(*pods)
    assert [world.engine.place(waiting).node for waiting in pods] == ["a0", "a0"]
    alone = of_job(0, 4, **marks)
    with pytest.raises(Refusal) as refused:
        world_of(alone).engine.place(alone)
    assert refused.value.reason is Reason.GANG_INCOMPLETE


@pytest.mark.parametrize("value", ["false", "yes", ""])
def test_another_value_of_the_mark_says_nothing(value: str) -> None:
    pods = [of_job(number, 4, **{MIN_AVAILABLE: "2", INDEPENDENT: value}) for number in range(2)]
    assert world_of(*pods).refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT


def test_the_object_of_a_job_says_it_for_all_of_its_pods() -> None:
    spec = "{tasks: [{name: prefill, replicas: 1, template: {}}, {name: decode, replicas: 1, template: {}}]}"
    world = world_of()
    world.cluster.jobs.source_applied(VOLCANO_JOB, job_object(VOLCANO_JOB, spec, annotations={INDEPENDENT: "true"}))
    pods = [owned_by(pod(f"train-{role}-0", 4), "Job", "batch.volcano.sh/v1alpha1") for role in ("prefill", "decode")]
    world.add(*pods)
    assert [world.engine.place(waiting).node for waiting in pods] == ["a0", "a0"]


RAY = """{{
  enableInTreeAutoscaling: {scales},
  headGroupSpec: {{template: {{}}}},
  workerGroupSpecs: [{{groupName: npu, replicas: 1, minReplicas: 1, {most}
    template: {{spec: {{containers: [{{resources: {{limits: {{huawei.com/Ascend910: "1"}}}}}}]}}}}}}]
}}"""


def ray_worker(name: str, **annotations: str) -> Pod:
    labels = {"ray.io/cluster": "train", "ray.io/node-type": "worker", "ray.io/group": "npu"}
    return owned_by(pod(name, 1, labels=labels, annotations=annotations), RAY_CLUSTER, "ray.io/v1")


@pytest.mark.parametrize(
    ("scales", "most", "fits"),
    [
        ("true", "maxReplicas: 4,", False),
        ("true", "", False),
        ("false", "maxReplicas: 4,", True),
        ("true", "maxReplicas: 1,", True),
    ],
)
def test_a_ray_cluster_is_judged_by_what_it_may_grow_to(scales: str, most: str, *, fits: bool) -> None:
    world = world_of()
    world.cluster.jobs.source_applied(RAY_CLUSTER, job_object(RAY_CLUSTER, RAY.format(scales=scales, most=most)))
    first = ray_worker("w0")
    world.add(first)
    if fits:
        assert world.engine.place(first).node == "a0"
    else:
        assert world.refusal(first).reason is Reason.INVALID_REQUEST


def test_workers_of_a_growing_ray_cluster_that_are_independent_share_a_server() -> None:
    world = world_of()
    spec = RAY.format(scales="true", most="maxReplicas: 4,")
    world.cluster.jobs.source_applied(RAY_CLUSTER, job_object(RAY_CLUSTER, spec))
    workers = [ray_worker(f"w{at}", **{INDEPENDENT: "true"}) for at in range(4)]
    world.add(*workers)
    assert {world.engine.place(worker).node for worker in workers} == {"a0"}


def test_ai_cores_of_whole_chips_of_an_independent_gang_are_judged_as_those_of_a_single_pod() -> None:
    world = World()
    pods = [
        owned_by(core_pod(name, A3_24.cores, annotations=annotations), "Fleet", "example.com/v1")
        for annotations in ({MIN_AVAILABLE: "2", INDEPENDENT: "true"},)
        for name in ("train-0", "train-1")
    ]
    world.add(core_node("n1", A3_24), *pods)
    assert {world.engine.place(waiting).node for waiting in pods} == {"n1"}


SCALED = (
    "if StatefulSet default/train is scaled up, its further pods may be refused: on A3-16 servers a job is one pod of "
    "1, 2, 4, 6, 8, 10, 12, 14 or 16 chips, or several pods of 2, 4, 6, 8, 10, 12, 14 or 16 chips; if they don't "
    'communicate collectively, give all of them the annotation ascend-affinity.io/independent: "true"'
)


@pytest.mark.parametrize(
    ("chips", "replicas", "annotations", "told"),
    [
        (1, 1, {}, (SCALED,)),
        (2, 1, {}, ()),
        (1, 2, {}, ()),  # refused
        (1, 1, {INDEPENDENT: "true"}, ()),
        (3, 1, {}, ()),  # refused
    ],
)
def test_the_author_of_the_only_pod_of_a_stateful_set_is_told_what_several_can_not_have(
    chips: int, replicas: int, annotations: dict[str, str], told: tuple[str, ...]
) -> None:
    world = world_of()
    world.cluster.jobs.owners.apply(stateful_set(replicas))
    first = owned_by(pod("train-0", chips, annotations=annotations), "StatefulSet")
    assert world.engine.warnings(first) == told
    world.add(first)
    assert world.engine.warnings(first) == told


def test_the_author_of_a_ray_cluster_that_does_not_scale_by_itself_is_told_it_too() -> None:
    world = world_of()
    spec = RAY.format(scales="false", most="maxReplicas: 4,")
    world.cluster.jobs.source_applied(RAY_CLUSTER, job_object(RAY_CLUSTER, spec))
    (told,) = world.engine.warnings(ray_worker("w0"))
    assert told.startswith("if RayCluster default/train is scaled up, its further pods may be refused: on A3-16 ")


@pytest.mark.parametrize("selector", [{TYPE: "module-910b-8"}, {}])
def test_what_counts_are_the_products_of_the_nodes_that_a_pod_may_use(selector: dict[str, str]) -> None:
    world = world_of()
    world.add(node("b", labels={TYPE: "module-910b-8"}))
    world.cluster.jobs.owners.apply(stateful_set(1))
    first = owned_by(pod("train-0", 1, selector=selector), "StatefulSet")
    assert world.engine.warnings(first) == (() if selector else (SCALED,))


def test_pods_of_kinds_that_are_not_scaled_are_told_nothing() -> None:
    assert world_of().engine.warnings(of_job(0, 1)) == ()
    assert world_of().engine.warnings(pod("single", 1)) == ()
