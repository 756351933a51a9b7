"""All pods of a job of several pods are placed on servers of one product, which the job or a setting names."""

import asyncio
import contextlib
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from allocator.rules.job_products import SCHEDULE_POLICY, one_product
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import Pod, Taint
from ascend.products import PRODUCTS
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, TYPE, World, node, owned_by, pod, requiring, selecting

A, B, CARD, MESH = {TYPE: "module"}, {TYPE: "module-910b-8"}, {TYPE: "card"}, {TYPE: "chip4-node8"}
X, Y = {"pool": "x"}, {"pool": "y"}


def world_of(default_product: str = "", **nodes: Mapping[str, str]) -> World:
    world = World(default_product=default_product)
    world.add(*(node(name, labels=labels) for name, labels in nodes.items()))
    return world


def peer(number: int, *, minimum: int = 1, chips: int | None = 8, on: str = "", policy: str = "") -> Pod:
    """A pod of one job: a gang if the minimum is above 1, else a job whose pods are placed one by one."""
    annotations = {GROUP: "train", **({MIN_AVAILABLE: str(minimum)} if minimum > 1 else {})}
    annotations |= {SCHEDULE_POLICY: policy} if policy else {}
    held = range(chips) if on and chips else None
    phase = "Running" if on else "Pending"
    made = pod(f"train-{number}", chips, node=on, chips=held, phase=phase, annotations=annotations)
    return owned_by(made, "PyTorchJob", "kubeflow.org/v1")


def placed(world: World, *pods: Pod) -> list[str]:
    """Add pods and place them; return their nodes."""
    world.add(*pods)
    return [world.engine.place(each).node for each in pods]


