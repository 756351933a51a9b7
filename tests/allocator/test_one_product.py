"""All pods of a job of several are on servers of one product."""

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest, Member
from allocator.preempt import Preemption, Sacrifice
from allocator.rules.job import VOLCANO, JobKey
from allocator.rules.narrowing import SCHEDULE_POLICY
from allocator.rules.request import Ask
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.errors import Refusal
from ascend.kube.objects import OwnerReference, Pod
from ascend.products import PRODUCTS
from tests.allocator.builders import World, node, pod

GROUP = "scheduling.k8s.io/group-name"
TYPE = "accelerator-type"
A, B, CARD = {TYPE: "module"}, {TYPE: "module-910b-8"}, {TYPE: "card"}


def world_of(**nodes: Mapping[str, str]) -> World:
    world = World()
    world.add(*(node(name, labels=labels) for name, labels in nodes.items()))
    return world


def peer(number: int, *, minimum: int = 1, chips: int | None = 8, on: str = "", policy: str = "") -> Pod:
    """A pod of one job: with a minimum above 1 a gang, else one whose pods are placed one by one."""
    annotations = {GROUP: "train", **({MIN_AVAILABLE: str(minimum)} if minimum > 1 else {})}
    annotations |= {SCHEDULE_POLICY: policy} if policy else {}
    held = range(chips) if on and chips else None
    phase = "Running" if on else "Pending"
    made = pod(f"train-{number}", chips, node=on, chips=held, phase=phase, annotations=annotations)
    return owned_by(made, "PyTorchJob", "kubeflow.org/v1")


def owned_by(each: Pod, kind: str, version: str = "") -> Pod:
    owner = OwnerReference(api_version=version, kind=kind, name="train", uid="u", controller=True)
    return msgspec.structs.replace(each, metadata=msgspec.structs.replace(each.metadata, owner_references=[owner]))


def meant_for(each: Pod, labels: Mapping[str, str]) -> Pod:
    return msgspec.structs.replace(each, spec=msgspec.structs.replace(each.spec, node_selector=dict(labels)))


def placed(world: World, *pods: Pod) -> list[str]:
    world.add(*pods)
    return [world.engine.place(each).node for each in pods]


def refusal(world: World, each: Pod, candidates: list[str] | None = None) -> Refusal:
    with pytest.raises(Refusal) as refused:
        world.engine.place(each, candidates)
    return refused.value


def test_a_gang_goes_where_all_of_it_fits_and_not_partly_to_the_preferred_servers() -> None:
    world = world_of(a=A, b1=B, b2=B)
    assert placed(world, *(peer(number, minimum=2) for number in range(2))) == ["b1", "b2"]


def test_those_that_name_no_servers_stay_together_beside_such_as_name_different_ones() -> None:
    mesh, plain, large = ({TYPE: PRODUCTS[name].node_types[0]} for name in ("mesh-8", "plain-8", "plain-16"))
    world = world_of(b=B, m=mesh, p=plain, q=large)
    world.add(*(pod(f"busy-{chip}", 1, node="b", chips=[chip], phase="Running") for chip in range(4)))
    apart = [meant_for(peer(number, minimum=4, chips=1), labels) for number, labels in enumerate((plain, large))]
    together = [peer(2, minimum=4, chips=8), peer(3, minimum=4, chips=4)]
    world.add(*apart, *together)
    # The large one fits on m alone, and then the small one only on b.
    assert refusal(world, apart[0]).reason == "GangDoesNotFit"
    world.add(node("m2", labels=mesh))
    assert [world.engine.place(each).node for each in (*apart, *together)] == ["p", "q", "m", "m2"]


def test_a_gang_goes_to_the_preferred_servers_where_they_take_all_of_it() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    assert placed(world, *(peer(number, minimum=2) for number in range(2))) == ["a1", "a2"]


