"""A successor that waits for chips takes the others of its job with it, and nothing else does."""

from msgspec.structs import replace

from allocator.gangs.record import ENDS_S
from allocator.rescheduling.decision import BLOCKS_AFTER_S, JOB_AFTER_S
from ascend.kube.objects import Metadata, Pod
from ascend.kube.workloads import StatefulSet, StatefulSetSpec
from tests.allocator.builders import report
from tests.allocator.rescheduling.scene import Scene, anew, job, scene, waiting

PATIENCE = int(JOB_AFTER_S) + 3


async def looks(stage: Scene, seconds: int) -> list[str]:
    return [name for _ in range(seconds) for name in await stage.look(1.0)]


def interrupted(*, is_gang: bool = True, mode: str = "force") -> tuple[Scene, list[Pod]]:
    """A job of three pods, whose last one is faulty."""
    pods = job(3, pod_rescheduling="on", is_gang=is_gang, fault_scheduling=mode)
    stage = scene(pods)
    stage.world.add(report("n3", unhealthy=[0]))
    return stage, pods


async def test_the_pods_of_a_job_that_was_stopped_and_started_again_stay() -> None:
    stage, pods = interrupted()
    assert await stage.settle() == ["train-2"]
    stage.world.add(waiting(pods[2]))
    assert await stage.look(1.0) == []
    for each in (*pods[:2], waiting(pods[2])):
        stage.world.cluster.pod_deleted(each)
    assert await looks(stage, PATIENCE) == []
    again = [replace(each, metadata=replace(each.metadata, uid=f"{each.uid}-2")) for each in pods]
    stage.world.add(report("n3"), *map(waiting, again))
    assert await stage.look(1.0) == []
    stage.world.add(anew(again[0]))
    assert await looks(stage, PATIENCE) == []


async def test_a_job_is_not_whole_before_its_controller_has_created_the_successor() -> None:
    stage, pods = interrupted(is_gang=False, mode="grace")
    owner = StatefulSet(metadata=Metadata("train", "default", "u"), spec=StatefulSetSpec(3))
    stage.world.cluster.jobs.owners.apply(owner)
    assert await stage.settle() == ["train-2"]
    assert await looks(stage, 3) == []
    stage.world.add(waiting(pods[2]))
    assert await looks(stage, PATIENCE) == ["train-0", "train-1"]


async def test_the_next_leader_waits_anew() -> None:
    stage, pods = interrupted()
    assert await stage.settle() == ["train-2"]
    stage.world.add(waiting(pods[2]))
    assert await looks(stage, 5) == []
    await stage.save(stage.rescheduler.memory)
    stage.world.now_s += 3600.0
    await stage.succeed()
    assert await looks(stage, 5) == []
    assert await looks(stage, PATIENCE) == ["train-0", "train-1"]


async def test_a_block_has_time_to_move_before_its_job_goes() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    stage.world.add(waiting(pods[3]))
    stage.stuck = {"train-2"}
    assert await looks(stage, PATIENCE) == ["train-2"]
    stage.world.cluster.pod_deleted(pods[2])
    assert await looks(stage, PATIENCE) == []  # its controller has not created it anew
    stage.world.add(report("n4"), anew(pods[3]), anew(pods[2]))
    assert await looks(stage, PATIENCE) == []


async def test_a_pod_does_not_wait_for_chips_while_old_pods_of_its_job_are_about_to_end() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.stuck = {"train-3"}
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    stage.world.add(waiting(pods[3]))
    assert await looks(stage, int(ENDS_S + BLOCKS_AFTER_S) - 1) == []
    assert await looks(stage, 1) == ["train-2"]
