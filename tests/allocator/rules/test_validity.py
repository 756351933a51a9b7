"""Which requests and jobs are valid, which products they are for, and that a refusal says why."""

import re
from typing import Any

import pytest

from allocator.rules.job_products import SCHEDULE_POLICY, avoids_sub_healthy, wanted_products
from allocator.rules.validity import JobShape, invalidity, job_shape, requested_vnpus
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import RESOURCE
from ascend.errors import Refusal
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod
from tests.allocator.reference import reference_cases


def requesting(
    name: str,
    resources: dict[str, str] | int,
    *,
    selector: dict[str, str] | None = None,
    policy: str | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Pod:
    """A pod that requests chips, or other resources."""
    quantities = {RESOURCE: str(resources)} if isinstance(resources, int) else resources
    return pod(
        name,
        containers=[Container("main", Resources(limits=quantities))],
        selector=selector,
        labels=labels,
        annotations={**(annotations or {}), **({SCHEDULE_POLICY: policy} if policy else {})},
    )


def of_type(value: str) -> dict[str, str]:
    """The node selector, or the label, of servers of a product."""
    return {TYPE: value}


@pytest.mark.parametrize(
    ("selector", "policy", "products"),
    [
        (None, None, None),
        ({"disk": "ssd"}, None, None),
        (of_type("module"), None, {"910A"}),
        (of_type("half"), None, {"910A-4"}),
        (of_type("card"), None, {"910-card"}),
        (of_type("card-910b-2"), None, {"910-card"}),
        (of_type("module-910b-8"), None, {"910B-8"}),
        (of_type("module-910b-16"), None, {"910B-16"}),
        (of_type("module-a3-16"), None, {"A3-16"}),
        (of_type("module-a3-16-super-pod"), None, {"A3-16"}),
        (of_type("module-a3-8-super-pod"), None, {"A3-8"}),
        (None, "chip4-node4", {"910A-4"}),
        (None, "chip1-node2", {"910-card"}),
        (None, "chip8-node8", {"910B-8"}),
        (None, "chip8-node16", {"910B-16"}),
        (None, "chip2-node16", {"A3-16"}),
        (None, "module-a3-16", {"A3-16"}),
        (None, "chip2-node8", {"A3-8"}),
        (None, "chip4-node8", {"910A", "mesh-8"}),
        (None, "chip8-node8-sp", {"850-8"}),
        (None, "chip4-node16", {"mesh-16"}),
        (None, "chip1-node8", {"plain-8"}),
        (None, "chip1-node16", {"plain-16"}),
        (of_type("module"), "chip4-node8", {"910A"}),
    ],
)
def test_selector_and_policy_restrict_the_products(
    selector: dict[str, str] | None, policy: str | None, products: set[str] | None
) -> None:
    assert wanted_products(requesting("p", 1, selector=selector, policy=policy)) == products


@pytest.mark.parametrize(
    ("selector", "policy", "reason", "words"),
    [
        (of_type("module-910c"), None, Reason.UNKNOWN_PRODUCT, "module-910c names no known product; known values: "),
        (None, "chip3-node9", Reason.UNKNOWN_POLICY, "chip3-node9"),
        (None, "multilevel", Reason.UNSUPPORTED_POLICY, "multilevel"),
        (None, "chip8-node8-ra64-sp", Reason.UNSUPPORTED_POLICY, "chip8-node8-ra64-sp"),
        (of_type("module"), "chip8-node8", Reason.POLICY_MISMATCH, "910B-8"),
    ],
)
def test_an_unknown_selector_or_policy_is_refused(
    selector: dict[str, str] | None, policy: str | None, reason: str, words: str
) -> None:
    world = World()
    world.add(node("n1"))
    with pytest.raises(Refusal) as refused:
        world.engine.filter(requesting("p", 1, selector=selector, policy=policy))
    assert refused.value.reason == reason
    assert words in refused.value.message
    assert "default/p" in refused.value.message


def test_a_job_is_placed_only_on_servers_of_its_product() -> None:
    world = World()
    world.add(node("a"), node("b", labels=of_type("module-910b-8")))
    restricted = requesting("p", 2, policy="chip8-node8")
    filtered = world.engine.filter(restricted)
    assert filtered.fitting == ["b"]
    assert filtered.refused["a"].reason is Reason.WRONG_PRODUCT
    assert world.engine.place(restricted).node == "b"
    # A request for 3 chips is valid on some product, so each node has its own refusal.
    filtered = world.engine.filter(requesting("q", 3))
    assert filtered.fitting == ["b"]
    assert filtered.refused["a"].reason is Reason.INVALID_REQUEST


@pytest.mark.parametrize(
    ("label", "avoids"),
    [(None, False), ("ignore", False), ("graceExit", True), ("forceExit", True), ("hotSwitch", True)],
)
def test_every_strategy_but_ignore_avoids_sub_healthy_nodes(label: str, avoids: bool) -> None:  # noqa: FBT001
    assert avoids_sub_healthy(requesting("p", 1, labels={"subHealthyStrategy": label} if label else {})) == avoids


JOBS_910A = [([1], True), ([2], True), ([4], True), ([8], True), ([8] * 2, True), ([8] * 100, True)]
JOBS_910A += [([size], False) for size in (3, 5, 6, 7, 9, 10, 16)]
# The reference accepts these since its version 5.0, the seeds don't (docs/deviations.md).
JOBS_910A += [([1, 1], False), ([8, 1], False), ([4, 4], False)]


@pytest.mark.parametrize(("sizes", "valid"), JOBS_910A)
def test_a_910a_job_is_one_pod_or_several_of_whole_servers(sizes: list[int], valid: bool) -> None:  # noqa: FBT001
    pods = [requesting(f"p{number}", size, selector=of_type("module")) for number, size in enumerate(sizes)]
    refusal = invalidity(job_shape("job default/train", pods))
    assert (refusal is None) == valid
    if refusal is not None:
        assert refusal.reason is Reason.INVALID_REQUEST
        assert re.search("910A servers .* 1, 2, 4 or 8 chips, .* several pods of 8", refusal.message)


@pytest.mark.parametrize(
    ("product", "alone", "several"),
    [
        ("910A-4", {1, 2, 4}, {1, 2, 4}),
        ("910-card", set(range(1, 9)), set(range(1, 9))),
        ("910B-8", set(range(1, 9)), set(range(1, 9))),
        ("910B-16", {*range(1, 9), 10, 12, 14, 16}, {*range(1, 9), 10, 12, 14, 16}),
        ("A3-8", {1, 2, 4, 6, 8}, {2, 4, 6, 8}),
        ("A3-16", {1, *range(2, 17, 2)}, set(range(2, 17, 2))),
        ("850-8", set(range(1, 9)), {8}),
        ("mesh-8", set(range(1, 9)), set(range(1, 9))),
        ("mesh-16", set(range(1, 17)), set(range(1, 17))),
        ("plain-8", set(range(1, 9)), set(range(1, 9))),
        ("plain-16", set(range(1, 17)), set(range(1, 17))),
    ],
)
def test_each_product_accepts_the_requests_of_the_spec(product: str, alone: set[int], several: set[int]) -> None:
    for pods, valid in ((1, alone), (3, several)):
        shapes = {size: JobShape("job", frozenset({size}), pods, frozenset({product})) for size in range(20)}
        assert {size for size, shape in shapes.items() if invalidity(shape) is None} == valid


def test_a_size_that_no_server_takes_is_refused_by_every_node() -> None:
    world = World()
    world.add(node("n1"))
    refusal = world.refusal(requesting("p", 17))
    assert refusal.reason is Reason.INVALID_REQUEST
    assert re.search("pod default/p .* 17 chips", refusal.message)


# vNPUs of other chips than the Ascend 910 are not judged.
STATIC_VNPU = [
    case for case in reference_cases("families")["plugin"]["static_vnpu"] if case["resource"].startswith(RESOURCE)
]


@pytest.mark.parametrize("case", STATIC_VNPU, ids=lambda case: f"{case['resource']}-{case['num']}")
def test_a_job_may_request_one_vnpu(case: dict[str, Any]) -> None:
    part = requesting("p", {case["resource"]: str(case["num"])})
    assert requested_vnpus(part) == case["num"]
    assert (invalidity(job_shape("job", [part])) is None) == case["valid"]


def test_a_vnpu_beside_chips_or_another_vnpu_is_refused() -> None:
    part, whole = requesting("part", {f"{RESOURCE}-2c": "1"}), requesting("whole", 1)
    cores = requesting("cores", {"huawei.com/npu-core": "12"})
    assert requested_vnpus(whole) == 0
    assert requested_vnpus(cores) == 1
    assert requested_vnpus(requesting("chips", {"huawei.com/npu-core": "48"})) == 0
    assert invalidity(job_shape("job", [requesting(name, {"huawei.com/npu-core": "48"}) for name in "ab"])) is None
    assert requested_vnpus(requesting("none", {"huawei.com/npu-core": "0", f"{RESOURCE}-2c": "0"})) == 0
    assert requested_vnpus(requesting("many", {f"{RESOURCE}-2c": "9" * 5000})) == 1
    for pods, words in (([part, whole], "whole chips"), ([part, cores], "2 vNPUs")):
        refusal = invalidity(job_shape("job default/train", pods))
        assert refusal is not None
        assert refusal.reason is Reason.INVALID_REQUEST
        assert words in refusal.message
    two = invalidity(job_shape("job default/train", [requesting("two", {f"{RESOURCE}-2c": "2"})]))
    assert two is not None
    assert two.message == "job default/train requests 2 vNPUs; a pod may have one, in one container"
    world = World()
    with pytest.raises(Refusal, match="whole chips"):
        world.engine.filter(requesting("both", {RESOURCE: "1", f"{RESOURCE}-2c": "1"}))


@pytest.mark.parametrize(
    ("init", "app", "parts"),
    [
        # The vNPU of an init container is used again by the others; a sidecar keeps its own.
        ([("2c", "")], ["2c"], 1),
        ([("2c", ""), ("2c", "")], ["2c"], 1),
        ([("2c", "Always")], ["2c"], 2),
        ([("2c", "")], ["2c", "2c"], 2),
        # For the kubelet each resource counts by itself.
        ([("2c", "")], ["4c"], 2),
    ],
)
def test_vnpus_in_use_at_the_same_time_are_counted(init: list[tuple[str, str]], app: list[str], parts: int) -> None:
    def container(name: str, part: str, restart_policy: str = "") -> Container:
        return Container(name, Resources(limits={f"{RESOURCE}-{part}": "1"}), restart_policy)

    first = [container(f"i{number}", *each) for number, each in enumerate(init)]
    then = [container(f"c{number}", each) for number, each in enumerate(app)]
    made = pod("p", init_containers=first, containers=then)
    assert requested_vnpus(made) == parts
    world = World()
    with pytest.raises(Refusal, match=r"1 Ascend910-2c in container i0, .*; a pod may have one vNPU, in one container"):
        world.engine.validate(made)


def of_job(name: str, kind: str, *, phase: str = "Pending", **metadata: Any) -> Pod:
    """A pod with a controller that requests one vNPU."""
    vnpu = Container("main", Resources(limits={f"{RESOURCE}-4c": "1"}))
    return owned_by(pod(name, containers=[vnpu], phase=phase, **metadata), kind)


INDEX = {"batch.kubernetes.io/job-completion-index": "0"}


@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        ("StatefulSet", {}),
        ("PyTorchJob", {}),
        ("Job", {"labels": INDEX}),
        ("Job", {"annotations": {MIN_AVAILABLE: "2"}}),
        ("ReplicaSet", {"annotations": {MIN_AVAILABLE: "2"}}),
    ],
)
def test_the_pods_of_a_job_share_one_vnpu(kind: str, marks: dict[str, Any]) -> None:
    world = World()
    first, second = of_job("a", kind, **marks), of_job("b", kind, **marks)
    launcher = owned_by(pod("launcher", None, **marks), kind)
    world.add(launcher, first)
    world.engine.validate(first)
    for _ in range(2):
        # Whether the pod was seen before or not.
        with pytest.raises(Refusal, match=r"job default/train .*2 vNPUs") as refused:
            world.engine.validate(second)
        assert refused.value.reason is Reason.INVALID_REQUEST
        world.add(second)
    if world.cluster.jobs.job_of(first).is_gang:
        with pytest.raises(Refusal, match="2 vNPUs"):
            world.engine.validate(first)
    else:
        world.engine.validate(first)
    assert not world.engine.handles(launcher)
    world.add(of_job("a", kind, phase="Succeeded", **marks))
    world.engine.validate(second)
    world.add(first)
    world.cluster.pod_deleted(first)
    world.engine.validate(second)


