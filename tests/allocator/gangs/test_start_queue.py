"""The order of gangs that want the same nodes, after the scheduler of one of them has refused some of its pods."""

import pytest
from msgspec.structs import replace

from allocator.gangs.start_queue import IDLE_S, TURN_S
from allocator.state.promises import Promise
from ascend.annotations import MIN_AVAILABLE
from ascend.chips import chip_set
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import GROUP, World, node, pod
from tests.allocator.gangs.builders import reason, world_of

ALL = chip_set(range(8))


def gang(job: str, *, priority: int = 0, since: str = "2026-01-01T00:00:00Z") -> list[Pod]:
    """Two pods with 8 chips each."""
    annotations = {GROUP: job, MIN_AVAILABLE: "2"}
    return [pod(f"{job}-{number}", 8, annotations=annotations, priority=priority, since=since) for number in range(2)]


def step_back(world: World, pods: list[Pod]) -> set[str]:
    """Plan a gang and let it step back; returns the nodes that it had."""
    nodes = {world.engine.place(each).node for each in pods}
    world.engine.gangs.step_back(world.cluster.jobs.job_of(pods[0]), (), "a test says so")
    return nodes


def try_again(world: World, pods: list[Pod]) -> set[str]:
    """Filter the pods of a gang, each of which has to be offered nodes once; returns the nodes of its new plan."""
    for each in pods[:-1]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    world.engine.place(pods[-1])
    return {world.engine.place(each).node for each in pods}


def refusal(world: World, each: Pod) -> Refusal:
    with pytest.raises(Refusal) as refused:
        world.engine.place(each)
    return refused.value


def end_turn(world: World) -> None:
    queue = world.engine.gangs.queue
    assert queue.first is not None
    world.now_s += TURN_S
    queue.pass_on()


def next_of(world: World) -> str:
    first = world.engine.gangs.queue.first
    return first.key.name if first is not None else ""


def test_a_new_gang_leaves_its_nodes_to_one_that_has_stepped_back() -> None:
    world, first, second = world_of(4), gang("first"), gang("second")
    world.add(*first, *second)
    nodes = step_back(world, first)
    assert {world.engine.place(each).node for each in second}.isdisjoint(nodes)
    assert try_again(world, first) == nodes


def test_a_new_gang_that_fits_nowhere_else_waits_for_its_turn() -> None:
    world, first, second = world_of(2), gang("first"), gang("second")
    world.add(*first, *second)
    step_back(world, first)
    waits = refusal(world, second[0])
    assert waits.reason is Reason.GANG_STEPPED_BACK
    assert waits.message == "pod default/second-0 waits for job default/first, which tries before it on the nodes left"
    assert "has released" not in refusal(world, second[1]).message
    try_again(world, first)
    assert not world.engine.may_fit(second[0])
    for each in first:
        world.cluster.pod_deleted(each)
    world.engine.gangs.queue.pass_on()
    assert world.engine.may_fit(second[0])
    assert {world.engine.place(each).node for each in second} == {"n0", "n1"}


@pytest.mark.parametrize("is_mixed", [True, False])
def test_a_new_gang_whose_pods_are_alike_is_planned_when_one_is_filtered_in_its_turn(*, is_mixed: bool) -> None:
    world, first, second = world_of(3), gang("first"), gang("second")
    second[1] = replace(second[1], spec=replace(second[1].spec, requirements=int(is_mixed)))
    world.add(*first, *second)
    step_back(world, first)
    assert reason(world, second[0], ["n0", "n1"]) is Reason.GANG_STEPPED_BACK
    end_turn(world)
    if is_mixed:
        assert reason(world, second[0], ["n0", "n1"]) is Reason.GANG_STEPPED_BACK
        assert world.engine.place(second[1], ["n1", "n2"]).node in {"n1", "n2"}
    else:
        assert world.engine.place(second[0], ["n0", "n1"]).node in {"n0", "n1"}
        assert world.engine.place(second[1], ["n0", "n1"]).node in {"n0", "n1"}


def test_a_new_gang_that_does_not_fit_at_all_says_so() -> None:
    world, first, second = world_of(2), gang("first"), gang("second")
    world.add(*first, *second)
    step_back(world, first)
    world.fill("n0")
    assert reason(world, second[0]) is Reason.GANG_DOES_NOT_FIT
    assert world.engine.gangs.queue.get(world.cluster.jobs.job_of(second[0])) is None


def test_a_gang_of_higher_priority_leaves_no_nodes_to_others() -> None:
    world, first, second = world_of(2), gang("first"), gang("second", priority=1)
    world.add(*first, *second)
    step_back(world, first)
    assert {world.engine.place(each).node for each in second} == {"n0", "n1"}


def queue_of_four(world: World) -> None:
    """A gang that has stepped back, and three that wait for it, not in the order of their age."""
    days = {"first": 1, "third": 3, "second": 2, "fourth": 4}
    gangs = {name: gang(name, since=f"2026-01-0{day}T00:00:00Z") for name, day in days.items()}
    world.add(*(each for pods in gangs.values() for each in pods))
    for pods in gangs.values():
        for each in pods:
            world.engine.gangs.obstacles.on_request(each)
    step_back(world, gangs["first"])
    for name in ("third", "second", "fourth"):
        assert reason(world, gangs[name][0]) is Reason.GANG_STEPPED_BACK