def test_of_a_job_larger_than_its_minimum_all_pods_come_before_the_preferred_servers() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B, b3=B)
    assert placed(world, *(peer(number, minimum=2) for number in range(3))) == ["b1", "b2", "b3"]


def test_a_gang_that_only_fits_on_servers_of_several_products_is_told_how_many_fit_on_which() -> None:
    world = world_of(a=A, b1=B, b2=B, c=CARD)
    pods = [peer(number, minimum=3) for number in range(3)]
    world.add(*pods)
    refused = refusal(world, pods[0])
    assert refused.reason == "GangDoesNotFit"
    assert refused.message == (
        "job default/train: 3 pods must be placed together on servers of one product and only 1 on 910A, "
        "1 on 910-card, 2 on 910B-8 fit at once; for another one of 8 chips on 910B-8 the nodes refuse: "
        "2 NotEnoughChips, 2 WrongProduct"
    )
    assert len(world.ledger) == 0


def test_where_no_server_takes_any_of_a_gang_none_is_named() -> None:
    world = world_of(a=A, b=B)
    busy = [pod(f"busy-{name}", 8, node=name, chips=range(8), phase="Running") for name in ("a", "b")]
    world.add(*busy, *(pods := [peer(number, minimum=2) for number in range(2)]))
    assert "only 0 fit at once" in refusal(world, pods[0]).message


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_successor_goes_to_the_servers_its_peers_are_on(minimum: int) -> None:
    world = world_of(a=A, b1=B, b2=B)
    world.add(peer(0, minimum=minimum, on="b1"))
    assert placed(world, peer(1, minimum=minimum)) == ["b2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_successor_waits_for_the_servers_its_peers_are_on(minimum: int) -> None:
    world = world_of(a=A, b1=B)
    world.add(peer(0, minimum=minimum, on="b1"), late := peer(1, minimum=minimum))
    assert not world.engine.may_fit(late)
    refused = refusal(world, late)
    if minimum > 1:
        assert refused.message == (
            "job default/train: a pod of it has to join its peers on 910B-8 servers and does not fit; "
            "for one of 8 chips the nodes refuse: 1 NotEnoughChips, 1 WrongProduct"
        )
    else:
        assert refused.message.endswith("fit on none of 2 nodes: 1 NotEnoughChips, 1 WrongProduct")
        alone = refusal(world, late, ["a"])
        assert (alone.reason, alone.message) == (
            "WrongProduct",
            "the other pods of the job are on 910B-8 servers, this is a 910A server",
        )
    assert world.engine.filter(late).fitting == []
    world.add(node("b2", labels=B))
    assert world.engine.may_fit(late)
    assert world.engine.filter(late, ["a", "b1", "b2"]).fitting == ["b2"]
    assert world.engine.place(late).node == "b2"


def test_a_peer_whose_place_is_only_reserved_counts() -> None:
    world = world_of(a=A, b1=B, b2=B)
    first, second = peer(0), peer(1)
    world.add(first, second)
    assert world.engine.place(first, ["b1"]).node == "b1"
    assert world.engine.place(second).node == "b2"
    world.ledger.release(first.uid)
    world.ledger.release(second.uid)
    assert world.engine.place(second).node == "a"


def test_a_pod_keeps_its_own_place_while_it_has_no_peer_elsewhere() -> None:
    world = world_of(a=A, b=B)
    first = peer(0)
    world.add(first, peer(1))
    assert world.engine.place(first, ["b"]).node == "b"
    assert world.engine.place(first).node == "b"
    assert world.engine.place(first, ["a"]).node == "a"


@pytest.mark.parametrize("kind", ["ReplicaSet", "ReplicationController", "Job", "DaemonSet"])
def test_replicas_in_a_group_of_which_one_pod_is_enough_go_each_where_it_fits(kind: str) -> None:
    world = world_of(a=A, b1=B, b2=B)
    replicas = [owned_by(peer(number), kind) for number in range(3)]
    world.add(*replicas)
    for each in replicas:
        assert not world.engine.ask(each).minds_network
    assert placed(world, *replicas) == ["a", "b1", "b2"]


@pytest.mark.parametrize(
    ("kind", "version"),
    [("StatefulSet", "apps/v1"), ("PyTorchJob", "kubeflow.org/v1"), ("Job", "batch.volcano.sh/v1alpha1")],
)
def test_pods_that_train_together_do_so_in_a_group_of_which_one_pod_is_enough(kind: str, version: str) -> None:
    world = world_of(a=A, b1=B, b2=B)
    pods = [owned_by(peer(number), kind, version) for number in range(2)]
    assert placed(world, pods[0]) == ["a"]
    world.add(pods[1])
    assert refusal(world, pods[1], ["b1"]).reason == "WrongProduct"


def test_replicas_that_a_minimum_says_need_each_other_are_placed_together() -> None:
    world = world_of(a=A, b1=B, b2=B)
    assert placed(world, *(owned_by(peer(number, minimum=2), "ReplicaSet") for number in range(2))) == ["b1", "b2"]


def test_pods_that_ended_leave_or_ask_for_no_chips_are_no_peers_to_join() -> None:
    world = world_of(a=A, b=B)
    ended = pod("train-5", 8, node="b", phase="Succeeded", annotations={GROUP: "train"})
    leaving = pod("train-6", 1, node="b", chips=[0], phase="Running", annotations={GROUP: "train"}, leaving=True)
    world.add(ended, leaving, peer(7, chips=None, on="b"), peer(1))
    assert placed(world, peer(0)) == ["a"]


def test_replicas_that_work_each_for_itself_may_be_on_any_servers() -> None:
    world = world_of(a=A, b=B)
    owner = OwnerReference(kind="ReplicaSet", name="web", uid="u", controller=True)
    pods = [
        msgspec.structs.replace(
            (each := pod(f"web-{number}", 8)),
            metadata=msgspec.structs.replace(each.metadata, owner_references=[owner]),
        )
        for number in range(2)
    ]
    assert placed(world, *pods) == ["a", "b"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_peer_on_a_node_of_which_nothing_is_known_holds_nobody_up(minimum: int) -> None:
    world = world_of(a=A)
    world.add(peer(0, minimum=minimum, on="gone"))
    assert placed(world, peer(1, minimum=minimum)) == ["a"]


@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize(("ready", "cordoned"), [(False, False), (True, True)])
def test_a_peer_on_a_node_that_takes_no_pods_now_still_counts(minimum: int, *, ready: bool, cordoned: bool) -> None:
    world = world_of(a=A, b2=B)
    world.add(node("b1", labels=B, ready=ready, cordoned=cordoned), peer(0, minimum=minimum, on="b1"))
    assert placed(world, peer(1, minimum=minimum)) == ["b2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_what_a_server_is_counts_as_it_is_told_last(minimum: int) -> None:
    world = world_of(n1=A, n2=A)
    world.add(peer(0, minimum=minimum, on="n1"), late := peer(1, minimum=minimum))
    assert world.engine.filter(late).fitting == ["n2"]
    world.add(other := node("n1", labels=B))
    assert "WrongProduct" in refusal(world, late).message
    world.cluster.node_deleted(other)
    assert not world.cluster.is_mixed
    assert world.engine.filter(late).fitting == ["n2"]


@pytest.mark.parametrize("minimum", [1, 4])
def test_a_job_that_others_have_spread_may_use_what_it_is_on_and_nothing_else(minimum: int) -> None:
    world = world_of(a1=A, b1=B, b2=B, c1=CARD, c2=CARD)
    world.add(peer(0, minimum=minimum, on="b1"), peer(1, minimum=minimum, on="c1"))
    assert sorted(placed(world, peer(2, minimum=minimum), peer(3, minimum=minimum))) == ["b2", "c2"]
    world.add(late := peer(4, minimum=minimum))
    assert "1 WrongProduct" in refusal(world, late).message


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_pod_that_names_other_servers_than_its_peers_are_on_gets_those(minimum: int) -> None:
    world = world_of(a=A, b1=B, b2=B)
    world.add(peer(0, minimum=minimum, on="a"))
    assert placed(world, meant_for(peer(1, minimum=minimum), B)) == ["b1"]


X, Y = {"pool": "x"}, {"pool": "y"}


@pytest.mark.parametrize("number_asked", [0, 1])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (meant_for(peer(0, minimum=2), A), meant_for(peer(1, minimum=2), B)),
        (meant_for(peer(0, minimum=2), X), meant_for(peer(1, minimum=2), Y)),
        (meant_for(peer(0, minimum=2), X), meant_for(peer(1, minimum=2), B)),
        (
            peer(0, minimum=2, policy="chip4-node8"),
            peer(1, minimum=2, policy="chip8-node8"),
        ),
    ],
    ids=["types", "pools", "a pool and a type", "policies"],
)
def test_members_that_name_servers_of_different_products_are_placed_on_these(
    first: Pod, second: Pod, number_asked: int
) -> None:
    world = world_of(a=A | X, b=B | Y)
    world.add(first, second)
    assert world.engine.filter((first, second)[number_asked], ["a", "b"]).fitting == ["ab"[number_asked]]
    assert [world.engine.place(each).node for each in (first, second)] == ["a", "b"]


@pytest.mark.parametrize("number_asked", range(4))
def test_members_that_name_no_servers_stay_together_where_others_name_different_ones(number_asked: int) -> None:
    world = world_of(a0=A, a1=A, b0=B, b1=B)
    pods = [meant_for(peer(0, minimum=4), A), meant_for(peer(1, minimum=4), B), peer(2, minimum=4), peer(3, minimum=4)]
    world.add(*pods)
    assert refusal(world, pods[number_asked]).reason == "GangDoesNotFit"
    world.add(node("b2", labels=B))
    world.engine.place(pods[number_asked])
    assert [world.engine.place(each).node for each in pods] == ["a0", "b0", "b1", "b2"]


def test_members_that_name_servers_of_different_products_are_placed_together_or_not_at_all() -> None:
    world = world_of(a=A, b=B)
    world.add(pod("busy", 8, node="b", chips=range(8), phase="Running"))
    world.add(first := meant_for(peer(0, minimum=2), A), meant_for(peer(1, minimum=2), B))
    message = refusal(world, first).message
    assert message.startswith("job default/train: 2 pods must be placed together and only ")
    assert message.endswith("for another one of 8 chips the nodes refuse: 1 NotEnoughChips")
    assert len(world.ledger) == 0


def test_members_whose_pools_have_a_product_in_common_wait_for_servers_of_that() -> None:
    world = world_of(a1=A | X, b1=B | X, a2=A | Y, c2=CARD | Y)
    world.add(pod("busy", 8, node="a2", chips=range(8), phase="Running"))
    world.add(first := meant_for(peer(0, minimum=2), X), meant_for(peer(1, minimum=2), Y))
    assert "on servers of one product" in refusal(world, first).message
    world.add(node("a3", labels=A | Y))
    assert world.engine.place(first).node == "a1"
    assert sorted(each.node for each in world.ledger) == ["a1", "a3"]


def test_what_a_pool_has_in_common_with_another_is_told_by_its_servers_as_they_are_now() -> None:
    world = world_of(a1=A | X, b2=A | Y)
    world.add(first := meant_for(peer(0, minimum=2), X), meant_for(peer(1, minimum=2), Y))
    world.add(node("b2", labels=A | Y, cordoned=True), node("c2", labels=CARD | Y))
    assert "on servers of one product" in refusal(world, first).message
    world.add(node("b2", labels=B | Y, cordoned=True))
    assert world.engine.place(first).node == "a1"


@pytest.mark.parametrize("candidates", [["a1"], ["a1", "a2"]])
def test_the_nodes_a_scheduler_speaks_of_are_not_named_by_the_pod(candidates: list[str]) -> None:
    world = world_of(a1=A, a2=A, b=B)
    world.add(first := peer(0, minimum=2), meant_for(peer(1, minimum=2), B))
    assert refusal(world, first, candidates).reason in ("GangDoesNotFit", "WrongProduct")


def test_of_a_job_larger_than_its_minimum_those_that_name_no_different_servers_stay_together() -> None:
    world = world_of(a=A, b1=B, b2=B)
    pods = [peer(0, minimum=2), peer(1, minimum=2), meant_for(peer(2, minimum=2), A), meant_for(peer(3, minimum=2), B)]
    world.add(pod("busy", 8, node="a", chips=range(8), phase="Running"), *pods)
    assert [world.engine.place(each).node for each in pods[:2]] == ["b1", "b2"]


@pytest.mark.parametrize("minimum", [1, 2])
def test_a_successor_whose_pool_has_no_servers_like_those_of_its_peers_goes_to_its_pool(minimum: int) -> None:
    world = world_of(a1=A | X, a2=A | X, b=B | Y)
    world.add(peer(0, minimum=minimum, on="a1"), late := meant_for(peer(1, minimum=minimum), Y))
    assert isinstance(Preemption(world.cluster, world.ledger, world.engine).sacrifice(late, "b"), Sacrifice)
    assert world.engine.place(late, ["b"]).node == "b"


@pytest.mark.parametrize("number_asked", [2, 3])
def test_of_successors_only_the_one_that_names_other_servers_leaves_those_of_its_peers(number_asked: int) -> None:
    world = world_of(a0=A, a1=A, a2=A, b0=B, b1=B)
    world.add(*(peer(number, minimum=4, on=f"a{number}") for number in range(2)))
    late = {2: meant_for(peer(2, minimum=4), B), 3: peer(3, minimum=4)}
    world.add(*late.values())
    world.engine.place(late[number_asked])
    assert [world.engine.place(each).node for each in late.values()] == ["b0", "a2"]


def test_a_gang_planned_again_after_a_restart_joins_its_bound_pods() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B, b3=B)
    world.add(peer(0, minimum=3, on="b2"), *(peer(number, minimum=3) for number in (1, 2)))
    assert world.engine.gangs.resume() == []
    assert [each.node for each in world.ledger] == ["b1", "b3"]
    assert world.ledger.count(Stage.PLANNED) == 2


