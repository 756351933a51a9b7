"""The seats of a plan: which pod has which, who may take an empty one, and how long they stay reserved."""

import random

import pytest

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, RANK
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod, selecting
from tests.allocator.expiry import expire
from tests.allocator.gangs.builders import MESHES, TTL_S, TWO, bind, gang, of_pool, reason, world_of


@pytest.mark.parametrize("seed", range(4))
def test_all_seats_are_reserved_at_once_and_taken_in_any_order(seed: int) -> None:
    world = world_of(4)
    pods = gang("train", 4)
    world.add(*pods)
    order = random.Random(seed).sample(pods, 4)
    world.engine.place(order[0])
    assert world.ledger.count(Stage.PLANNED) == 4
    assert reason(world, pod("other", 1)) is Reason.NOT_ENOUGH_CHIPS
    assert {world.engine.place(each).node for each in order} == {"n0", "n1", "n2", "n3"}
    for each in order:
        bind(world, each)
    assert len(world.ledger) == 0


def test_a_pod_swaps_its_seat_with_a_peer_for_its_candidates() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    world.add(one, two)
    assert world.engine.place(one).node == "n0"
    assert world.engine.place(two, ["n0"]).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_pod_that_joins_another_gang_leaves_its_seat() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    left = pod(pods[0].name, 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})
    world.add(left, *(others := gang("other", 1, minimum=2)))
    assert {world.engine.place(each).node for each in (left, *others)} == {"n0", "n2"}
    assert {each.plan for each in world.ledger if each.uid in {left.uid, others[0].uid}} == {
        world.cluster.jobs.job_of(left).key.plan
    }


def test_the_last_pod_to_leave_a_gang_releases_its_seats() -> None:
    world = world_of(4)
    stays, goes = gang("train", 2)
    world.add(stays, goes)
    world.engine.place(stays)
    world.cluster.pod_deleted(goes)
    left = pod(stays.name, 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})
    world.add(left, *gang("other", 1, minimum=2))
    assert list(world.ledger) == []


def test_seats_are_not_swapped_against_a_peers_node_selector() -> None:
    world = World()
    world.add(node("n0", labels={"zone": "a"}), node("n1", labels={"zone": "b"}))
    selective, free = gang("train", 2)
    selective = selecting(selective, {"zone": "a"})
    world.add(selective, free)
    assert [world.engine.place(each).node for each in (selective, free)] == ["n0", "n1"]
    assert world.engine.filter(free, ["n0"]).fitting == []
    assert reason(world, free, ["n0"]) is Reason.GANG_DOES_NOT_FIT
    assert [world.engine.place(each).node for each in (selective, free)] == ["n0", "n1"]


def test_a_successor_takes_no_seat_outside_its_node_selector() -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), *(node(f"n{number}", labels={"pool": "b"}) for number in (1, 2)))
    one, two = (of_pool(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True))
    world.add(one, two)
    bind(world, two)
    world.cluster.pod_deleted(one)
    successor = of_pool(gang("train", 1, minimum=2, first=2)[0], "b")
    world.add(successor)
    assert world.engine.place(successor).node == "n2"


def test_candidates_are_not_scanned_for_every_seat() -> None:
    class Names(list[str]):
        reads = 0

        def __contains__(self, name: object) -> bool:
            self.reads += 1
            return super().__contains__(name)

    world = world_of(40)
    world.add(*(pods := gang("train", 20)))
    world.engine.place(pods[0])
    names = Names(f"n{number}" for number in range(20, 40))
    taken = {each.node for each in world.ledger}
    assert world.engine.place(pods[0], names).node not in taken - set(names)
    assert names.reads < 5


def test_a_pod_with_candidates_outside_the_plan_is_planned_alone() -> None:
    world = world_of(3)
    one, two = gang("train", 2)
    world.add(one, two)
    world.engine.place(one)
    assert world.engine.place(two, ["n2"]).node == "n2"
    assert world.engine.place(one).node == "n0"
    assert len(world.ledger) == 2


def test_a_seat_waits_for_the_successor_of_a_deleted_pod() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    world.add(one, two)
    place = world.engine.place(two)
    world.cluster.pod_deleted(two)
    assert reason(world, pod("other", 8)) is Reason.NOT_ENOUGH_CHIPS
    (successor,) = gang("train", 1, minimum=2, first=7)
    world.add(successor)
    assert world.engine.place(successor).node == place.node
    assert len(world.ledger) == 2


def test_the_seats_of_a_deleted_job_are_released_at_once() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    for each in pods:
        world.cluster.pod_deleted(each)
    assert len(world.ledger) == 0


def test_an_unused_plan_expires_as_a_whole() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    world.now_s += TTL_S - 1
    world.engine.place(pods[1])
    world.now_s += 1
    assert len(expire(world.ledger)) == 2
    assert world.ledger.expired_total == 2
    assert len(world.ledger) == 0
    assert world.engine.place(pods[1]).node == "n1"


def test_every_bound_pod_renews_the_rest_of_the_plan() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    for each in pods[:2]:
        bind(world, each)
        world.now_s += TTL_S - 1
        expire(world.ledger)
    assert world.ledger.count(Stage.PLANNED) == 1
    world.now_s += 1
    expire(world.ledger)
    assert world.ledger.count(Stage.PLANNED) == 0


def test_a_refused_binding_returns_the_pod_to_its_seat() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    place = world.engine.place(pods[0])
    world.ledger.advance(pods[0].uid, Stage.BINDING)
    world.ledger.withdraw(pods[0].uid)
    again = world.engine.place(pods[0])
    assert (again.node, again.stage) == (place.node, Stage.PLANNED)


def test_empty_seats_of_a_gang_that_never_began_are_released() -> None:
    world = world_of(2, **MESHES)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    world.add(*(successors := gang("train", 2, chips=4, first=2)))
    for each in pods:
        world.cluster.pod_deleted(each)
    assert {bind(world, each).spec.node_name for each in successors} == {"n0"}


def test_empty_seats_beside_running_peers_wait_for_successors() -> None:
    world = world_of(2)
    world.add(*(pods := gang("train", 2)))
    bind(world, pods[0])
    world.cluster.pod_deleted(pods[1])
    assert reason(world, pod("other", 8)) is Reason.NOT_ENOUGH_CHIPS
    world.add(*(successors := gang("train", 1, minimum=2, first=2)))
    assert world.engine.place(successors[0]).node == "n1"


def test_a_pod_is_not_placed_on_its_seat_outside_its_candidates() -> None:
    world = world_of(4)
    world.add(*(pod(f"other-{chip}", 1, node="n2", chips=[chip], phase="Running") for chip in range(8)))
    world.add(*(pods := gang("train", 2, first=1)))
    seats = {each.uid: world.engine.place(each).node for each in pods}
    late = pod("train-0", 8, annotations=TWO | {RANK: "0"})
    world.add(late)
    assert world.engine.filter(pods[1], ["n2"]).fitting == []
    assert reason(world, pods[1], ["n2"]) is Reason.GANG_DOES_NOT_FIT
    assert (held := world.ledger.get(late.uid)) is not None
    assert held.node == "n3"
    assert {each.uid: world.engine.place(each).node for each in pods} == seats