def test_every_second_turn_is_that_of_a_new_gang_after_one_in_vain_that_of_the_newest() -> None:
    world = world_of(2)
    queue_of_four(world)
    turns = []
    for _ in range(6):
        turns.append(next_of(world))
        end_turn(world)
    assert turns == ["first", "fourth", "first", "third", "first", "second"]


def test_a_gang_that_gets_the_chips_of_another_takes_no_turn_of_a_new_one() -> None:
    world, turns = world_of(2), list[str]()
    queue_of_four(world)
    end_turn(world)
    assert next_of(world) == "fourth"
    world.engine.gangs.queue.lead(world.cluster.jobs.job_of(world.cluster.pods["uid-second-0"]))
    for _ in range(3):
        turns.append(next_of(world))
        end_turn(world)
    assert turns == ["second", "fourth", "first"]


def test_while_gangs_start_the_oldest_is_next() -> None:
    world, turns = world_of(2), list[str]()
    queue_of_four(world)
    while name := next_of(world):
        turns.append(name)
        for uid in [uid for uid, each in world.cluster.pods.items() if each.name.startswith(name)]:
            world.cluster.pod_deleted(world.cluster.pods[uid])
    assert turns == ["first", "second", "third", "fourth"]


def test_a_gang_that_does_not_fit_any_more_in_its_first_turn_waits_for_room() -> None:
    world, first, second = world_of(2), gang("first"), gang("second")
    world.add(*first, *second)
    step_back(world, first)
    assert reason(world, second[0]) is Reason.GANG_STEPPED_BACK
    end_turn(world)
    world.fill("n0")
    assert reason(world, second[0]) is Reason.GANG_DOES_NOT_FIT
    job = world.cluster.jobs.job_of(second[0])
    assert world.engine.gangs.queue.get(job) is None  # so nodes may drain for it
    world.add(node("n2"))
    assert reason(world, second[0]) is Reason.GANG_STEPPED_BACK
    world.now_s += IDLE_S
    assert {world.engine.place(each).node for each in second} == {"n1", "n2"}


@pytest.mark.parametrize(("priority", "fits"), [(0, True), (1, False), (2, False)])
def test_a_gang_in_its_turn_takes_what_was_promised_to_lower_priorities(priority: int, *, fits: bool) -> None:
    world, pods = world_of(2), gang("first", priority=1)
    world.add(*pods)
    step_back(world, pods)
    world.ledger.promises.keep(Promise("uid-other", "pod default/other", priority, {"n0": ALL}, 1e9))
    assert reason(world, pods[0]) is Reason.GANG_STEPPED_BACK
    if fits:
        world.engine.place(pods[1])
        assert world.ledger.promises.get("uid-other") is None
    else:
        assert reason(world, pods[1]) is Reason.GANG_DOES_NOT_FIT


@pytest.mark.parametrize(("since", "fits"), [("2026-01-02T00:00:00Z", True), ("2025-12-31T00:00:00Z", False)])
def test_a_gang_in_its_turn_takes_nodes_that_drain_for_later_ones(since: str, *, fits: bool) -> None:
    world, pods = world_of(2), gang("first")
    world.add(*pods)
    step_back(world, pods)
    drains = Promise("plan", "job default/other", 0, {"n0": ALL}, 1e9, drains=True, since=since)
    world.ledger.promises.keep(drains)
    assert reason(world, pods[0]) is Reason.GANG_STEPPED_BACK
    if fits:
        assert world.engine.place(pods[1]).node
    else:
        assert reason(world, pods[1]) is Reason.GANG_DOES_NOT_FIT


def mixed_gang() -> tuple[list[Pod], list[Pod]]:
    """Two pods that may be on some nodes, and two of the same gang that may be on others."""
    annotations = {GROUP: "mixed", MIN_AVAILABLE: "4"}
    one, other = (
        [pod(f"{kind}-{number}", 8, annotations=annotations, requirements=hash(kind)) for number in range(2)]
        for kind in ("one", "other")
    )
    return one, other


def test_a_gang_whose_pods_may_be_on_different_nodes_is_planned_where_each_may_be() -> None:
    world, (one, other) = world_of(4), mixed_gang()
    world.add(*one, *other)
    nodes = {each.uid: ["n0", "n1"] if each in one else ["n2", "n3"] for each in (*one, *other)}
    seen = []
    for each in (*one, *other, *one, *other):  # kube-scheduler tries the refused ones again
        try:
            seen.append((each.uid, world.engine.place(each, nodes[each.uid]).node))
        except Refusal as refusal:
            assert refusal.reason is Reason.GANG_STEPPED_BACK  # noqa: PT017 - most of them are refused
    placed = dict(seen)
    assert len(placed) == 4
    assert all(node in nodes[uid] for uid, node in placed.items())


def test_a_gang_of_different_pods_that_does_not_fit_at_all_says_so() -> None:
    world, (one, other) = world_of(4), mixed_gang()
    world.add(*one, *other)
    world.fill("n3")
    with pytest.raises(Refusal) as refused:
        world.engine.place(one[0], ["n0", "n1"])
    assert refused.value.reason is Reason.GANG_DOES_NOT_FIT


def test_what_a_waiting_pod_is_told_does_not_change_with_the_turns() -> None:
    world, told = world_of(2), set[str]()
    queue_of_four(world)
    for _ in range(3):
        waiting = {"second", "third"} - {next_of(world)}
        told |= {refusal(world, world.cluster.pods[f"uid-{name}-0"]).message.replace(name, "X") for name in waiting}
        end_turn(world)
    assert len(told) == 1