def planned_on_servers_cordoned_since(world: World) -> list[Pod]:
    """The two pods of a gang."""
    pods = [peer(number, minimum=2) for number in range(2)]
    assert placed(world, *pods) == ["a1", "a2"]
    world.add(*(node(name, labels=A, cordoned=True) for name in ("a1", "a2")))
    return pods


def test_a_gang_is_planned_anew_once_no_peer_is_left_on_servers_that_are_cordoned() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    first, second = pods = planned_on_servers_cordoned_since(world)
    world.ledger.advance(first.uid, Stage.BINDING)
    assert "on 910A servers" in refusal(world, second).message
    assert not world.engine.may_fit(second)
    world.ledger.withdraw(first.uid)
    # Nothing is shown of the pods meanwhile.
    assert [world.engine.place(each).node for each in pods] == ["b1", "b2"]


def test_a_gang_is_asked_for_again_once_no_peer_is_left_on_servers_that_are_cordoned() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    first, second = planned_on_servers_cordoned_since(world)
    world.ledger.advance(first.uid, Stage.BINDING)
    assert "on 910A servers" in refusal(world, second).message
    assert not world.engine.may_fit(second)
    world.ledger.release(first.uid)
    assert world.engine.may_fit(second)


def test_a_pod_is_not_told_to_join_itself_because_a_peer_was_told_to_join_it() -> None:
    world = world_of(a1=A, a2=A, b1=B, b2=B)
    first, second = pods = [peer(number, minimum=2) for number in range(2)]
    assert placed(world, *pods) == ["a1", "a2"]
    world.cluster.pod_deleted(second)
    world.add(successor := peer(2, minimum=2))
    assert world.engine.filter(successor, ["b1", "b2"]).fitting == []
    assert world.engine.filter(first, ["b1", "b2"]).fitting == ["b1"]


