"""How many pods of a job may be on one server: a rule of the product."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.settings import Settings
from ascend.annotations import Grant
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue, Refusal
from ascend.jobs.pod_groups import VOLCANO
from ascend.kube.objects import Pod
from ascend.products import PRODUCTS
from ascend.reasons import Category, Reason
from tests.allocator.builders import GROUP, TYPE, World, node, pod_group, stateful_set
from tests.allocator.jobs.manifests import made, ordinal

A3, A3_8, B8 = ({TYPE: name} for name in ("module-a3-16-super-pod", "module-a3-8", "module-910b-8"))


def world(labels: Mapping[str, str], nodes: int, *, sharing: tuple[str, ...] = ()) -> World:
    """Servers of a product."""
    world = World(sharing_products=sharing)
    chips = 16 if labels is A3 else 8
    world.add(*(node(f"n{at}", labels=labels, chips=range(chips), allocatable=chips) for at in range(nodes)))
    return world


def gang(world: World, number: int, minimum: int | None = None, *, request: int = 4) -> list[Pod]:
    """The pods of a PodGroup."""
    world.cluster.jobs.group_applied(VOLCANO, pod_group(number if minimum is None else minimum))
    world.cluster.jobs.on_watched(VOLCANO)
    owner = ("x/v1", "Trainer", "t")
    pods = [made(f"train-{at}", owner, annotations={GROUP: "train"}, request=request) for at in range(number)]
    world.add(*pods)
    return pods


def single(world: World, number: int, *, request: int = 4) -> list[Pod]:
    """The pods of a StatefulSet, which are placed one by one."""
    world.cluster.jobs.owners.apply(stateful_set(number))
    pods = [ordinal(at, request=request) for at in range(number)]
    world.add(*pods)
    return pods


def test_the_makers_rule_is_data_of_the_product() -> None:
    assert {name for name, product in PRODUCTS.items() if not product.shared_by_peers} == {"910A", "A3-8", "A3-16"}


@pytest.mark.parametrize("labels", [A3, A3_8])
@pytest.mark.parametrize("pods_of", [gang, single])
def test_each_pod_of_a_job_gets_an_a3_server_of_its_own(labels: Mapping[str, str], pods_of: object) -> None:
    assert callable(pods_of)
    made = world(labels, 3)
    pods = pods_of(made, 3)
    assert sorted(made.engine.place(each).node for each in pods) == ["n0", "n1", "n2"]
    # The same again, with the reservations.
    assert len({made.engine.place(each).node for each in pods}) == 3


@pytest.mark.parametrize("pods_of", [gang, single])
def test_pods_of_a_job_may_share_a_910b_server(pods_of: object) -> None:
    assert callable(pods_of)
    made = world(B8, 2)
    assert {made.engine.place(each).node for each in pods_of(made, 2)} == {"n0"}


@pytest.mark.parametrize("pods_of", [gang, single])
def test_a_setting_allows_to_share_a_server(pods_of: object) -> None:
    assert callable(pods_of)
    made = world(A3, 2, sharing=("A3-16",))
    assert {made.engine.place(each).node for each in pods_of(made, 2)} == {"n0"}


def test_a_setting_must_name_a_product() -> None:
    with pytest.raises(InvalidValue, match="is not a product"):
        fixed_settings(Settings, None, {"sharing_products": ["A4"]})


def test_a_gang_with_fewer_servers_than_pods_does_not_fit() -> None:
    made = world(A3, 2)
    refusal = made.refusal(gang(made, 3)[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert "3 pods must be placed together and only 2 fit at once" in refusal.message
    assert "2 PeerOnNode" in refusal.message


def test_the_servers_of_peers_refuse_a_single_pod_with_a_sentence() -> None:
    made = world(A3, 2)
    pods = single(made, 3)
    assert {made.engine.place(each).node for each in pods[:2]} == {"n0", "n1"}
    assert made.refusal(pods[2]).reason is Reason.PEER_ON_NODE
    refusal = made.refusal(pods[2], ["n0"])
    assert "another pod of the job is on the node" in refusal.message
    found = made.engine.filter(pods[2])
    assert found.fitting == []
    # No pod is preempted for it: room would not help.
    assert {each.reason.category for each in found.refused.values()} == {Category.MISMATCH}
    assert made.engine.rank(pods[2]) == []
    assert not made.engine.may_fit(pods[2])
    made.add(node("n2", labels=A3, chips=range(16), allocatable=16))
    assert made.engine.may_fit(pods[2])
    assert made.engine.filter(pods[2]).fitting == ["n2"]
    assert [tier.nodes for tier in made.engine.rank(pods[2])] == [["n2"]]
    assert made.engine.place(pods[2]).node == "n2"


@pytest.mark.parametrize("pods_of", [gang, single])
def test_a_binding_to_the_server_of_a_peer_is_refused(pods_of: object) -> None:
    assert callable(pods_of)
    made = world(A3, 2)
    first, second = pods_of(made, 2)
    assert made.engine.place_on(first, "n0").node == "n0"
    with pytest.raises(Refusal) as refused:
        made.engine.place_on(second, "n0")
    assert refused.value.reason is Reason.PEER_ON_NODE
    assert made.engine.place_on(second, "n1").node == "n1"


def test_a_later_pod_of_a_started_gang_avoids_the_servers_of_its_peers() -> None:
    made_world = world(A3, 3)
    pods = gang(made_world, 3, 2)
    written = {GROUP: "train", **Grant(tuple(range(4)), 7).annotations()}
    bound = [made(each.name, None, annotations=written, node=f"n{at}", request=4) for at, each in enumerate(pods)]
    made_world.add(*bound[:2])
    assert made_world.engine.place(pods[2]).node == "n2"
    with pytest.raises(Refusal, match="PeerOnNode"):
        made_world.engine.place(pods[2], ["n0", "n1"])


def test_a_server_is_free_for_the_successor_of_its_pod() -> None:
    made_world = world(A3, 2)
    pods = single(made_world, 2)
    for each in pods:
        made_world.engine.place(each)
    made_world.engine.release(pods[0].uid)
    made_world.cluster.pod_deleted(pods[0])
    successor = ordinal(0, request=4, uid="again")
    made_world.add(successor)
    assert made_world.engine.place(successor).node == "n0"


@given(
    nodes=st.integers(1, 5),
    sizes=st.lists(st.sampled_from([2, 4, 8, 16]), min_size=2, max_size=6),
    minimum=st.integers(2, 6),
    asked=st.lists(st.tuples(st.integers(0, 5), st.none() | st.integers(0, 4)), max_size=12),
)
def test_no_two_pods_of_a_gang_ever_share_an_a3_server(
    nodes: int, sizes: list[int], minimum: int, asked: list[tuple[int, int | None]]
) -> None:
    world_of = world(A3, nodes)
    names = [each.name for each in gang(world_of, len(sizes), min(minimum, len(sizes)))]
    owner, marks = ("x/v1", "Trainer", "t"), {GROUP: "train"}
    pods = [made(name, owner, annotations=marks, request=size) for name, size in zip(names, sizes, strict=True)]
    world_of.add(*pods)
    for number, candidate in asked:
        each = pods[number % len(pods)]
        try:
            world_of.engine.place(each, None if candidate is None else [f"n{candidate % nodes}"])
        except Refusal:
            continue
        held = [seat.node for one in pods if (seat := world_of.ledger.get(one.uid)) is not None]
        assert len(set(held)) == len(held)