@pytest.mark.parametrize("marks", [{}, {GROUP: "podgroup-1"}])
@pytest.mark.parametrize("kind", ["ReplicaSet", "Job"])
def test_each_pod_that_works_alone_may_request_a_vnpu(kind: str, marks: dict[str, str]) -> None:
    world = World()
    pods = [of_job(name, kind, annotations=marks) for name in "ab"]
    world.add(*pods)
    for each in pods:
        world.engine.validate(each)
    assert world.engine.handles(requesting("two", {f"{RESOURCE}-2c": "2"}))


def test_pods_of_a_job_with_contradicting_products_are_refused() -> None:
    pods = [requesting("a", 8, policy="chip8-node8"), requesting("b", 8, selector=of_type("module"))]
    with pytest.raises(Refusal) as refused:
        job_shape("job default/train", pods)
    assert refused.value.reason is Reason.POLICY_MISMATCH
    shape = job_shape("job", [requesting("a", 8, policy="chip4-node8"), requesting("b", 8, selector=of_type("module"))])
    assert (shape.products, shape.pods, shape.sizes) == (frozenset({"910A"}), 2, frozenset({8}))


def test_an_invalid_request_names_what_the_job_says_about_its_product() -> None:
    made = pod("a", 16, annotations={"huawei.com/schedule_policy": "chip8-node8", "sp-block": "16"})
    refusal = invalidity(job_shape("job default/train", [made]), [made])
    assert refusal is not None
    assert refusal.message.endswith("(its servers are named by annotation huawei.com/schedule_policy=chip8-node8)")
    selecting = pod("a", 16, selector={"accelerator-type": "module"})
    refusal = invalidity(job_shape("job default/train", [selecting]), [selecting])
    assert refusal is not None
    assert refusal.message.endswith("(its servers are named by node selector accelerator-type=module)")