kinds = st.sampled_from(["910A", "910B-8", "910-card", "mesh-8"])
servers = st.lists(st.tuples(kinds, st.integers(0, 255)), min_size=1, max_size=7)
asks = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=2, max_size=6)


def cluster_of(some: list[tuple[str, int]], *, only: str = "") -> World:
    world = World()
    for number, (product, free) in enumerate(some):
        if only in ("", product):
            name = f"n{number}"
            world.add(node(name, labels={TYPE: PRODUCTS[product].node_types[0]}))
            busy = [chip for chip in range(8) if not free >> chip & 1]
            world.add(*(pod(f"{name}-{chip}", 1, node=name, chips=[chip], phase="Running") for chip in busy))
    return world


@settings(max_examples=200, deadline=None)
@given(some=servers, asks=asks, distributed=st.booleans(), own=st.none() | st.sets(st.integers(0, 6), min_size=1))
def test_a_planned_gang_is_on_the_first_product_that_takes_all_of_it_alone(
    some: list[tuple[str, int]], asks: list[int], *, distributed: bool, own: set[int] | None
) -> None:
    candidates = None if own is None else frozenset(f"n{number}" for number in own)
    members = tuple(
        # One of them may have nodes of its own.
        Member(f"u{n}", f"default/p{n}", n, Ask(chips, distributed=distributed), candidates if n == 0 else None)
        for n, chips in enumerate(asks)
    )
    request = GangRequest(JobKey("default", "train", VOLCANO), members)
    found = pack(request, cluster_of(some).cluster.index)
    alone = {name: pack(request, cluster_of(some, only=name).cluster.index) for name in PRODUCTS}
    takes = [name for name in PRODUCTS if not isinstance(alone[name], Refusal)]
    if isinstance(found, Refusal):
        assert takes == []
        return
    assert {some[int(seat.node[1:])][0] for seat in found} == {takes[0]}
    assert found == alone[takes[0]]


