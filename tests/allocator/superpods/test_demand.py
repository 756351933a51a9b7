"""What jobs ask of the SuperPods, and which blocks are refused."""

from typing import Any

import pytest

from allocator.rules.asked import Asked, JobDefaults, SuperPodLimits
from allocator.rules.job_products import wants_super_pod
from allocator.rules.unsupported import refused_demand
from allocator.superpods.demand import Demand, Kind, read_demand
from ascend.errors import Refusal
from ascend.kube.objects import Pod, PodSpec
from ascend.products import ATLAS_850_8, PRODUCTS
from ascend.reasons import Reason
from tests.allocator.builders import pod, selecting
from tests.allocator.superpods.cases import of_area, of_id

A3 = frozenset({"A3-16"})


def asked(
    block: str | None = "32",
    *,
    chips: int = 16,
    pods: int = 4,
    products: frozenset[str] | None = A3,
    size: int = 48,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    selector: dict[str, str] | None = None,
) -> Asked:
    blocks = {"sp-block": block} if block is not None else {}
    made = pod("p0", chips, labels=labels, annotations=blocks | (annotations or {}))
    defaults = JobDefaults(super_pods=SuperPodLimits(size, 2))
    return Asked("default/train", selecting(made, selector or {}), chips, pods, products, defaults)


def demand(*arguments: Any, **options: Any) -> Demand:
    found = read_demand(asked(*arguments, **options))
    assert found is not None
    return found


# Case validate-850-7 has another answer here (docs/deviations.md): a block below a server is none.
@of_area("superpod.validate.chip8-node8-sp", without=("validate-850-7",))
def test_blocks_of_atlas_850_are_valid_as_in_the_cases(case: dict[str, Any]) -> None:
    given = case["given"]
    block, pods, chips = str(given["sp_block"]), given["npu_pods"], given["req_npus"] // given["npu_pods"]
    servers = frozenset({ATLAS_850_8.name})
    try:
        read_demand(asked(block, chips=chips, pods=pods, products=servers, size=given["super_pod_size"]))
        made = pod("p0", chips, annotations={"sp-block": block})
        refused = refused_demand(made, chips if pods == 1 else None)
        is_valid = refused is None and chips in ATLAS_850_8.allowed(distributed=pods > 1)
    except Refusal:
        is_valid = False
    assert is_valid == case["expect"]["valid"]


def test_a_block_below_an_atlas_850_server_is_refused() -> None:
    with pytest.raises(Refusal, match="sp-block=4 is no multiple of the 8 chips of an 850-8 server"):
        read_demand(asked("4", chips=8, pods=2, products=frozenset({"850-8"})))


# Of a single pod the rules for its product and its block are elsewhere: it has no demand.
# Cases validate-a3-1 to 3 have no pods, which is no job: they are run with two pods, each on a whole server.
@of_area("superpod.validate.a3")
def test_blocks_are_valid_as_in_the_cases(case: dict[str, Any]) -> None:
    given = case["given"]
    chips, pods = given["node_npus"], given["npu_pods"] or 2
    number = given["req_npus"] or chips * pods
    block = str(given["sp_block"]) if given["sp_block"] is not None else None
    each = number // pods
    product = PRODUCTS[f"A3-{chips}"]
    try:
        read_demand(
            asked(block, chips=each, pods=pods, products=frozenset({product.name}), size=given["super_pod_size"] or 48)
        )
        made = pod("p0", each, annotations={"sp-block": block} if block is not None else {})
        refused = refused_demand(made, each if pods == 1 else None)
        is_valid = refused is None and each in product.allowed(distributed=pods > 1)
    except Refusal:
        is_valid = False
    assert is_valid == case["expect"]["valid"]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"block": "0"}, "sp-block='0' is not a number of chips above 0"),
        ({"block": "-16"}, "sp-block='-16' is not a number"),
        ({"block": "many"}, "sp-block='many' is not a number"),
        ({"block": "8"}, "sp-block=8 is no multiple of the 16 chips of an A3-16 server"),
        ({"block": "24", "pods": 3}, "sp-block=24 is no multiple of the 16 chips"),
        ({"block": "48"}, "sp-block=48, but the 64 chips of its 4 pods are no multiple of it"),
        ({"block": "800", "pods": 50}, r"sp-block=800 is 50 nodes, but a SuperPod has 48 \(setting super_pod_size\)"),
        ({"chips": 8}, "must request a whole server, 16 chips .A3-16., not 8 chips"),
    ],
)
def test_an_invalid_block_is_refused_with_its_value(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Refusal, match=sentence) as refused:
        read_demand(asked(**given))
    assert refused.value.reason is Reason.INVALID_REQUEST
    assert "job default/train requests blocks of nodes of one SuperPod" in refused.value.message


@of_id("infer-5")
def test_a_service_whose_blocks_have_no_node_is_refused(case: dict[str, Any]) -> None:
    assert (case["given"]["block_nodes"], case["expect"]) == (0, {"error": True})
    with pytest.raises(Refusal, match="sp-block='0' is not a number of chips above 0"):
        read_demand(asked("0", labels={"inferserviceid": "s1"}))


