"""What keeps a gang from starting besides chips, as the verdicts of its scheduler say."""

import pytest
from msgspec.structs import replace

from allocator.gangs.obstacles import ASKED_S, RELEASED_S, SKIPPED_S, UNTRIED_S, Lacking
from allocator.state.reservation import Stage
from ascend.annotations import MIN_AVAILABLE
from ascend.kube.objects import Condition, Pod
from tests.allocator.builders import GROUP, World, gated, node, pod

HELPLESS = "preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
NO_VICTIMS = "preemption: 0/4 nodes are available: 4 No preemption victims found for incoming pod."
CPU = f"0/4 nodes are available: 4 Insufficient cpu. {HELPLESS}"
CHIPS = f"0/4 nodes are available: 4 Insufficient huawei.com/Ascend910. {NO_VICTIMS}"

OTHERS = [
    CPU,
    f"0/4 nodes are available: 4 Insufficient memory. {NO_VICTIMS}",
    f"0/4 nodes are available: 4 Insufficient cpu, 4 Insufficient huawei.com/Ascend910. {HELPLESS}",
    f"0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. {HELPLESS}",
    f"0/4 nodes are available: 4 node(s) had untolerated taint {{gang: NotEnoughChips}}. {HELPLESS}",
    f'0/4 nodes are available: persistentvolumeclaim "gang-data" not found. {HELPLESS}',
    "0/4 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    f"0/4 nodes are available: 4 node(s) didn't have free ports for the requested pod ports. {NO_VICTIMS}",
    f"0/4 nodes are available: 1 WrongProduct: it is for 910B, 3 Insufficient cpu. {HELPLESS}",
    "0/4 nodes are unavailable: 4 Insufficient cpu.",
    'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded',
]
BY_CHIPS = [
    CHIPS,
    f"0/4 nodes are available: 4 Insufficient cpu, 4 Insufficient huawei.com/Ascend910. {NO_VICTIMS}",
    f"0/4 nodes are available: 1 node(s) had untolerated taint {{a: b}}, 3 Insufficient huawei.com/Ascend910. {CHIPS}",
    "0/4 nodes are available: 1 GangDoesNotFit: job default/big: 2 pods must be placed together, 3 Insufficient cpu.",
    "0/4 nodes are available: 2 ChipsKept: kept for job default/big, 2 Insufficient cpu.",
    "0/4 nodes are available: 4 GangIncomplete: job default/big: 1 of 2 pods exists.",
    "pod group is not ready, 2 Pending, 2 minAvailable",
    "0/4 nodes are available: optimistic rejection in PostFilter of PodGroup big.",
]


def saying(each: Pod, message: str, reason: str = "Unschedulable") -> Pod:
    """The pod with this verdict of its scheduler."""
    verdict = Condition("PodScheduled", "False", reason, message)
    return replace(each, status=replace(each.status, conditions=(verdict,)))


def members(count: int, minimum: int | None = None) -> list[Pod]:
    annotations = {GROUP: "big", MIN_AVAILABLE: str(minimum or count)}
    return [pod(f"big-{number}", 8, annotations=annotations) for number in range(count)]


def lacking(world: World) -> Lacking | None:
    gangs = world.engine.gangs
    (job,) = {world.cluster.jobs.job_of(each).key: world.cluster.jobs.job_of(each) for each in pods_of(world)}.values()
    found = gangs.obstacles.of(job)
    return found.lacking if found is not None else None


def pods_of(world: World) -> list[Pod]:
    return list(world.cluster.pods.values())


def world_of(*pods: Pod) -> World:
    world = World()
    world.add(*(node(f"n{number}") for number in range(4)), *pods)
    return world


@pytest.mark.parametrize("message", OTHERS)
def test_a_gang_with_a_pod_that_lacks_something_else_is_held_up_by_its_scheduler(message: str) -> None:
    first, second = members(2)
    assert lacking(world_of(saying(first, CHIPS), saying(second, message))) is Lacking.SCHEDULER


@pytest.mark.parametrize("message", BY_CHIPS)
def test_a_gang_whose_pods_lack_chips_on_some_node_only_waits_for_chips(message: str) -> None:
    first, second = members(2)
    assert lacking(world_of(saying(first, CHIPS), saying(second, message))) is None