@pytest.mark.parametrize(
    ("minimum", "candidates"),
    [(1, None), (1, ["a", "b1"]), (2, None), (2, ["a"]), (2, ["b1", "b2"])],
    ids=["all", "two products", "gang", "gang, one node", "gang, one product"],
)
def test_a_job_that_names_no_product_is_refused_on_a_mixed_cluster(minimum: int, candidates: list[str] | None) -> None:
    world = world_of(a=A, b1=B, b2=B)
    world.add(*(peer(number, minimum=minimum) for number in range(2)))
    refusal = world.refusal(peer(0, minimum=minimum), candidates)
    assert refusal.reason is Reason.PRODUCT_NOT_NAMED
    assert refusal.message.startswith("job default/train ")
    assert "910A or 910B-8" in refusal.message
    assert len(world.ledger) == 0


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize("policy", ["", "chip8-node8"], ids=["selector", "policy"])
def test_a_job_is_placed_on_the_product_that_it_names(minimum: int, policy: str) -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    pods = [selecting(peer(number, minimum=minimum, policy=policy), {} if policy else B) for number in range(2)]
    assert placed(world, *pods) == ["b1", "b2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_selector_whose_nodes_are_of_one_product_names_it(minimum: int) -> None:
    world = world_of(a=A | X, b1=B | Y, b2=B | Y)
    pods = [selecting(peer(number, minimum=minimum), Y) for number in range(2)]
    assert placed(world, *pods) == ["b1", "b2"]


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize(
    "expression",
    [
        {"key": TYPE, "operator": "In", "values": ["module-910b-8"]},
        {"key": "pool", "operator": "In", "values": ["y", "z"]},
        {"key": "pool", "operator": "NotIn", "values": ["x"]},
        {"key": "fast", "operator": "Exists"},
        {"key": "slow", "operator": "DoesNotExist"},
        {"key": "year", "operator": "Gt", "values": ["2023"]},
    ],
    ids=lambda expression: f"{expression['key']} {expression['operator']}",
)
def test_a_required_node_affinity_names_the_product_of_its_nodes(minimum: int, expression: dict[str, object]) -> None:
    a, b = A | X | {"slow": "", "year": "2020"}, B | Y | {"fast": "", "year": "2024"}
    world = world_of(a=a, b1=b, b2=b)
    pods = [requiring(peer(number, minimum=minimum), {"matchExpressions": [expression]}) for number in range(2)]
    assert placed(world, *pods) == ["b1", "b2"]


def test_taints_that_leave_one_product_name_it_until_they_are_gone() -> None:
    world = world_of(b1=B, b2=B)
    tainted = node("a", labels=A)
    taint = Taint(key="reserved", value="team-a", effect="NoSchedule")
    world.add(structs.replace(tainted, spec=structs.replace(tainted.spec, taints=(taint,))))
    world.add(peer(0), peer(1))
    assert world.engine.request_of(peer(0)).products == frozenset({"910B-8"})
    world.add(tainted)
    assert world.refusal(peer(0)).reason is Reason.PRODUCT_NOT_NAMED


@pytest.mark.parametrize("key", ["unschedulable", "not-ready", "unreachable", "disk-pressure"])
def test_taints_by_which_kubernetes_tells_of_a_nodes_state_name_no_product(key: str) -> None:
    world = world_of(b=B)
    tainted, taint = node("a", labels=A), Taint(key=f"node.kubernetes.io/{key}", effect="NoSchedule")
    world.add(structs.replace(tainted, spec=structs.replace(tainted.spec, taints=(taint,))), peer(0))
    assert world.refusal(peer(0)).reason is Reason.PRODUCT_NOT_NAMED


def test_the_candidates_of_a_scheduler_name_a_product_and_the_others_of_the_job_follow() -> None:
    world = world_of(a=A, b1=B, b2=B)
    world.add(peer(0), peer(1))
    assert world.engine.place(peer(0), ["b1", "b2"]).node == "b1"
    assert world.engine.place(peer(1), ["a", "b1", "b2"]).node == "b2"


def test_a_selector_whose_nodes_are_of_two_products_names_none() -> None:
    world = world_of(a=A | X, b=B | X)
    assert world.refusal(selecting(peer(0), X)).reason is Reason.PRODUCT_NOT_NAMED


@pytest.mark.parametrize("minimum", [1, 2])
def test_the_default_product_is_for_jobs_that_name_none(minimum: int) -> None:
    world = world_of(default_product="910B-8", a1=A, a2=A, b1=B, b2=B)
    assert placed(world, *(peer(number, minimum=minimum) for number in range(2))) == ["b1", "b2"]


def test_the_default_product_does_not_override_what_a_job_names() -> None:
    world = world_of(default_product="910B-8", a=A, b=B)
    assert placed(world, selecting(peer(0), A)) == ["a"]


def test_a_default_product_that_the_job_may_not_use_does_not_help() -> None:
    world = world_of(default_product="910B-8", a=A, b=B, m=MESH)
    assert world.refusal(peer(0, policy="chip4-node8")).reason is Reason.PRODUCT_NOT_NAMED


@pytest.mark.parametrize("there", [A, MESH], ids=["910A", "mesh-8"])
def test_a_policy_of_two_products_means_the_one_that_is_there(there: Mapping[str, str]) -> None:
    assert placed(world_of(b=B, one=there), peer(0, policy="chip4-node8")) == ["one"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_cluster_of_one_product_needs_no_name(minimum: int) -> None:
    world = world_of(b1=B, b2=B)
    assert placed(world, *(peer(number, minimum=minimum) for number in range(2))) == ["b1", "b2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_second_product_changes_the_answer_and_its_end_does_too(minimum: int) -> None:
    world = world_of(a1=A, a2=A)
    pods = [peer(number, minimum=minimum) for number in range(2)]
    world.add(*pods, node("b", labels=B))
    assert not world.engine.may_fit(pods[0])
    assert world.refusal(pods[0]).reason is Reason.PRODUCT_NOT_NAMED
    world.cluster.node_deleted(node("b", labels=B))
    assert world.engine.may_fit(pods[0])
    assert [world.engine.place(each).node for each in pods] == ["a1", "a2"]


@pytest.mark.parametrize(("ready", "cordoned"), [(False, False), (True, True)])
def test_servers_that_take_no_pods_now_count_as_well(*, ready: bool, cordoned: bool) -> None:
    world = world_of(a=A)
    world.add(node("b", labels=B, ready=ready, cordoned=cordoned))
    assert world.refusal(peer(0)).reason is Reason.PRODUCT_NOT_NAMED


def test_a_node_of_unknown_product_does_not_count() -> None:
    assert placed(world_of(a=A, b={TYPE: "unknown"}), peer(0)) == ["a"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_peer_on_an_unknown_node_holds_up_no_pod(minimum: int) -> None:
    world = world_of(a=A)
    world.add(peer(0, minimum=minimum, on="unknown"))
    assert placed(world, peer(1, minimum=minimum)) == ["a"]


def test_a_product_is_what_the_labels_say_now() -> None:
    world = world_of(a=A, b=B)
    world.add(node("b", labels=A))
    assert placed(world, peer(0)) == ["a"]


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController", "Job", "DaemonSet"])
def test_pods_that_work_alone_are_placed_on_any_product(kind: str) -> None:
    world = world_of(a=A, b1=B, b2=B)
    replicas = [owned_by(peer(number), kind) for number in range(3)]
    world.add(*replicas)
    for each in replicas:
        assert not world.engine.request_of(each).needs_network
    assert placed(world, *replicas) == ["a", "b1", "b2"]


def test_a_pod_without_a_job_is_placed_on_the_preferred_product() -> None:
    assert placed(world_of(a=A, b=B), pod("single", 8)) == ["a"]


@pytest.mark.parametrize(
    ("kind", "version"),
    [("StatefulSet", "apps/v1"), ("PyTorchJob", "kubeflow.org/v1"), ("Job", "batch.volcano.sh/v1alpha1")],
)
def test_pods_that_train_together_name_a_product_with_any_minimum(kind: str, version: str) -> None:
    world = world_of(a=A, b=B)
    assert world.refusal(owned_by(peer(0), kind, version)).reason is Reason.PRODUCT_NOT_NAMED


def test_replicas_with_a_minimum_name_a_product() -> None:
    world = world_of(a=A, b1=B, b2=B)
    world.add(*(owned_by(peer(number, minimum=2), "ReplicaSet") for number in range(2)))
    assert world.refusal(owned_by(peer(0, minimum=2), "ReplicaSet")).reason is Reason.PRODUCT_NOT_NAMED


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_successor_waits_for_servers_of_its_product(minimum: int) -> None:
    world = world_of(a=A, b1=B, b2=B)
    bound, successor = (selecting(peer(number, minimum=minimum, on=on), B) for number, on in ((0, "b1"), (1, "")))
    world.add(bound, successor, pod("busy", 8, node="b2", chips=range(8), phase="Running"))
    filtered = world.engine.filter(successor, ["a", "b2"])
    assert not filtered.fitting
    assert filtered.refused["a"].reason is Reason.WRONG_PRODUCT


@pytest.mark.parametrize("default", ["", "910A", "910B-8"])
@pytest.mark.parametrize("minimum", [1, 2])
def test_a_successor_joins_its_peers_whatever_the_default(minimum: int, default: str) -> None:
    world = world_of(default, a=A, b1=B, b2=B)
    successor = peer(1, minimum=minimum)
    world.add(peer(0, minimum=minimum, on="b1"), successor)
    assert world.engine.place(successor).node == "b2"


@pytest.mark.parametrize("default", ["", "910B-8"])
@pytest.mark.parametrize("minimum", [1, 2])
def test_a_started_job_is_completed_after_a_second_product_registers(minimum: int, default: str) -> None:
    world = world_of(default, a1=A, a2=A)
    pods = [peer(number, minimum=minimum) for number in range(2)]
    world.add(*pods)
    first = world.engine.place(pods[0]).node
    world.add(node("b", labels=B))
    assert [world.engine.place(each).node for each in pods] == [first, {"a1": "a2", "a2": "a1"}[first]]


def test_the_pod_that_was_placed_first_names_the_product_of_a_spread_job() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    successor = peer(2)
    world.add(peer(0, on="b1"), peer(1, on="a1"), successor)
    assert world.engine.place(successor).node == "b2"


def test_peers_on_a_product_that_is_gone_name_none() -> None:
    world = world_of("910A", a1=A, a2=A, b=B, c=CARD)
    successor = peer(1)
    world.add(peer(0, on="b"), successor)
    world.cluster.node_deleted(node("b", labels=B))
    assert world.engine.place(successor).node in {"a1", "a2"}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (selecting(peer(0, minimum=2), A), selecting(peer(1, minimum=2), B)),
        (selecting(peer(0, minimum=2), X), selecting(peer(1, minimum=2), Y)),
        (selecting(peer(0, minimum=2), X), selecting(peer(1, minimum=2), B)),
        (peer(0, minimum=2, policy="chip4-node8"), peer(1, minimum=2, policy="chip8-node8")),
    ],
    ids=["types", "pools", "a pool and a type", "policies"],
)
def test_members_that_name_different_products_are_placed_on_these(first: Pod, second: Pod, number: int) -> None:
    world = world_of(a=A | X, b=B | Y)
    world.add(first, second)
    assert world.engine.filter((first, second)[number], ["a", "b"]).fitting == ["ab"[number]]
    assert [world.engine.place(each).node for each in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("number", range(4))
def test_members_that_name_no_product_get_the_default_beside_others(number: int) -> None:
    world = world_of(default_product="910B-8", a0=A, a1=A, b0=B, b1=B)
    pods = [selecting(peer(0, minimum=4), A), selecting(peer(1, minimum=4), B), *(peer(n, minimum=4) for n in (2, 3))]
    world.add(*pods)
    assert world.refusal(pods[number]).reason is Reason.GANG_DOES_NOT_FIT
    world.add(node("b2", labels=B))
    world.engine.place(pods[number])
    assert [world.engine.place(each).node for each in pods] == ["a0", "b0", "b1", "b2"]


def test_members_that_name_different_products_are_placed_as_a_whole() -> None:
    world = world_of(a=A, b=B)
    world.add(pod("busy", 8, node="b", chips=range(8), phase="Running"))
    world.add(first := selecting(peer(0, minimum=2), A), selecting(peer(1, minimum=2), B))
    refusal = world.refusal(first)
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert re.search("job default/train: 2 pods .*8 chips.* 1 NotEnoughChips", refusal.message)
    assert len(world.ledger) == 0


def test_a_member_without_a_product_holds_up_its_gang() -> None:
    world = world_of(a=A, b=B)
    named, unnamed = selecting(peer(0, minimum=2), A), peer(1, minimum=2)
    world.add(named, unnamed)
    assert world.refusal(named).reason is Reason.PRODUCT_NOT_NAMED


def test_a_waiting_gang_moves_to_the_default_product_as_a_whole() -> None:
    world = world_of(default_product="910B-8", a1=A, a2=A)
    pods = [peer(number, minimum=3) for number in range(3)]
    world.add(*pods)
    assert world.refusal(pods[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.add(*(node(name, labels=B) for name in ("b1", "b2", "b3")))
    assert {world.engine.place(each).node for each in pods} == {"b1", "b2", "b3"}


def test_a_gang_planned_again_after_a_restart_joins_its_bound_pods() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    world.add(*(selecting(peer(number, minimum=2, on=on), B) for number, on in ((0, "b1"), (1, ""))))
    assert asyncio.run(world.engine.resume()) == []
    held = world.ledger.get("uid-train-1")
    assert held is not None
    assert held.node == "b2"


NAMES = sorted(PRODUCTS)


@given(
    named=st.none() | st.frozensets(st.sampled_from(NAMES), min_size=1),
    there=st.frozensets(st.sampled_from(NAMES)),
    default=st.sampled_from(["", *NAMES]),
)
def test_the_product_is_unique_or_the_job_is_refused(
    named: frozenset[str] | None, there: frozenset[str], default: str
) -> None:
    remaining = there if named is None else there & named
    if len(remaining) > 1 and default not in remaining:
        with pytest.raises(Refusal) as refused:
            one_product("job default/train has several pods", named, there, [default])
        assert refused.value.reason is Reason.PRODUCT_NOT_NAMED
        return
    found = one_product("job default/train has several pods", named, there, [default])
    if not remaining:
        assert found == named
    else:
        assert found is not None
        assert len(found) == 1
        assert found <= remaining
        assert found == {default} or len(remaining) == 1


@given(
    servers=st.lists(st.sampled_from(("910A", "910B-8", "910-card")), min_size=1, max_size=6),
    count=st.integers(2, 4),
    default=st.sampled_from(["", "910A", "910B-8"]),
    minimum=st.booleans(),
)
def test_no_job_is_ever_spread_over_products(servers: list[str], count: int, default: str, *, minimum: bool) -> None:
    labels = {name: {TYPE: PRODUCTS[name].node_types[0]} for name in servers}
    world = World(default_product=default)
    world.add(*(node(f"n{number}", labels=labels[name]) for number, name in enumerate(servers)))
    pods = [peer(number, minimum=count if minimum else 1) for number in range(count)]
    world.add(*pods)
    used = set()
    for each in pods:
        with contextlib.suppress(Refusal):
            used.add(servers[int(world.engine.place(each).node[1:])])
    assert len(used) <= 1
    if default in servers:
        assert used <= {default}
