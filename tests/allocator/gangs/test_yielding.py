"""Gangs whose tries in vain have kept many chips yield: they release their chips to whoever fits on them, no others."""

import pytest
from msgspec.structs import replace

from allocator.gangs.resting import FIRST_REST_S
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Condition, NodeSpec, Pod, Taint
from ascend.reasons import Reason
from ascend.turn import at_once
from tests.allocator.builders import GROUP, World, node, pod, selecting
from tests.allocator.gangs.builders import MESHES, reason, world_of

LACKS = "0/2 nodes are available: 2 Insufficient huawei.com/Ascend910."
CHIPS = Condition("PodScheduled", "False", "Unschedulable", LACKS)


def gang(name: str, count: int, *, minimum: int = 0, requirements: int = 1) -> list[Pod]:
    annotations = {GROUP: name, MIN_AVAILABLE: str(minimum or count)}
    return [pod(f"{name}-{rank}", 8, annotations=annotations, requirements=requirements) for rank in range(count)]


def yielding(world: World, *gangs: list[Pod]) -> None:
    """A gang like these has tried in vain, and much is owed; now all of them hold chips."""
    world.add(*(each for pods in gangs for each in pods))
    resting, jobs = world.engine.gangs.resting, [world.cluster.jobs.job_of(pods[0]) for pods in gangs]
    resting.begin(jobs[0])
    resting.count_kept(1000.0)
    world.now_s += FIRST_REST_S
    for pods in gangs:
        world.engine.place(pods[0])
    assert all(map(world.engine.gangs.yields, jobs))


def holds(world: World, pods: list[Pod]) -> bool:
    return all(world.ledger.get(each.uid) is not None for each in pods)


def refused_for_chips(each: Pod) -> Pod:
    """The pod after its scheduler has counted too few chips."""
    return replace(each, status=replace(each.status, conditions=(CHIPS,)))


def test_a_gang_that_fits_beside_a_gang_that_yields_leaves_it_its_chips() -> None:
    world, held, other = world_of(4, **MESHES), gang("held", 2), gang("other", 2, requirements=2)
    yielding(world, held)
    world.add(*other)
    world.engine.place(other[0])
    assert holds(world, held)
    assert holds(world, other)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_gang_yields_to_no_gang_that_lacks_pods(count: int) -> None:
    world, held, other = world_of(2, **MESHES), gang("held", 2), gang("other", count, minimum=4, requirements=2)
    yielding(world, held)
    world.add(*other)
    assert reason(world, other[0]) is Reason.GANG_INCOMPLETE
    assert holds(world, held)


@pytest.mark.parametrize("size", [1, 2])
def test_each_gang_that_yields_is_examined(size: int) -> None:
    world, gangs = world_of(4, **MESHES), [gang(f"held-{number}", 2) for number in range(2)]
    yielding(world, *gangs)
    where = {world.engine.place(each).node for each in gangs[1]}
    world.add(*(node(name, labels={**MESHES, "pool": "a"}) for name in where))
    annotations = {GROUP: "other", MIN_AVAILABLE: str(size)} if size > 1 else {}
    other = [selecting(pod(f"other-{rank}", 8, annotations=annotations), {"pool": "a"}) for rank in range(size)]
    world.add(*other)
    assert {world.engine.place(each).node for each in other} <= where
    assert holds(world, gangs[0])


def test_a_large_gang_yields_as_well() -> None:
    world, held, other = world_of(70, **MESHES), gang("held", 70), pod("other", 8, requirements=2)
    yielding(world, held)
    world.add(other)
    world.engine.place(other)
    assert not holds(world, held)


def test_a_gang_yields_to_a_pod_whose_scheduler_counts_too_few_chips() -> None:
    world, held, other = world_of(2, **MESHES), gang("held", 2), refused_for_chips(pod("other", 8, requirements=2))
    yielding(world, held)
    world.add(other)
    at_once(world.engine.gangs.make_room_for_waiting())
    assert not holds(world, held)


def test_a_gang_does_not_yield_to_a_pod_that_fits_beside_it() -> None:
    world, held, other = world_of(3, **MESHES), gang("held", 2), refused_for_chips(pod("other", 8, requirements=2))
    yielding(world, held)
    world.add(other)
    at_once(world.engine.gangs.make_room_for_waiting())
    assert holds(world, held)


def refused_for_cpu(each: Pod) -> Pod:
    """The pod after its scheduler has found too little CPU beside its peers."""
    lacks = replace(CHIPS, message="0/2 nodes are available: 2 Insufficient cpu.")
    return replace(each, status=replace(each.status, conditions=(lacks,)))


def hold(world: World, pods: list[Pod]) -> None:
    """A scheduler asks to bind all pods but the last one, and refuses that one."""
    for each in pods[:-1]:
        world.engine.place(each)
        world.ledger.advance(each.uid, Stage.HELD)
    world.add(refused_for_cpu(pods[-1]))


def try_in_vain(world: World, pods: list[Pod]) -> None:
    """A try of a gang that waits for its turn."""
    for each in pods:
        world.engine.gangs.obstacles.on_request(each)
    for each in pods[:-1]:
        assert reason(world, each) is Reason.GANG_STEPPED_BACK
    world.engine.place(pods[-1])
    hold(world, pods)


