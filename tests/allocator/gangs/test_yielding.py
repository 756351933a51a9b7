"""Gangs whose tries in vain have kept many chips yield: they release their chips to whoever fits on them, no others."""

import pytest
from msgspec.structs import replace

from allocator.gangs.resting import FIRST_REST_S
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Condition, Pod
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
    resting.kept(jobs[0], 1000.0)
    world.now_s += FIRST_REST_S
    for pods in gangs:
        world.engine.place(pods[0])
    assert all(map(resting.yields, jobs))


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
