"""Chips are kept for the pods of a job that do not exist yet, if all of them fit; they get these when they come."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from allocator.decision.expected import ExpectedPods
from allocator.gangs.gradual import MANY
from ascend.errors import Refusal
from ascend.kube.objects import NodeSpec, Pod, Taint
from ascend.reasons import Reason
from tests.allocator.builders import World, node, owned_by, pod, selecting
from tests.allocator.expiry import expire
from tests.allocator.gangs.builders import MESHES, TTL_S, bind, gang, of_pool, world_of

STAND_IN = "expected-"


class Ahead:
    """Keeps chips for pods that don't exist."""

    def __init__(self, world: World) -> None:
        self._expected = ExpectedPods(world.engine)
        self.release = self._expected.release

    def keep(self, pods: Sequence[Pod], ttl_s: float) -> tuple[str, ...]:
        return asyncio.run(self._expected.keep(pods, ttl_s))

    def never_fit(self, pods: Sequence[Pod]) -> str | None:
        return asyncio.run(self._expected.never_fit(pods))


def expected(world: World) -> Ahead:
    return Ahead(world)


def stand_ins(pods: Sequence[Pod]) -> list[Pod]:
    """The pods under names and uids that no pod of the cluster will have."""
    return [
        pod(
            f"{STAND_IN}{each.name}", annotations=each.metadata.annotations, selector=each.spec.node_selector,
            containers=list(each.spec.containers),
        )
        if each.metadata.controller is None
        else owned_by(pod(f"{STAND_IN}{each.name}", containers=list(each.spec.containers)), "ReplicaSet", "apps/v1")
        for each in pods
    ]  # fmt: skip


def replicas(count: int, chips: int) -> list[Pod]:
    """Pods that start one by one."""
    return [owned_by(pod(f"r-{number}", chips), "ReplicaSet", "apps/v1") for number in range(count)]


def test_the_pods_of_a_gang_get_the_seats_that_were_kept_for_them() -> None:
    world, pods = world_of(3), gang("train", 2)
    expected(world).keep(stand_ins(pods), TTL_S)
    seats = {seat.node for seat in world.ledger}
    assert len(seats) == 2
    other = gang("other", 2)
    world.add(*other)
    assert world.refusal(other[0]).reason is Reason.GANG_DOES_NOT_FIT
    world.add(*pods)
    assert {bind(world, each).spec.node_name for each in pods} == seats
    assert not world.ledger


def test_pods_that_start_one_by_one_get_the_chips_that_were_kept_for_them() -> None:
    world, pods = world_of(2, **MESHES), replicas(4, 4)
    expected(world).keep(stand_ins(pods), TTL_S)
    assert world.refusal(pod("other", 4)).reason is not None
    for each in pods:
        world.add(each)
        world.engine.place(each)
    assert sorted(held.node for held in world.ledger) == ["n0", "n0", "n1", "n1"]


@pytest.mark.parametrize("nodes", [MANY + 10, MANY + 9])
def test_large_gangs_are_kept_chips_piece_by_piece(nodes: int) -> None:
    world, pods = world_of(nodes), gang("train", MANY + 10)
    ahead = expected(world)
    if nodes < len(pods):
        with pytest.raises(Refusal):
            ahead.keep(stand_ins(pods), TTL_S)
        assert not world.ledger
        return
    ahead.keep(stand_ins(pods), TTL_S)
    assert len({seat.node for seat in world.ledger}) == len(pods)
    world.add(*pods)
    for each in pods:
        bind(world, each)
    assert not world.ledger


def test_two_jobs_of_a_workload_do_not_get_the_same_chips() -> None:
    world = world_of(3)
    ahead = expected(world)
    with pytest.raises(Refusal):
        ahead.keep(stand_ins([*gang("one", 2), *gang("two", 2)]), TTL_S)
    assert not world.ledger
    world.add(node("n3"))
    assert len(ahead.keep(stand_ins([*gang("one", 2), *gang("two", 2)]), TTL_S)) == 2
    assert len({seat.node for seat in world.ledger}) == 4


def test_two_jobs_that_each_fit_alone_are_not_both_told_so() -> None:
    world = world_of(3)
    ahead = expected(world)
    ahead.keep(stand_ins(gang("one", 2)), TTL_S)
    with pytest.raises(Refusal) as refused:
        ahead.keep(stand_ins(gang("two", 2)), TTL_S)
    assert refused.value.reason is Reason.GANG_DOES_NOT_FIT


def test_what_is_refused_or_released_leaves_nothing() -> None:
    world = world_of(2)
    ahead = expected(world)
    with pytest.raises(Refusal):
        ahead.keep(stand_ins(gang("large", 3)), TTL_S)
    assert not world.ledger
    plans = ahead.keep(stand_ins(gang("train", 2)), TTL_S)
    ahead.release(plans)
    assert not world.ledger
    assert not world.ledger.plans


def test_seats_whose_pods_have_come_are_not_released() -> None:
    world, pods = world_of(2), gang("train", 2)
    ahead = expected(world)
    plans = ahead.keep(stand_ins(pods), TTL_S)
    world.add(*pods)
    world.engine.place(pods[0])
    ahead.release(plans)
    assert len(world.ledger) == 2


def evicted(each: Pod) -> Pod:
    """A pod that ends, as Kueue has taken its quota back."""
    return replace(each, metadata=replace(each.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))


def test_a_job_that_is_admitted_again_does_not_fit_beside_its_ending_pods() -> None:
    world, pods = world_of(2), gang("train", 2)
    world.add(*pods)
    world.add(*map(evicted, [bind(world, each) for each in pods]))
    with pytest.raises(Refusal):
        expected(world).keep(stand_ins(pods), TTL_S)