def test_only_a3_servers_form_super_pods() -> None:
    with pytest.raises(Refusal, match="only A3 and Atlas 850 servers form") as refused:
        read_demand(asked(products=frozenset({"910B-8"})))
    assert refused.value.reason is Reason.UNSUPPORTED_POLICY


@pytest.mark.parametrize(
    ("annotations", "selector", "marks"),
    [
        ({"sp-block": "32"}, {}, "(annotation sp-block=32), which only A3 and Atlas 850 servers form; name one"),
        (
            {"sp-block": "32", "huawei.com/schedule_policy": "chip8-node8"},
            {},
            "(annotation sp-block=32), which only A3 and Atlas 850 servers form, but is for other servers (ann",
        ),
        ({}, {"accelerator-type": "x-super-pod"}, "(node selector accelerator-type=x-super-pod), which only A3"),
        ({"huawei.com/schedule_policy": "y-sp"}, {}, "(annotation huawei.com/schedule_policy=y-sp), which only A3"),
    ],
)
def test_a_job_for_other_servers_is_told_which_mark_requests_blocks(
    annotations: dict[str, str], selector: dict[str, str], marks: str
) -> None:
    made = pod("p0", 8, annotations=annotations, selector=selector)
    with pytest.raises(Refusal) as refused:
        read_demand(Asked("default/train", made, 8, 4, frozenset({"910B-8"})))
    assert f"requests nodes of one SuperPod {marks}" in refused.value.message


def test_the_size_of_a_block() -> None:
    assert (demand("32").size, demand("32").blocks) == (2, 2)
    assert (demand("768", pods=48).size, demand("768", pods=48).blocks) == (48, 1)
    whole = demand(None, selector={"accelerator-type": "module-a3-16-super-pod"})
    assert (whole.size, whole.blocks) == (4, 1)
    small = demand("16", chips=8, products=frozenset({"A3-8", "A3-16"}))
    assert (small.size, small.blocks) == (2, 2)


def test_a_single_pod_has_no_demand() -> None:
    assert read_demand(asked("16", pods=1)) is None


@of_area("superpod.detect", without=("is-superpod-9",))
def test_jobs_have_blocks_as_in_the_cases(case: dict[str, Any]) -> None:
    made = pod("p0", 16, annotations=case["given"]["annotations"], selector=case["given"]["node_selector"])
    assert wants_super_pod(made) == case["expect"]["is_super_pod_job"]


def test_a_block_counts_also_with_a_policy_without_sp() -> None:
    """The makers' own sample of a MindIE job has this pair; the reference ignores the block there (is-superpod-9)."""
    found = demand("32", annotations={"huawei.com/schedule_policy": "chip2-node16"})
    assert (found.size, found.blocks) == (2, 2)


def test_blocks_may_be_split_if_the_job_says_so() -> None:
    assert not demand().may_split
    assert demand(labels={"super-pod-affinity": "soft"}).may_split
    assert not demand(labels={"super-pod-affinity": "hard"}).may_split
    assert not demand(labels={"super-pod-affinity": "Soft"}).may_split


@of_area("mindie.detect")
def test_mind_ie_jobs_are_recognized_as_in_the_cases(case: dict[str, Any]) -> None:
    assert (demand(labels=case["given"]["labels"]).kind is Kind.MIND_IE) == case["expect"]["mindie"]


@of_area("mindie.spfit")
def test_the_fit_is_read_as_in_the_cases(case: dict[str, Any]) -> None:
    found = demand(labels={"app": "", "jobID": ""}, annotations=case["given"]["annotations"] or {})
    assert found.idlest == case["expect"]["idlest"]


def test_the_idlest_super_pods_may_be_preferred() -> None:
    assert demand(labels={"app": "a", "jobID": "1"}, annotations={"sp-fit": "idlest"}).idlest
    assert demand(labels={"app": "a"}, annotations={"sp-fit": "idlest"}).kind is Kind.TRAINING


def affine(affinity: object) -> Pod:
    made = pod("p0", 16, labels={"app": "a", "jobID": "1"}, annotations={"sp-block": "32"})
    return Pod(metadata=made.metadata, spec=PodSpec(containers=made.spec.containers, affinity=affinity))


def preferred(*selectors: object) -> object:
    terms = [{"weight": 1, "podAffinityTerm": {"labelSelector": each, "topologyKey": "x"}} for each in selectors]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


@pytest.mark.parametrize(
    ("affinity", "near"),
    [
        (None, ()),
        ({"podAffinity": {}}, ()),
        (preferred({"matchLabels": {"b": "2", "a": "1"}}, {"matchLabels": {"c": "3"}}), (("a", "1"), ("b", "2"))),
        (preferred({"matchExpressions": []}), ()),
        (preferred(None), ()),
        ("{not json", ()),
    ],
)
def test_a_mind_ie_job_is_near_what_its_first_preferred_term_selects(affinity: object, near: object) -> None:
    found = read_demand(Asked("default/train", affine(affinity), 16, 4, A3))
    assert found is not None
    assert found.near == near


def test_a_service_is_near_its_other_instances_and_comes_before_mind_ie() -> None:
    found = demand(labels={"inferserviceid": "s1", "app": "a", "jobID": "1"})
    assert (found.kind, found.near) == (Kind.SERVICE, (("inferserviceid", "s1"),))
