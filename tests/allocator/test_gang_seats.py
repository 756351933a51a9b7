"""The seats of a plan: whose each is, who may take it, and how long it is kept."""

import msgspec

from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE, RANK
from tests.allocator.builders import World, node, pod
from tests.allocator.gangs import GROUP, MESHES, TTL_S, TWO, bind, gang, of_pool, reason, world_of


def test_a_pod_that_may_not_be_on_its_planned_node_changes_seats_with_a_peer() -> None:
    world = world_of(2)
    one, two = gang("train", 2)
    world.add(one, two)
    assert world.engine.place(one).node == "n0"
    assert world.engine.place(two, ["n0"]).node == "n0"
    assert world.engine.place(one).node == "n1"


def test_a_pod_that_comes_to_another_gang_leaves_its_seat_in_the_first() -> None:
    world = world_of(4)
    world.add(*(pods := gang("train", 2)))
    world.engine.place(pods[0])
    left = pod(pods[0].name, 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})
    world.add(left, *(others := gang("other", 1, minimum=2)))
    assert {world.engine.place(each).node for each in (left, *others)} == {"n0", "n2"}
    assert {each.plan for each in world.ledger if each.uid in {left.uid, others[0].uid}} == {
        world.cluster.jobs.job_of(left).key.plan
    }


def test_the_last_pod_that_leaves_a_gang_for_another_leaves_no_seats_behind() -> None:
    world = world_of(4)
    stays, goes = gang("train", 2)
    world.add(stays, goes)
    world.engine.place(stays)
    world.cluster.pod_deleted(goes)
    left = pod(stays.name, 8, annotations={GROUP: "other", MIN_AVAILABLE: "2"})
    world.add(left, *gang("other", 1, minimum=2))
    assert list(world.ledger) == []


def test_a_pod_does_not_change_seats_with_a_peer_that_may_not_be_on_its_node() -> None:
    world = World()
    world.add(node("n0", labels={"zone": "a"}), node("n1", labels={"zone": "b"}))
    bound, free = gang("train", 2)
    bound = msgspec.structs.replace(bound, spec=msgspec.structs.replace(bound.spec, node_selector={"zone": "a"}))
    world.add(bound, free)
    assert [world.engine.place(each).node for each in (bound, free)] == ["n0", "n1"]
    assert world.engine.filter(free, ["n0"]).fitting == []
    assert reason(world, free, ["n0"]) == "GangDoesNotFit"
    assert [world.engine.place(each).node for each in (bound, free)] == ["n0", "n1"]


def test_a_successor_does_not_take_an_empty_seat_where_it_may_not_be() -> None:
    world = World()
    world.add(node("n0", labels={"pool": "a"}), *(node(f"n{number}", labels={"pool": "b"}) for number in (1, 2)))
    one, two = (of_pool(each, pool) for each, pool in zip(gang("train", 2), "ab", strict=True))
    world.add(one, two)
    bind(world, two)
    world.cluster.pod_deleted(one)
    successor = of_pool(gang("train", 1, minimum=2, first=2)[0], "b")
    world.add(successor)
    assert world.engine.place(successor).node == "n2"


def test_candidates_are_not_read_through_for_every_seat() -> None:
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


def test_a_pod_with_candidates_outside_the_plan_is_planned_anew_alone() -> None:
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
    assert reason(world, pod("other", 8)) == "NotEnoughChips"
    (successor,) = gang("train", 1, minimum=2, first=7)
    world.add(successor)
    assert world.engine.place(successor).node == place.node
    assert len(world.ledger) == 2


def test_the_seats_of_a_job_that_is_gone_are_free_at_once() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    for each in pods:
        world.cluster.pod_deleted(each)
    assert len(world.ledger) == 0


def test_a_plan_nobody_uses_is_dropped_whole_and_made_again() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    world.engine.place(pods[0])
    world.now_s += TTL_S - 1
    world.engine.place(pods[1])
    world.now_s += 1
    assert len(world.ledger.expire()) == 2
    assert world.ledger.expired_total == 2
    assert len(world.ledger) == 0
    assert world.engine.place(pods[1]).node == "n1"


def test_every_bound_pod_gives_the_rest_of_the_plan_its_time_again() -> None:
    world = world_of(3)
    pods = gang("train", 3)
    world.add(*pods)
    for each in pods[:2]:
        bind(world, each)
        world.now_s += TTL_S - 1
        world.ledger.expire()
    assert world.ledger.count(Stage.PLANNED) == 1
    world.now_s += 1
    world.ledger.expire()
    assert world.ledger.count(Stage.PLANNED) == 0


def test_a_refused_binding_gives_the_pod_its_seat_back() -> None:
    world = world_of(2)
    pods = gang("train", 2)
    world.add(*pods)
    place = world.engine.place(pods[0])
    world.ledger.advance(pods[0].uid, Stage.BINDING)
    world.ledger.withdraw(pods[0].uid)
    again = world.engine.place(pods[0])
    assert (again.node, again.stage) == (place.node, Stage.PLANNED)


def test_successors_that_ask_otherwise_are_not_kept_out_by_empty_seats_of_a_gang_that_never_began() -> None:
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
    assert reason(world, pod("other", 8)) == "NotEnoughChips"
    world.add(*(successors := gang("train", 1, minimum=2, first=2)))
    assert world.engine.place(successors[0]).node == "n1"


def test_a_pod_is_never_placed_on_its_old_seat_when_it_is_asked_about_for_another_node() -> None:
    world = world_of(4)
    world.add(*(pod(f"other-{chip}", 1, node="n2", chips=[chip], phase="Running") for chip in range(8)))
    world.add(*(pods := gang("train", 2, first=1)))
    seats = {each.uid: world.engine.place(each).node for each in pods}
    late = pod("train-0", 8, annotations=TWO | {RANK: "0"})
    world.add(late)
    assert world.engine.filter(pods[1], ["n2"]).fitting == []
    assert reason(world, pods[1], ["n2"]) == "GangDoesNotFit"
    assert (held := world.ledger.get(late.uid)) is not None
    assert held.node == "n3"
    assert {each.uid: world.engine.place(each).node for each in pods} == seats