def test_a_job_that_is_admitted_again_gets_seats_where_its_pods_may_be_now() -> None:
    world = World()
    world.add(*(node(f"n{number}", labels={"pool": "ab"[number // 2]}) for number in range(4)))
    pods = [of_pool(each, "a") for each in gang("train", 2)]
    world.add(*pods)
    for each in pods:
        world.engine.place(each)
    world.add(*map(evicted, pods))
    expected(world).keep(stand_ins([of_pool(each, "b") for each in pods]), TTL_S)
    assert {seat.node for seat in world.ledger} == {"n2", "n3"}


def test_the_seats_of_a_job_that_is_admitted_again_outlive_its_ending_pods() -> None:
    world, pods = world_of(4), gang("train", 2)
    world.add(*pods)
    ending = [evicted(bind(world, each)) for each in pods]
    world.add(*ending)
    expected(world).keep(stand_ins(pods), TTL_S)
    seats = {seat.node for seat in world.ledger}
    assert len(seats) == 2
    for each in ending:
        world.cluster.pod_deleted(each)
    assert {seat.node for seat in world.ledger} == seats


def test_seats_expire_without_their_pods() -> None:
    world = world_of(2)
    expected(world).keep(stand_ins(gang("train", 2)), TTL_S)
    other = gang("other", 2)
    world.add(*other)
    world.refusal(other[0])
    world.now_s += TTL_S
    expire(world.ledger)
    assert world.engine.place(other[0]).node


def test_seats_on_a_node_that_fails_are_released_together() -> None:
    world = world_of(3)
    expected(world).keep(stand_ins(gang("train", 2)), TTL_S)
    (first, *_) = [seat.node for seat in world.ledger]
    world.add(node(first, ready=False))
    world.engine.filter(pod("any", 1))
    assert not world.ledger


def test_only_nodes_count_that_a_scheduler_would_offer() -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), node("n1", labels={"pool": "b"}))
    ahead = expected(world)
    with pytest.raises(Refusal):
        ahead.keep(stand_ins([selecting(each, {"pool": "a"}) for each in gang("train", 2)]), TTL_S)
    taint = Taint(key="dedicated", effect="NoSchedule")
    world.add(replace(node("n1", labels={"pool": "b"}), spec=NodeSpec(taints=(taint,))))
    with pytest.raises(Refusal):
        ahead.keep(stand_ins(gang("train", 2)), TTL_S)
    assert ahead.keep(stand_ins(gang("train", 1)), TTL_S)


def test_nodes_count_as_they_are_now() -> None:
    world = world_of(1)
    ahead = expected(world)
    pods = stand_ins([of_pool(pod("train", 8), "a")])
    for labels, taints, fits in (
        ({}, (), False),
        ({"pool": "a"}, (), True),
        ({"pool": "a"}, (Taint(key="own", effect="NoSchedule"),), False),
        ({"pool": "b"}, (), False),
    ):
        world.add(replace(node("n0", labels=labels), spec=NodeSpec(taints=taints)))
        if fits:
            ahead.release(ahead.keep(pods, TTL_S))
        else:
            with pytest.raises(Refusal):
                ahead.keep(pods, TTL_S)
    world.add(node("n1", labels={"pool": "a"}))
    ahead.keep(pods, TTL_S)
    assert [seat.node for seat in world.ledger] == ["n1"]


def test_a_pod_alone_is_refused_with_the_sentence_of_its_event() -> None:
    world = world_of(2)
    for number in range(2):
        world.add(pod(f"holder-{number}", 5, node=f"n{number}", chips=range(5), phase="Running"))
    other = pod("other", 4)
    with pytest.raises(Refusal) as refused:
        expected(world).keep([pod(f"{STAND_IN}other", 4)], TTL_S)
    said, told = refused.value.message, world.refusal(other).message
    assert said.replace(STAND_IN, "") == told


@pytest.mark.parametrize(
    ("pods", "says"),
    [(gang("train", 2), None), (gang("train", 3), "of 3 such pods 2 fit"), (gang("train", 1, chips=16), "16")],
)
def test_it_is_known_what_never_fits(pods: list[Pod], says: str | None) -> None:
    world = world_of(2)
    world.add(pod("holder", 8, node="n0", chips=range(8), phase="Running"))
    never = expected(world).never_fit(stand_ins(pods))
    assert never is None if says is None else says in (never or "")


@given(
    held=st.lists(st.integers(0, 255), min_size=1, max_size=5),
    jobs=st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.sampled_from([1, 2, 4, 8])), max_size=5),
)
def test_what_is_told_to_fit_gets_its_chips(held: list[int], jobs: list[tuple[bool, int, int]]) -> None:
    world = world_of(len(held), **MESHES)
    for number, chips in enumerate(held):
        there = [chip for chip in range(8) if chips >> chip & 1]
        if there:
            world.add(pod(f"h-{number}", len(there), node=f"n{number}", chips=there, phase="Running"))
    ahead, admitted = expected(world), []
    for number, (together, count, chips) in enumerate(jobs):
        pods = gang(f"j{number}", count, chips=chips) if together else [pod(f"j{number}", chips)]
        before = {held.uid for held in world.ledger}
        try:
            ahead.keep(stand_ins(pods) if together else pods, TTL_S)
        except Refusal:
            assert {held.uid for held in world.ledger} == before
        else:
            admitted += pods
    world.add(*admitted)
    for each in reversed(admitted):
        assert bind(world, each).spec.node_name
    assert not world.ledger
