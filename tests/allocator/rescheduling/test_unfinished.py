"""A decision that was carried out only in part is carried out to its end, and counts once."""

from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rescheduling.deletions import RESEND_S, RETRY_S
from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.storage import decode
from ascend.errors import ApiError, Unreachable
from ascend.kube.objects import Metadata, Pod
from ascend.kube.workloads import BatchJob, BatchJobSpec
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import Crashed, Scene, anew, job, scene, waiting


class Interrupted(Scene):
    """A scene in which some pods can't be deleted, or the process ends after so many deletions."""

    def __init__(self, pods: list[Pod], **settings: Any) -> None:
        super().__init__(**settings)
        self.kept: set[str] = set()
        self.dies_after: int | None = None
        self.world.add(*(node(f"n{number}") for number in range(1, 41)), *pods)

    async def delete(self, pod: Pod, why: str, grace_s: int | None) -> None:
        if self.dies_after == len(self.deleted):
            raise Crashed
        if pod.name in self.kept:
            raise ApiError("it would violate the pod's disruption budget", status=429)
        await super().delete(pod, why, grace_s)

    async def looks(self, seconds: int) -> list[str]:
        """Look once a second; return the names of the pods that are deleted."""
        return [name for _ in range(seconds) for name in await self.look(1.0)]


async def test_the_others_of_a_job_follow_when_they_could_not_be_deleted_with_the_faulty_pod() -> None:
    stage = Interrupted(job(3), reschedules_per_hour=1)
    stage.kept = {"train-1", "train-2"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    stage.kept = {"train-2"}
    assert await stage.looks(int(RETRY_S)) == ["train-1"]
    stage.kept = set()
    assert await stage.looks(int(RETRY_S)) == ["train-2"]
    (recovery,) = stage.rescheduler.memory.jobs.values()
    assert len(recovery.times_s) == 1


async def test_successors_stay_while_a_pod_of_the_same_decision_can_not_be_deleted() -> None:
    pods = job(3)
    stage = Interrupted(pods)
    stage.kept = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-1", "train-2"]
    stage.world.add(anew(pods[1]), anew(pods[2]))
    assert await stage.looks(3 * int(RETRY_S)) == []
    stage.kept = set()
    assert await stage.looks(int(RETRY_S)) == ["train-0"]


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_the_next_leader_deletes_the_others_of_a_job_whose_faulty_pod_has_gone(*, is_replaced: bool) -> None:
    pods = job(3)
    stage = Interrupted(pods)
    stage.dies_after = 1
    stage.world.add(report("n1", unhealthy=[0]))
    with pytest.raises(Crashed):
        await stage.settle()
    stage.dies_after = None
    if is_replaced:
        stage.world.add(replace(waiting(pods[0]), spec=replace(pods[0].spec, node_name="n9")))
    await stage.succeed()
    assert sorted(await stage.looks(int(RESEND_S) + 3)) == ["train-1", "train-2"]


async def test_a_pod_that_works_alone_stays_when_its_fault_has_passed_before_it_could_be_deleted() -> None:
    stage = Interrupted(job(3, kind="ReplicaSet", is_gang=False))
    stage.kept = {"train-1"}
    stage.world.add(report("n1", unhealthy=[0]), report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    stage.kept = set()
    stage.world.add(report("n2"))
    assert await stage.looks(3 * int(RETRY_S)) == []


async def test_a_wider_deletion_that_was_refused_is_tried_again() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = Interrupted(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    stage.world.add(waiting(pods[3]))
    stage.kept = {"train-2"}
    assert await stage.looks(8) == []
    stage.kept = set()
    assert await stage.looks(int(RETRY_S)) == ["train-0", "train-1", "train-2"]


def failed(pod: Pod) -> Pod:
    return replace(pod, status=replace(pod.status, phase="Failed", reason="Error"))


async def test_a_refused_deletion_is_no_retry() -> None:
    (one,) = job(1, fault_retry_times="1")
    stage = Interrupted([failed(one)])
    stage.kept = {"train-0"}
    assert await stage.look(1.0) == []
    stage.kept = set()
    assert await stage.looks(int(RETRY_S)) == ["train-0"]
    stage.world.add(failed(anew(one)))
    assert await stage.looks(2 * int(RETRY_S)) == []


async def test_the_last_retry_is_made_by_the_next_leader() -> None:
    (one,) = job(1, fault_retry_times="1")
    stage = Interrupted([failed(one)])
    stage.dies_after = 0
    with pytest.raises(Crashed):
        await stage.look(1.0)
    stage.dies_after = None
    await stage.succeed()
    assert await stage.looks(int(RESEND_S) + 1) == ["train-0"]


async def test_what_could_not_be_stored_uses_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [failed(each) for each in job(15, fault_retry_times="1")]
    stage = Interrupted(pods, reschedules_per_hour=1)
    saves, save = list[Memory](), stage.save

    async def refuse(memory: Memory) -> None:
        saves.append(memory)
        if len(saves) <= 2:
            raise Unreachable("no route")
        await save(memory)

    monkeypatch.setattr(stage, "save", refuse)
    assert await stage.looks(2) == []
    assert len(await stage.looks(1)) == 15


async def test_a_leader_that_loses_its_lease_while_it_stores_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Interrupted(job(1))
    stage.world.add(report("n1", unhealthy=[0]))
    save = stage.save

    async def lose(memory: Memory) -> None:
        await save(memory)
        stage.is_leader = False

    monkeypatch.setattr(stage, "save", lose)
    assert await stage.settle() == []


async def test_the_end_of_a_recovery_is_stored_once_that_is_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = job(2, pod_rescheduling="on", fault_scheduling="grace")
    stage = Interrupted(pods)
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-1"]
    await stage.look(1.0)
    stage.world.add(anew(pods[1]), report("n2"))
    save = stage.save

    async def refuse(_memory: Memory) -> None:
        raise Unreachable("no route")

    monkeypatch.setattr(stage, "save", refuse)
    await stage.looks(3)
    monkeypatch.setattr(stage, "save", save)
    await stage.look(1.0)
    (recovery,) = decode(stage.stored)[0].jobs.values()
    assert not recovery.is_open


async def test_a_limit_above_ten_times_an_hour_holds() -> None:
    (one,) = job(1)
    stage = scene([one], reschedules_per_hour=12)
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.look()
    gone = 0
    for _ in range(20):
        gone += len(await stage.look(CONFIRM_S))
        one = anew(one)
        stage.world.add(one)
    assert gone == 12


async def test_failed_pods_that_a_job_has_counted_are_not_counted_again() -> None:
    pods = job(2, kind="Job", api_version="batch/v1")
    old = replace(anew(pods[0]), status=replace(pods[0].status, phase="Failed"))
    stage = scene([*pods, old])
    spec = BatchJobSpec(2, 2, backoff_limit=2)
    stage.world.cluster.jobs.owners.apply(BatchJob(metadata=Metadata("train", "default", "u"), spec=spec))
    stage.world.add(report("n2", unhealthy=[0]))
    assert set(await stage.settle()) == {"train-0", "train-1"}
