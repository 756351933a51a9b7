"""Only the leader acts: deletions by force, marks and what is stored, also when it stops leading meanwhile."""

import asyncio

import pytest

from allocator.rescheduling import rescheduler
from allocator.rescheduling.announcer import HELD
from allocator.rescheduling.fault_watch import CONFIRM_S
from tests.allocator.builders import report
from tests.allocator.rescheduling.scene import Scene, anew, job, scene

LOOKS = 10


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop looks again at once; only the test's clock says how much time passes."""
    monkeypatch.setattr(rescheduler, "PERIOD_S", 0.0)
    monkeypatch.setattr(rescheduler, "LOAD_AGAIN_S", 0.0)


async def run(stage: Scene, after_s: float = 0.0) -> None:
    """Let time pass, and the loop come round some times."""
    stage.world.now_s += after_s
    before, loop = stage.asked, asyncio.create_task(stage.rescheduler.run())
    while stage.asked < before + LOOKS:
        assert not loop.done()
        await asyncio.sleep(0)
    loop.cancel()
    await asyncio.gather(loop, return_exceptions=True)


async def faulty(mode: str, *, kind: str = "StatefulSet") -> Scene:
    """A pod with a fault, whose kubelet does not end it; what was remembered is known."""
    stage = scene(job(1, kind=kind, fault_scheduling=mode))
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.rescheduler.load()
    return stage


async def test_only_the_leader_deletes_a_pod() -> None:
    stage = await faulty("grace")
    stage.is_leader = False
    for _ in range(3):
        await run(stage, CONFIRM_S)
    assert (stage.deleted, stage.said) == ([], [])
    stage.is_leader = True
    await run(stage)
    await run(stage, CONFIRM_S)
    assert stage.deleted == [("train-0", None)]


async def test_only_the_leader_deletes_by_force_a_pod_that_does_not_end() -> None:
    stage = await faulty("grace")
    await run(stage)
    await run(stage, CONFIRM_S)
    assert stage.deleted == [("train-0", None)]
    stage.is_leader, stored = False, stage.stored
    await run(stage, stage.settings.reschedule_grace_s)
    assert (stage.deleted, stage.stored) == ([("train-0", None)], stored)
    stage.is_leader = True
    await run(stage)
    assert stage.deleted == [("train-0", None)]
    await stage.look(stage.settings.reschedule_grace_s)
    assert stage.deleted == [("train-0", None), ("train-0", 0)]


async def test_only_the_leader_marks_the_pods_that_another_program_deletes() -> None:
    stage = await faulty("external-force")
    stage.is_leader = False
    for _ in range(3):
        await run(stage, CONFIRM_S)
    assert stage.marked == {}
    stage.is_leader = True
    await run(stage)
    await run(stage, CONFIRM_S)
    assert stage.marked == {"train-0": "Unhealthy-CardUnhealthy"}


async def test_only_the_leader_says_why_pods_stay() -> None:
    stage = await faulty("force", kind="DaemonSet")
    stage.is_leader = False
    for _ in range(3):
        await run(stage, CONFIRM_S)
    assert stage.said == []
    stage.is_leader = True
    await run(stage)
    await run(stage, CONFIRM_S)
    assert stage.reasons() == [HELD]


async def test_a_leader_that_was_suspended_within_a_look_deletes_nothing_by_force_and_stores_nothing() -> None:
    stage = await faulty("grace")
    await run(stage)
    await run(stage, CONFIRM_S)
    await stage.look(stage.settings.reschedule_grace_s - 1.0)
    stored, stage.leads_until = stage.stored, stage.asked + 1
    await run(stage, 1.0)
    assert (stage.deleted, stage.stored) == ([("train-0", None)], stored)
    await stage.succeed()
    stage.is_leader, stage.leads_until = True, None
    await stage.look()
    await stage.look(stage.settings.reschedule_grace_s)
    assert stage.deleted == [("train-0", None), ("train-0", 0)]


async def test_a_leader_that_was_suspended_between_deletions_by_force_deletes_no_more() -> None:
    stage = scene(job(2, fault_scheduling="grace"))
    stage.stuck = {"train-0", "train-1"}
    stage.world.add(report("n1", unhealthy=[0]))
    await run(stage)
    await run(stage, CONFIRM_S)
    assert stage.deleted == [("train-0", None), ("train-1", None)]
    await stage.look(stage.settings.reschedule_grace_s - 1.0)
    stage.leads_until = stage.asked + 3
    await run(stage, 1.0)
    assert stage.deleted[2:] == [("train-0", 0)]


async def test_a_leader_that_was_suspended_within_a_look_marks_nothing() -> None:
    stage = await faulty("external-force")
    await run(stage)
    stage.leads_until = stage.asked + 2
    await run(stage, CONFIRM_S)
    assert stage.marked == {}


async def test_a_leader_that_was_suspended_does_not_store_that_a_job_is_whole() -> None:
    (one,) = job(1)
    stage = scene([one])
    stage.world.add(report("n1", unhealthy=[0]))
    await run(stage)
    await run(stage, CONFIRM_S)
    stage.world.add(report("n1"))
    await run(stage, CONFIRM_S)
    stage.world.add(anew(one))
    stored, stage.leads_until = stage.stored, stage.asked + 2
    await run(stage, 1.0)
    assert stage.stored == stored
    await stage.succeed()
    stage.is_leader, stage.leads_until = True, None
    await run(stage, 1.0)
    assert stage.stored != stored
