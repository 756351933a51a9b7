"""Gangs through kube-scheduler as it comes: nobody starts before all can, and then all do."""

from ascend.annotations import DISTRIBUTED, MIN_AVAILABLE, RANK
from ascend.kube.objects import PODS, Pod
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import World

GANG = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}


async def check_together(world: World) -> list[Pod]:
    """Both pods run, each with a node of its own, and say what their job's rank table is built from."""
    pods = [await check_hand_over(world, f"train-{number}", 8) for number in range(2)]
    assert {pod.spec.node_name for pod in pods} == {node.name for node in world.nodes}
    assert sorted(pod.metadata.annotations[RANK] for pod in pods) == ["0", "1"]
    assert {pod.metadata.annotations[DISTRIBUTED] for pod in pods} == {"true"}
    return pods


async def test_a_gang_waits_for_its_last_pod_and_then_starts_together(world: World) -> None:
    await world.create("train-0", 8, annotations=GANG)
    assert "2 pods must be placed together, 1 are there" in await world.pending_because("train-0")
    await world.create("train-1", 8, annotations=GANG)
    await check_together(world)


async def test_a_gang_that_does_not_fit_whole_takes_nothing_until_it_does(world: World) -> None:
    await world.create("other", 1)
    await world.running("other")
    for number in range(2):
        await world.create(f"train-{number}", 8, annotations=GANG)
    assert "only 1 fit at once" in await world.pending_because("train-1")
    await world.create("small", 2)
    await check_hand_over(world, "small", 2)
    await world.delete("other", "small")
    await check_together(world)


async def test_a_gang_survives_the_allocators_death_between_its_pods(world: World) -> None:
    await world.create("train-0", 8, annotations=GANG)
    # The second comes with a gate, so that the first is bound alone.
    await world.create("train-1", 8, annotations=GANG, schedulingGates=[{"name": "test/wait"}])
    first = await world.running("train-0")
    await world.allocator.kill()
    await world.allocator.start()
    await world.eventually(world.allocator_ready, "the allocator is ready")
    await world.create("thief", 1)
    await world.client.patch(PODS, "train-1", {"spec": {"schedulingGates": None}}, namespace="default")
    assert (await check_together(world))[0].spec.node_name == first.spec.node_name
    await world.pending_because("thief")
