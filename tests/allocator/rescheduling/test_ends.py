"""How deleted pods end: their chips are free when their containers have ended, and nobody waits for a lost kubelet."""

from msgspec.structs import replace

from allocator.rescheduling.deletions import RELEASE_AFTER_S
from allocator.rescheduling.storage import decode
from ascend.chips import chip_set
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import job, lost, scene

HELD = 0xFF & ~chip_set([0, 1])


async def test_chips_stay_held_for_the_grace_period_that_the_kubelet_gives_the_pod() -> None:
    (one,) = job(1, chips=[0, 1], fault_scheduling="grace")
    stage = scene([replace(one, spec=replace(one.spec, termination_grace_period_seconds=600))], reschedule_grace_s=60.0)
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert await stage.look(60.0) == ["train-0"]
    assert stage.deleted[-1] == ("train-0", 0)
    stage.world.add(report("n1"))
    await stage.look()
    await stage.succeed()
    for _ in range(59):
        await stage.look(10.0)
        assert stage.world.vacancy("n1").free == HELD
    await stage.look(10.0)
    assert stage.world.vacancy("n1").free == 0xFF


async def test_a_pod_deleted_at_once_is_not_waited_for_when_its_node_is_lost_then() -> None:
    stage = scene(job(2, chips=[0, 1]))
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0", "train-1"]
    stage.world.add(lost("n1"))
    assert await stage.look(1.0) == []
    assert await stage.look(29.0) == []
    await stage.succeed()
    assert await stage.look(1.0) == []
    assert await stage.look(30.0) == ["train-0"]
    assert stage.deleted[-1] == ("train-0", 0)
    stage.world.add(node("n1"), report("n1"))
    await stage.look()
    await stage.look(RELEASE_AFTER_S - 1.0)
    assert stage.world.vacancy("n1").free == HELD


async def test_a_pod_in_grace_is_waited_for_when_its_node_is_lost_then() -> None:
    stage = scene(job(1, fault_scheduling="grace"), reschedule_grace_s=120.0)
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    stage.world.add(lost("n1"))
    assert await stage.look(60.0) == []
    assert await stage.look(60.0) == ["train-0"]


async def test_a_pod_of_a_job_that_was_made_anew_is_followed_to_its_end() -> None:
    stage = scene(job(1, fault_scheduling="grace"), reschedule_grace_s=120.0)
    stage.stuck = {"train-0"}
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(30.0) == ["train-0"]
    (new,) = job(1, fault_scheduling="grace", first_node=2)
    (owner,) = new.metadata.owner_references
    owners = (replace(owner, uid="v"),)
    new = replace(new, metadata=replace(new.metadata, name="train-new", uid="new", owner_references=owners))
    stage.world.add(new, report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-new"]
    assert await stage.look(120.0) == ["train-0"]


async def test_a_job_of_the_same_name_inherits_nothing_but_pods_that_are_left() -> None:
    pods = job(2, pod_rescheduling="on")
    stage = scene(pods)
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-1"]
    key = stage.world.cluster.jobs.job_of(pods[0]).key
    assert list(stage.world.cluster.faulty_nodes.of(key)) == ["n2"]
    stage.world.cluster.pod_deleted(pods[0])
    (owner,) = pods[0].metadata.owner_references
    owners = (replace(owner, uid="v"),)
    for each in pods:
        spec = replace(each.spec, node_name="n" + str(5 + int(each.name[-1])))
        meta = replace(each.metadata, uid=f"{each.uid}-2", owner_references=owners)
        stage.world.add(replace(each, metadata=meta, spec=spec))
    assert await stage.look(1.0) == []
    assert list(stage.world.cluster.faulty_nodes.of(key)) == []
    (recovery,) = decode(stage.stored)[0].jobs.values()
    assert (recovery.owners, recovery.is_open, recovery.times_s) == (["v"], False, [])
