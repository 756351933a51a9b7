"""Gangs with the stock kube-scheduler: no pod starts before all pods of the gang fit."""

import pytest

from ascend.annotations import ALLOCATED, DISTRIBUTED, MIN_AVAILABLE, RANK
from ascend.kube.objects import Pod
from tests.e2e.test_main_job import check_hand_over
from tests.e2e.world import World, annotated

GANG = {"scheduling.k8s.io/group-name": "train", MIN_AVAILABLE: "2"}
FOUR = {**GANG, MIN_AVAILABLE: "4"}
FAKES = ("fake-1", "fake-2")


async def check_together(world: World) -> list[Pod]:
    """Check that both pods run on different nodes and have the annotations of their job's rank table."""
    pods = [await check_hand_over(world, f"train-{number}", 8) for number in range(2)]
    assert {pod.spec.node_name for pod in pods} == {node.name for node in world.nodes}
    assert sorted(pod.metadata.annotations[RANK] for pod in pods) == ["0", "1"]
    assert {pod.metadata.annotations[DISTRIBUTED] for pod in pods} == {"true"}
    return pods


async def check_four(world: World) -> dict[str, Pod]:
    """Check that four pods have a whole server each, and that those on real nodes run; return them by name."""

    async def bound() -> dict[str, Pod] | None:
        pods = {pod.name: pod for pod in await world.pods() if pod.name.startswith("train-")}
        return pods if all(pod.spec.node_name for pod in pods.values()) else None

    pods = await world.eventually(bound, "all four pods are bound")
    real = {node.name for node in world.nodes}
    assert {pod.spec.node_name for pod in pods.values()} == {*real, *FAKES}
    assert {annotated(pod, ALLOCATED) for pod in pods.values()} == {0xFF}
    assert sorted(pod.metadata.annotations[RANK] for pod in pods.values()) == ["0", "1", "2", "3"]
    assert {pod.metadata.annotations[DISTRIBUTED] for pod in pods.values()} == {"true"}
    for name, pod in pods.items():
        if pod.spec.node_name in real:
            await check_hand_over(world, name, 8)
    return pods


@pytest.mark.shows("sandbox", "910A")
@pytest.mark.shows("kubelet", "910A")
async def test_a_gang_waits_for_its_last_pod_and_then_starts_together(world: World) -> None:
    await world.create("train-0", 8, annotations=GANG)
    assert "2 pods must be placed together; 1 exists, 1 is missing" in await world.pending_because("train-0")
    await world.create("train-1", 8, annotations=GANG)
    await check_together(world)


async def test_a_gang_that_does_not_fit_as_a_whole_takes_no_chips(world: World) -> None:
    await world.create("other", 1)
    await world.running("other")
    for number in range(2):
        await world.create(f"train-{number}", 8, annotations=GANG)
    assert "only 1 fits at once" in await world.pending_because("train-1")
    await world.create("small", 2)
    await check_hand_over(world, "small", 2)
    await world.delete("other", "small")
    await check_together(world)


async def test_an_allocator_killed_while_it_holds_bindings_has_bound_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.service, "filter_s", 3.0)  # the Binding of one pod is held while the other is filtered
    await world.create("train-0", 8, annotations=GANG)
    await world.create("train-1", 8, annotations=GANG)
    await world.held(1)
    await world.allocator.kill()
    monkeypatch.undo()
    assert not [pod.name for pod in await world.pods() if pod.spec.node_name]
    await world.allocator.start()
    await world.eventually(world.allocator_ready, "the allocator is ready")
    await check_together(world)


async def test_a_gang_of_four_servers_starts_once_the_last_server_is_free(world: World) -> None:
    await world.add_fake_nodes(*FAKES)
    await world.create("other", 1, nodeSelector={"kubernetes.io/hostname": world.nodes[1].name})
    await world.running("other")
    for number in range(4):
        await world.create(f"train-{number}", 8, annotations=FOUR)
    assert "only 3 fit at once" in await world.pending_because("train-3")
    assert not [pod.name for pod in await world.pods() if pod.name != "other" and pod.spec.node_name]
    await world.delete("other")
    await check_four(world)
