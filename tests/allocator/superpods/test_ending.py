"""A job whose pods were all deleted waits for them to end, so that its undamaged blocks return to their nodes."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from allocator.decision.preemption import Preemption
from allocator.gangs.gradual import MANY
from allocator.gangs.record import ENDS_S
from allocator.rules.victims import Suggestion
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason
from tests.allocator.builders import World, owned_by, pod
from tests.allocator.superpods.cases import of_area
from tests.allocator.superpods.world import CHIPS, bind, job, placed, server, super_pods


def ending(each: Pod, at_s: float) -> Pod:
    """The pod deleted, to end by then."""
    when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(each, metadata=replace(each.metadata, deletion_timestamp=when))


def again(each: Pod) -> Pod:
    """The pod as a Job creates it anew at once: with another name."""
    return replace(each, metadata=replace(each.metadata, name=f"{each.name}-b", uid=f"{each.uid}-b"))


def running_job() -> tuple[World, list[Pod], list[Pod]]:
    """Two blocks of two servers, with room for others elsewhere; and the pods as they were created."""
    world = super_pods(5, 5)
    created = [owned_by(each, "Job", "batch/v1") for each in job(4)]
    world.add(*created)
    return world, created, [bind(world, each) for each in created]


def refused(world: World, each: Pod) -> Refusal:
    with pytest.raises(Refusal) as caught:
        world.engine.place(each)
    return caught.value


def test_undamaged_blocks_return_to_their_nodes_although_their_old_pods_still_end() -> None:
    world, created, running = running_job()
    before = [each.spec.node_name for each in running]
    world.add(*(ending(each, world.now_s + 1) for each in running), *(new := [again(each) for each in created]))
    refusal = refused(world, new[0])
    assert refusal.reason is Reason.GANG_DOES_NOT_FIT
    assert f"4 pods of it are still ending on nodes of its blocks: {before[0]}" in refusal.message
    world.cluster.pod_deleted(running[0])
    assert "3 pods of it are still ending" in refused(world, new[1]).message
    for each in running[1:]:
        world.cluster.pod_deleted(each)
    assert placed(world, new) == before


def test_pods_that_end_on_broken_nodes_are_not_waited_for() -> None:
    world, created, running = running_job()
    before = [each.spec.node_name for each in running]
    super_pod, index = (int(number) for number in before[1].split("-"))
    world.add(server(super_pod, index, ready=False))
    world.add(ending(running[1], world.now_s + 1), *(new := [again(each) for each in created]))
    for each in (running[0], *running[2:]):
        world.cluster.pod_deleted(each)
    after = placed(world, new)
    assert [after[0], *after[2:]] == [before[0], *before[2:]]
    assert after[1].startswith(f"{super_pod}-")
    assert after[1] != before[1]


@pytest.mark.parametrize("ends_s", [ENDS_S + 1, -ENDS_S - 1])
def test_pods_that_take_long_to_end_are_not_waited_for(ends_s: float) -> None:
    world, created, running = running_job()
    world.add(*(ending(each, world.now_s + ends_s) for each in running), *(new := [again(each) for each in created]))
    assert not set(placed(world, new)) & {each.spec.node_name for each in running}


@of_area("superpod.reschedule.wait")
def test_nodes_are_waited_for_as_long_as_in_the_cases(case: dict[str, Any]) -> None:
    """The reference counts from the first attempt, and this project from the time by which the pod has to end."""
    world, created, running = running_job()
    late_s = case["given"]["seconds_since_first_attempt"]
    world.add(*(ending(each, world.now_s - late_s) for each in running), *(new := [again(each) for each in created]))
    assert case["expect"]["may_place"]
    assert world.engine.place(new[0]).node


def test_ending_pods_of_another_job_of_that_name_are_not_waited_for() -> None:
    world, created, running = running_job()
    world.add(*(ending(each, world.now_s + 1) for each in running))
    others = [replace(again(each), metadata=replace(again(each).metadata, owner_references=[
        replace(each.metadata.owner_references[0], uid="v")])) for each in created]  # fmt: skip
    world.add(*others)
    assert not set(placed(world, others)) & {each.spec.node_name for each in running}


async def test_nobody_is_preempted_while_the_own_pods_still_end() -> None:
    world, created, running = running_job()
    busy = [f"{number}-{index}" for number in range(2) for index in range(5)]
    busy = [name for name in busy if name not in {each.spec.node_name for each in running}]
    world.add(*(pod(f"on-{name}", CHIPS, node=name, chips=range(CHIPS), phase="Running") for name in busy))
    world.add(*(ending(each, world.now_s + 1) for each in running))
    new = [replace(again(each), spec=replace(each.spec, priority=5)) for each in created]
    world.add(*new)
    assert "still ending" in refused(world, new[0]).message
    preemption = Preemption(world.cluster, world.ledger, world.engine)
    suggested = {name: Suggestion() for name in world.cluster.nodes}
    chosen = [await preemption.improve(each, suggested) for each in new]
    assert not [
        victim for each in chosen if each is not None for victim in each.victims if victim.uid.startswith("uid-on")
    ]


async def test_a_large_job_waits_for_its_pods_to_end_as_well() -> None:
    world = super_pods(*[10] * 16)
    world.add(*(created := [owned_by(each, "Job", "batch/v1") for each in job(MANY + 2)]))
    running = [bind(world, each) for each in created]
    world.add(*(ending(each, world.now_s + 1) for each in running), *(new := [again(each) for each in created]))
    await world.engine.prepare(new[0])
    assert "still ending" in refused(world, new[0]).message
    for each in running:
        world.cluster.pod_deleted(each)
    await world.engine.prepare(new[0])
    assert placed(world, new) == [each.spec.node_name for each in running]