joining = st.lists(st.tuples(st.sampled_from(["come", "bind elsewhere", "go"]), st.integers(0, 4)), max_size=12)


@settings(max_examples=150, deadline=None)
@given(some=servers, history=joining, minimum=st.sampled_from([1, 2]))
def test_whoever_comes_and_goes_no_decision_leaves_the_products_the_job_is_on(
    some: list[tuple[str, int]], history: list[tuple[str, int]], minimum: int
) -> None:
    world = cluster_of([(product, 255) for product, _ in some])
    there: dict[int, str] = {}
    for what, number in history:
        if number in there:
            if what == "go":
                world.cluster.pod_deleted(peer(number, minimum=minimum, on=there.pop(number)))
            continue
        idle = [f"n{at}" for at in range(len(some)) if f"n{at}" not in there.values()]
        if what == "bind elsewhere" and idle:
            there[number] = idle[number % len(idle)]
        elif what == "come":
            world.add(late := peer(number, minimum=minimum))
            before = {some[int(name[1:])][0] for name in there.values()}
            try:
                there[number] = world.engine.place(late).node
            except Refusal:
                world.cluster.pod_deleted(late)
                suitable = [name for name in idle if not before or some[int(name[1:])][0] in before]
                # A gang that is not complete waits whatever is free.
                assert not suitable or (minimum > 1 and not there)
                continue
            assert not before or some[int(there[number][1:])][0] in before
        if number in there:
            world.add(peer(number, minimum=minimum, on=there[number]))