def test_pods_beyond_the_minimum_may_lack_something_else() -> None:
    pods = members(4, minimum=2)
    world = world_of(*(saying(each, CPU) for each in pods[:2]), *pods[2:])
    assert lacking(world) is None
    world.add(saying(pods[2], CPU))
    assert lacking(world) is Lacking.SCHEDULER


def test_a_gang_may_start_again_as_soon_as_the_verdict_changes() -> None:
    first, second = members(2)
    world = world_of(first, saying(second, CPU))
    revision = world.engine.gangs.obstacles.revision
    world.add(saying(second, CHIPS))
    assert lacking(world) is None
    assert world.engine.gangs.obstacles.revision != revision


def test_a_scheduler_that_asks_for_a_pod_has_let_it_pass_its_own_filters() -> None:
    first, second = members(2)
    world = world_of(first, saying(second, CPU))
    world.engine.gangs.obstacles.on_request(world.cluster.pods[second.uid])
    assert lacking(world) is None
    world.now_s += ASKED_S
    assert lacking(world) is Lacking.SCHEDULER  # no Binding came of it


def test_a_pod_refused_anew_after_it_was_asked_for_counts_at_once() -> None:
    first, second = members(2)
    world = world_of(first, saying(second, CPU))
    world.engine.gangs.obstacles.on_request(world.cluster.pods[second.uid])
    world.add(saying(second, OTHERS[1]))
    assert lacking(world) is Lacking.SCHEDULER


def test_a_verdict_from_beside_the_peers_is_in_doubt_after_they_have_gone() -> None:
    first, second = members(2)
    world = world_of(first, saying(second, OTHERS[1]))
    gangs, job = world.engine.gangs, world.cluster.jobs.job_of(first)
    gangs.step_back(job, [second.uid], "")
    assert lacking(world) is None
    world.now_s += RELEASED_S
    assert lacking(world) is Lacking.SCHEDULER


def test_the_old_verdict_on_a_pod_whose_binding_is_held_does_not_count() -> None:
    first, second = members(2)
    world = world_of(first, saying(second, CPU))
    for each in (first, second):
        world.engine.gangs.obstacles.on_request(each)
    world.engine.place(second)
    world.now_s += ASKED_S
    world.ledger.advance(second.uid, Stage.HELD)
    assert lacking(world) is None


def test_a_gang_that_nobody_tries_lacks_a_scheduler_after_some_time() -> None:
    first, second = members(2)
    world = world_of(first, second)
    world.now_s += UNTRIED_S / 2
    assert lacking(world) is None
    world.engine.gangs.obstacles.on_request(first)
    world.now_s += UNTRIED_S
    assert lacking(world) is Lacking.SCHEDULER
    world.engine.gangs.obstacles.on_request(second)
    assert lacking(world) is None


def test_a_pod_that_its_scheduler_does_not_try_after_its_peer_is_known_soon() -> None:
    first, second = members(2)
    world = world_of(first)
    world.engine.gangs.obstacles.on_request(first)
    world.add(second)  # the scheduler does not come back to the first: the gang lacks chips
    world.now_s += SKIPPED_S
    assert lacking(world) is Lacking.SCHEDULER


def test_pods_that_are_missing_or_gated_are_told_apart() -> None:
    first, second = members(2)
    world = world_of(first)
    assert lacking(world) is Lacking.PODS
    world.add(gated(second, "kueue.x-k8s.io/admission"))
    assert lacking(world) is Lacking.ADMISSION
    world.add(second)
    assert lacking(world) is None


def test_what_is_known_of_pods_that_are_bound_or_gone_is_forgotten() -> None:
    first, second, third = (saying(each, CPU) for each in members(3, minimum=2))
    world = world_of(first, second, third)
    world.fill("n0")
    world.add(replace(first, spec=replace(first.spec, node_name="n1")))
    world.cluster.pod_deleted(second)
    job = world.cluster.jobs.job_of(third)
    found = world.engine.gangs.obstacles.of(job)
    assert found is not None
    assert found.why.startswith("pod default/big-2 was refused: 0/4 nodes are available")


def test_a_pod_by_itself_is_judged_alike() -> None:
    alone = pod("alone", 8)
    world = world_of(alone)
    obstacles = world.engine.gangs.obstacles
    assert obstacles.of_pod(alone) is None
    world.add(saying(alone, CPU))
    found = obstacles.of_pod(alone)
    assert found is not None
    assert found.lacking is Lacking.SCHEDULER