@pytest.mark.parametrize("is_gang", [True, False])
def test_a_gang_whose_scheduler_refuses_a_pod_beside_its_peers_yields_once(*, is_gang: bool) -> None:
    world, held = world_of(2, **MESHES), gang("held", 2)
    others = [gang(name, 2, requirements=2) if is_gang else [pod(name, 8)] for name in ("other", "next")]
    world.add(*held, *(each for pods in others for each in pods))
    world.engine.place(held[0])
    world.refusal(others[0][0])
    hold(world, held)
    placed = [world.engine.place(each) for each in others[0]]
    assert all(world.ledger.get(each.uid) is None for each in held)
    for seat in placed:
        world.ledger.withdraw(seat.uid)
    for each in others[0]:
        world.cluster.pod_deleted(each)
    try_in_vain(world, held)
    world.refusal(others[1][0])
    assert holds(world, held[:1])


@pytest.mark.parametrize(("priority", "gives_way"), [(-1, False), (0, True), (1, True)])
def test_a_gang_yields_to_a_pod_of_a_lower_priority_only_while_much_is_owed(priority: int, *, gives_way: bool) -> None:
    world, held, other = world_of(2, **MESHES), gang("held", 2), pod("other", 8, priority=priority)
    world.add(*held, other)
    world.engine.place(held[0])
    world.engine.gangs.step_back(world.cluster.jobs.job_of(held[0]), (), "a test says so")
    try_in_vain(world, held)
    if gives_way:
        world.engine.place(other)
    else:
        world.refusal(other)
        world.now_s += 10
        world.engine.gangs.step_back(world.cluster.jobs.job_of(held[0]), (), "a test says so")
        try_in_vain(world, held)
        world.engine.place(other)
    assert not holds(world, held[:1])


@pytest.mark.parametrize("is_tainted", [True, False])
def test_a_gang_yields_to_no_pod_that_may_not_be_on_its_nodes(*, is_tainted: bool) -> None:
    world, held, other = world_of(2, **MESHES), gang("held", 2), pod("other", 8, requirements=2)
    held = [replace(each, spec=replace(each.spec, tolerations='[{"operator":"Exists"}]')) for each in held]
    if is_tainted:
        nodes = [node(name, labels=MESHES) for name in ("n0", "n1")]
        world.add(*(replace(each, spec=NodeSpec(taints=(Taint("key", "NoSchedule"),))) for each in nodes))
    yielding(world, held)
    for each in held:
        world.engine.place(each)
        world.ledger.advance(each.uid, Stage.HELD)  # so its scheduler counts the chips
    world.add(other, node("full"))
    world.fill("full")
    world.refusal(other, ["full"])
    assert holds(world, held) == is_tainted


def test_a_gang_yields_to_no_pod_whose_scheduler_leaves_its_nodes_out_for_other_reasons() -> None:
    world, held, other = world_of(3, **MESHES), gang("held", 2), pod("other", 8, requirements=2)
    yielding(world, held)  # its scheduler knows nothing of these seats
    (free,) = {"n0", "n1", "n2"} - {seat.node for each in held if (seat := world.ledger.get(each.uid)) is not None}
    world.fill(free)
    world.add(other)
    world.refusal(other, [free])
    assert holds(world, held)


def test_a_gang_with_different_pods_that_yields_rests_once() -> None:
    world, held, other = world_of(2, **MESHES), gang("held", 2), pod("other", 8, requirements=3)
    held[1] = replace(held[1], spec=replace(held[1].spec, requirements=2))
    world.add(*held)
    job, resting = world.cluster.jobs.job_of(held[0]), world.engine.gangs.resting
    world.engine.place(held[0])
    world.engine.gangs.step_back(job, (), "a test says so")
    for _ in range(2):
        try_in_vain(world, held)
        world.engine.gangs.step_back(job, (), "a test says so")
        world.now_s += FIRST_REST_S
    try_in_vain(world, held)
    assert resting.has_tried(job)
    world.add(other)
    world.engine.place(other)
    world.now_s += 2 * FIRST_REST_S
    assert job not in resting


@pytest.mark.parametrize("count", [65, 66, 67])
def test_a_gang_yields_to_a_large_gang_that_lacks_nothing_else(count: int) -> None:
    world, held, other = world_of(66, **MESHES), gang("held", 2), gang("other", count, requirements=2)
    yielding(world, held)
    world.add(*other)
    if count == 67:
        assert reason(world, other[0]) is Reason.GANG_DOES_NOT_FIT
    else:
        world.engine.place(other[0])
        assert holds(world, other)
    assert holds(world, held) == (count == 67)


@pytest.mark.parametrize("is_admitted", [True, False])
def test_a_gang_yields_to_a_large_gang_only_on_nodes_that_its_selector_admits(*, is_admitted: bool) -> None:
    world, held = world_of(66, **MESHES), gang("held", 2)
    yielding(world, held)
    where = {each.node for each in map(world.ledger.get, (pod.uid for pod in held)) if each is not None}
    left = where if is_admitted else {name for name in world.cluster.nodes if name not in where}
    left |= set(sorted(set(world.cluster.nodes) - where)[: 65 - len(left)])
    world.add(*(node(name, labels={**MESHES, "pool": "a"}) for name in left))
    other = [selecting(each, {"pool": "a"}) for each in gang("other", 65, requirements=2)]
    world.add(*other)
    if is_admitted:
        world.engine.place(other[0])
    else:
        assert reason(world, other[0]) is Reason.GANG_DOES_NOT_FIT
    assert holds(world, held) != is_admitted
