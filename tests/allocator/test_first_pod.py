"""The first pod of a job that is no gang goes where the others can follow, as far as their number is known."""

from unittest import mock

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator import asking
from allocator.gangs.packing import pack
from allocator.gangs.policy import GangRequest, Member
from allocator.rules.job import VOLCANO, JobKey
from allocator.rules.request import Ask
from allocator.state.peers import product_for_all
from ascend.errors import Refusal
from ascend.kube.objects import Metadata, OwnerReference, Pod, StatefulSet, StatefulSetSpec
from ascend.products import PRODUCTS
from tests.allocator.builders import World, pod
from tests.allocator.test_one_product import CARD, A, B, cluster_of, meant_for, placed, servers, world_of


def ordinal(number: int, chips: int = 8) -> Pod:
    made = pod(f"s-{number}", chips)
    owner = OwnerReference(kind="StatefulSet", name="s", uid="u", controller=True)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, owner_references=[owner]))


def of_four(world: World, replicas: int = 4) -> World:
    owner = Metadata(name="s", namespace="default")
    world.cluster.jobs.owner_applied(StatefulSet(metadata=owner, spec=StatefulSetSpec(replicas)))
    return world


def test_the_first_pod_leaves_the_preferred_server_where_the_others_could_not_follow() -> None:
    world = of_four(world_of(a=A, b0=B, b1=B, b2=B, b3=B))
    assert placed(world, *(ordinal(number) for number in range(4))) == ["b0", "b1", "b2", "b3"]


def test_the_first_pod_goes_to_the_preferred_servers_where_all_can_follow() -> None:
    world = of_four(world_of(a0=A, a1=A, a2=A, a3=A, b0=B, b1=B, b2=B, b3=B))
    assert placed(world, *(ordinal(number) for number in range(4))) == ["a0", "a1", "a2", "a3"]


def test_where_no_product_takes_all_the_first_pod_goes_to_the_preferred_server() -> None:
    world = of_four(world_of(a=A, b0=B, b1=B, b2=B))
    assert world.engine.place(ordinal(0)).node == "a"


def test_a_pod_alone_goes_to_the_preferred_server() -> None:
    world = of_four(world_of(a=A, b0=B, b1=B), replicas=1)
    assert world.engine.place(ordinal(0)).node == "a"


def test_every_answer_prefers_the_same_servers_before_and_after_the_place_is_kept() -> None:
    world = of_four(world_of(a=A, b0=B, b1=B, b2=B, b3=B))
    for _ in range(2):
        assert world.engine.rank(ordinal(0))[0].nodes == ["b0", "b1", "b2", "b3"]
        assert [name for name, _ in world.engine.fits(ordinal(0))] == ["b0", "b1", "b2", "b3", "a"]
        assert world.engine.place(ordinal(0)).node == "b0"


@pytest.mark.parametrize("candidates", [["a"], ["a", "c"]])
def test_a_scheduler_that_names_only_other_servers_is_not_refused(candidates: list[str]) -> None:
    world = of_four(world_of(a=A, b0=B, b1=B, b2=B, b3=B, c=CARD))
    assert world.engine.filter(ordinal(0), candidates).fitting == candidates
    assert world.engine.place(ordinal(0), candidates).node == "a"


def test_where_all_of_a_job_fit_is_found_out_once_until_something_changes() -> None:
    pool = {"pool": "x"}
    world = of_four(world_of(a=A, b0=B, b1=B, b2=B, b3=B | pool))
    with mock.patch.object(asking, "product_for_all", wraps=product_for_all) as found_out:
        for number in range(4):
            assert world.engine.ask(ordinal(number)).prefers == "910B-8"
        assert found_out.call_count == 1
        assert world.engine.ask(meant_for(ordinal(0), pool)).prefers is None
        assert world.engine.ask(ordinal(0, chips=4)).prefers == "910B-8"
        of_four(world, replicas=5)
        assert world.engine.ask(ordinal(0)).prefers is None
        of_four(world, replicas=4)
        assert world.engine.ask(ordinal(0)).prefers == "910B-8"
        world.add(pod("busy", 8, node="b0", chips=range(8), phase="Running"))
        assert world.engine.ask(ordinal(0)).prefers is None


def test_servers_without_the_labels_the_job_wants_are_not_counted() -> None:
    pool = {"pool": "x"}
    world = of_four(world_of(a0=A, a1=A | pool, b0=B | pool, b1=B | pool), replicas=2)
    first = meant_for(ordinal(0), pool)
    # What a scheduler names may be a sample of what there is, so the labels count.
    assert world.engine.place(first, ["a1", "b0"]).node == "b0"


@settings(max_examples=200, deadline=None)
@given(
    some=servers,
    chips=st.sampled_from([1, 2, 4, 8]),
    count=st.integers(2, 12),
    distributed=st.booleans(),
    own=st.none() | st.sets(st.integers(0, 6), min_size=1),
)
def test_the_product_for_all_is_the_one_a_gang_of_such_pods_would_be_packed_on(
    some: list[tuple[str, int]], chips: int, count: int, own: set[int] | None, *, distributed: bool
) -> None:
    ask = Ask(chips, distributed=distributed)
    names = None if own is None else frozenset(f"n{number}" for number in own)
    members = tuple(Member(f"u{number}", f"default/p{number}", number, ask, names) for number in range(count))
    index = cluster_of(some).cluster.index
    takes = (
        name
        for name in PRODUCTS
        if not isinstance(
            pack(
                GangRequest(JobKey("default", "s", VOLCANO), members, products=frozenset({name})),
                index,
            ),
            Refusal,
        )
    )
    assert product_for_all(count, ask, index, names) == next(takes, None)
