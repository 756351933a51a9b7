"""Jobs with faults are rescheduled, on a clock that the test sets."""

from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rescheduling.announcer import DELETED, HELD, PLANNED
from allocator.rescheduling.decision import BLOCKS_AFTER_S, JOB_AFTER_S
from allocator.rescheduling.deletions import FORCE_AGAIN_S, FORCED_GRACE_S, RELEASE_AFTER_S, RESEND_S, RETRY_S
from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.storage import decode
from ascend.annotations import BACKUP_SOURCE, MIN_AVAILABLE
from ascend.chips import chip_set
from ascend.errors import ApiError
from ascend.kube.events import Regarding
from ascend.kube.objects import Metadata
from ascend.kube.workloads import BatchJob, BatchJobSpec, PodConditionPattern, PodFailurePolicy, PodFailureRule
from tests.allocator.builders import GROUP, node, owned_by, pod, report
from tests.allocator.rescheduling.cases import of_area
from tests.allocator.rescheduling.scene import Crashed, anew, job, lost, scene, sub_healthy, waiting


async def test_all_pods_of_a_job_go_when_a_chip_of_one_fails() -> None:
    stage = scene(job(3))
    assert await stage.settle() == []
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-0", "train-1", "train-2"]
    assert {grace_s for _, grace_s in stage.deleted} == {FORCED_GRACE_S}
    assert (DELETED, "deleted, to be created anew: node n2 reports a fault of its chips: Ascend910-5") in stage.said
    assert stage.about[-1] == Regarding("StatefulSet", "train", "default", "u", "apps/v1")
    assert stage.said[-1][1].startswith("3 of its pods were deleted, 1 of them faulty: node n2 reports")
    assert await stage.look(1.0) == []


@pytest.mark.parametrize("label", ["none", "pod_rescheduling", "process_recover_enable"])
async def test_only_the_pod_goes_from_which_a_hot_switch_has_switched_away(label: str) -> None:
    """Also where that is the master, as here, and where its controller creates it anew although its backup runs."""
    said: dict[str, Any] = {} if label == "none" else {label: "on"}
    pods = job(3, subHealthyStrategy="hotSwitch", **said)
    standing_by = {**pods[0].metadata.annotations, BACKUP_SOURCE: "train-0"}
    named = replace(anew(pods[0]).metadata, name="train-0-hot", annotations=standing_by)
    backup = replace(pods[0], metadata=named, spec=replace(pods[0].spec, node_name="n9"))
    prepared = {**pods[0].metadata.annotations, "needVolcanoOpe": "delete", "backupNewPodName": "train-0-hot"}
    pods[0] = replace(pods[0], metadata=replace(pods[0].metadata, annotations=prepared))
    stage = scene(pods)
    stage.world.add(backup, sub_healthy("n1"))
    assert await stage.settle() == ["train-0"]
    assert stage.deleted == [("train-0", FORCED_GRACE_S)]
    sentence = "node n1 is sub-healthy, and subHealthyStrategy is hotSwitch: pod train-0-hot takes over"
    assert (DELETED, f"deleted, to be created anew: {sentence}") in stage.said
    stage.world.add(waiting(replace(pods[0], metadata=replace(pods[0].metadata, uid="another"))))
    await stage.look(1.0)
    assert await stage.look(10 * JOB_AFTER_S) == []


async def test_all_pods_go_when_a_chip_fails_although_a_hot_switch_goes_on() -> None:
    pods = job(3, subHealthyStrategy="hotSwitch")
    prepared = {**pods[0].metadata.annotations, "needVolcanoOpe": "delete"}
    stage = scene([replace(pods[0], metadata=replace(pods[0].metadata, annotations=prepared)), *pods[1:]])
    stage.world.add(sub_healthy("n1"), report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-0", "train-1", "train-2"]


async def test_a_fault_that_passes_at_once_deletes_nothing() -> None:
    stage = scene(job(1))
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.look()
    stage.world.add(report("n1"))
    assert await stage.look(CONFIRM_S) == []


async def test_a_fault_of_a_free_chip_deletes_nothing() -> None:
    stage = scene(job(1, chips=[0, 1]))
    stage.world.add(report("n1", unhealthy=[4]))
    assert await stage.settle() == []


async def test_a_job_that_does_not_ask_for_it_is_left_alone() -> None:
    stage = scene(job(2, fault_scheduling="off"))
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert stage.said == []


async def test_a_job_in_grace_ends_in_its_own_time_and_by_force_after_the_limit() -> None:
    stage = scene(job(2, fault_scheduling="grace"))
    stage.stuck = {"train-0", "train-1"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0", "train-1"]
    assert {grace_s for _, grace_s in stage.deleted} == {None}
    assert await stage.look(899.0) == []
    stage.has_finalizers = True
    assert await stage.look(1.0) == ["train-0", "train-1"]
    assert stage.deleted[-1][1] == 0
    assert await stage.look(FORCE_AGAIN_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0", "train-1"]


@of_area("resched.grace")
async def test_the_time_for_a_graceful_end_is_a_setting(case: dict[str, Any]) -> None:
    stage = scene(job(1, fault_scheduling="grace"), reschedule_grace_s=60.0)
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert case["given"]["age"] == "older"
    assert bool(await stage.look(61.0)) is case["expect"]["force_delete"]


async def test_only_the_faulty_pod_of_a_deployment_goes() -> None:
    stage = scene(job(3, kind="ReplicaSet", is_gang=False))
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]


@pytest.mark.parametrize(
    ("kind", "api_version", "said"),
    [
        ("DaemonSet", "apps/v1", "DaemonSet default/train would create pod default/train-0 anew on the same node"),
        ("Mystery", "example.com/v1", "it is not known whether Mystery default/train would create pod default/train-0"),
    ],
)
async def test_a_pod_that_nobody_creates_anew_elsewhere_stays(kind: str, api_version: str, said: str) -> None:
    stage = scene(job(2, kind=kind, api_version=api_version))
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert await stage.look(10.0) == []
    assert [reason for reason, _ in stage.said] == [HELD]
    assert said in stage.said[0][1]


async def test_a_pod_without_a_controller_stays() -> None:
    stage = scene([replace(each, metadata=replace(each.metadata, owner_references=())) for each in job(1)])
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert stage.said[0][1] == "nothing is deleted: pod default/train-0 has no controller"


IGNORES = PodFailurePolicy((PodFailureRule("Ignore", (PodConditionPattern("DisruptionTarget"),)),))


@pytest.mark.parametrize(
    ("spec", "goes"),
    [
        (BatchJobSpec(2, 2), True),
        (BatchJobSpec(2, 2, backoff_limit=1), False),
        (BatchJobSpec(2, 2, backoff_limit=0, pod_failure_policy=IGNORES), True),
        (BatchJobSpec(2, 2, backoff_limit_per_index=1), False),
    ],
)
async def test_pods_of_a_job_that_would_fail_stay(spec: BatchJobSpec, *, goes: bool) -> None:
    stage = scene(job(2, kind="Job", api_version="batch/v1"))
    stage.world.cluster.jobs.owners.apply(BatchJob(metadata=Metadata("train", "default", "u"), spec=spec))
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == (["train-0", "train-1"] if goes else [])
    if not goes:
        assert "Job default/train would fail: deleted pods count as failures, 2 would be deleted" in stage.said[0][1]


async def test_a_dry_run_says_once_what_would_go() -> None:
    stage = scene(job(2), reschedule="dry-run")
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert await stage.look(1.0) == []
    why = "node n1 reports a fault of its chips: Ascend910-0"
    assert stage.said == [(PLANNED, f"dry run: of job default/train, train-0, train-1 would be deleted: {why}")]
    assert decode(stage.stored)[0] == Memory()


async def test_contradictory_switches_delete_nothing() -> None:
    one, two = job(2)
    stage = scene([one, replace(two, metadata=replace(two.metadata, labels={"fault-scheduling": "grace"}))])
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert "fault-scheduling is 'force' on some of its pods, but 'grace'" in stage.said[0][1]


async def test_a_plague_of_reports_deletes_nothing_and_stops_with_a_reason() -> None:
    pods = [each for number in range(30) for each in job(1, name=f"j{number}", first_node=1 + number)]
    stage = scene(pods, nodes=100)
    for number in range(30):
        stage.world.add(report(f"n{1 + number}", unhealthy=[0]))
        assert await stage.look(1.0 / 30) == []
    assert await stage.look(CONFIRM_S) == []
    assert {reason for reason, _ in stage.said} == {HELD}
    assert "more than 10 of 100 nodes have faults at one time, which is taken for a wrong report" in stage.said[0][1]
    for number in range(5, 30):
        stage.world.add(report(f"n{1 + number}"))
    assert len(await stage.look(1.0)) == 5


async def test_no_more_pods_go_within_a_minute_than_the_budget_has() -> None:
    pods = [each for number in range(3) for each in job(9, name=f"j{number}", first_node=1 + 9 * number)]
    stage = scene(pods)
    for number in range(3):
        stage.world.add(report(f"n{1 + 9 * number}", unhealthy=[0]))
    assert len(await stage.settle()) == 18
    await stage.succeed()
    assert await stage.settle() == []
    assert "18 pods were deleted within the last minute, and the limit is 20" in stage.said[-1][1]
    assert len(await stage.look(60.0)) == 9


async def test_one_job_of_any_size_may_go() -> None:
    stage = scene(job(30))
    stage.world.add(report("n1", unhealthy=[0]))
    assert len(await stage.settle()) == 30


async def test_a_job_that_fails_again_and_again_is_left_after_the_limit() -> None:
    (one,) = job(1)
    stage = scene([one])
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.look()
    for _ in range(3):
        assert await stage.look(CONFIRM_S) == ["train-0"]
        one = anew(one)
        stage.world.add(one)
    assert await stage.look(CONFIRM_S) == []
    assert "deleted 3 times within the last hour, and the limit is 3" in stage.said[-1][1]


async def test_failed_pods_are_replaced_as_often_as_the_job_says_also_by_the_next_leader() -> None:
    (one,) = job(1, fault_retry_times="2")
    stage = scene([one])
    failed = replace(one, status=replace(one.status, phase="Failed", reason="Error"))
    for _ in range(2):
        stage.world.add(failed)
        assert await stage.look(1.0) == ["train-0"]
        failed = anew(failed)
        await stage.succeed()
    stage.world.add(failed)
    assert await stage.look(1.0) == []
    assert "a pod has failed, and fault-retry-times is 2" in stage.said[-1][1]


async def test_a_node_may_be_not_ready_for_a_while() -> None:
    stage = scene(job(2))
    stage.world.add(lost("n1"))
    assert await stage.settle() == []
    stage.world.add(node("n1"))
    assert await stage.look(29.0) == []
    stage.world.add(lost("n1"))
    assert await stage.look(1.0) == []
    assert await stage.look(29.0) == []
    assert await stage.look(1.0) == ["train-0", "train-1"]


async def test_chips_of_a_pod_that_its_kubelet_may_still_run_stay_held() -> None:
    stage = scene(job(1, chips=[0, 1]))
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(30.0) == ["train-0"]
    assert stage.deleted == [("train-0", 0)]
    stage.world.add(node("n1"))
    assert stage.world.vacancy("n1").free == 0xFF & ~chip_set([0, 1])
    await stage.look()
    await stage.succeed()
    await stage.look(RELEASE_AFTER_S - 1.0)
    assert stage.world.vacancy("n1").free == 0xFF & ~chip_set([0, 1])
    await stage.look(RELEASE_AFTER_S)
    assert stage.world.vacancy("n1").free == 0xFF
    assert decode(stage.stored)[0].force_deleted == {}


async def test_after_a_while_the_block_goes_and_then_the_job() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    unbound = pods[3].spec
    waiting = replace(pods[3], spec=replace(unbound, node_name=""), status=replace(pods[3].status, phase="Pending"))
    waiting = replace(waiting, metadata=replace(waiting.metadata, uid="again"))
    stage.world.add(waiting)
    assert await stage.look(1.0) == []
    assert await stage.look(BLOCKS_AFTER_S) == ["train-2"]
    assert await stage.look(JOB_AFTER_S) == []
    first = replace(pods[2].spec, node_name="")
    meta = replace(pods[2].metadata, uid="again-2")
    stage.world.add(replace(pods[2], metadata=meta, spec=first, status=replace(pods[2].status, phase="Pending")))
    assert await stage.look(1.0) == []
    assert await stage.look(JOB_AFTER_S - BLOCKS_AFTER_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0", "train-1"]


async def test_a_job_that_is_whole_again_starts_anew() -> None:
    pods = job(2, pod_rescheduling="on", fault_scheduling="grace")
    stage = scene(pods)
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n2"), replace(pods[1], metadata=replace(pods[1].metadata, uid="again")))
    await stage.look(1.0)
    (recovery,) = stage.rescheduler.memory.jobs.values()
    assert not recovery.is_open
    assert len(recovery.times_s) == 1


async def test_pods_that_work_alone_are_whole_again_one_by_one() -> None:
    pods = job(3, kind="ReplicaSet", is_gang=False)
    stage = scene(pods)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n2"), anew(pods[1]))
    await stage.look(1.0)
    assert [each.is_open for each in stage.rescheduler.memory.jobs.values()] == [False]


async def test_a_job_keeps_its_counts_whichever_of_its_controllers_is_seen() -> None:
    one, two = job(2)
    (owner,) = two.metadata.owner_references
    two = replace(two, metadata=replace(two.metadata, owner_references=(replace(owner, uid="v", name="other"),)))
    stage = scene([one, two], reschedules_per_hour=1)
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-0", "train-1"]
    stage.world.add(anew(two))
    assert await stage.look(1.0) == []
    assert "deleted 1 time within the last hour" in stage.said[-1][1]


async def test_pods_that_another_program_deletes_are_only_marked() -> None:
    stage = scene(job(2, fault_scheduling="external-force"))
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == []
    assert stage.marked == {"train-1": "Unhealthy-CardUnhealthy"}


async def test_a_dry_run_says_once_which_pods_would_be_marked() -> None:
    stage = scene(job(2, fault_scheduling="external-force"), reschedule="dry-run")
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == []
    assert await stage.look(1.0) == []
    assert stage.marked == {}
    why = "node n2 reports a fault of its chips: Ascend910-0"
    said = f"dry run: pod default/train-1 would be marked as Unhealthy-CardUnhealthy: {why}"
    assert stage.said == [(PLANNED, said)]


async def test_a_pod_that_can_not_be_deleted_is_tried_again() -> None:
    stage = scene(job(1))
    stage.refuses = ApiError("Cannot evict pod as it would violate the pod's disruption budget", status=429)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert "pod default/train-0 can't be evicted yet: Cannot evict pod" in "".join(note for _, note in stage.said)
    stage.refuses = None
    assert await stage.look(RETRY_S - 1.0) == []
    assert await stage.look(1.0) == ["train-0"]
    (recovery,) = stage.rescheduler.memory.jobs.values()
    assert len(recovery.times_s) == 1


async def test_a_watch_that_is_late_deletes_no_pod_twice() -> None:
    stage = scene(job(2))
    stage.world.add(report("n1", unhealthy=[0]))
    stage.is_late = True
    assert await stage.settle() == ["train-0", "train-1"]
    assert await stage.look(1.0) == []


async def test_the_next_leader_deletes_what_the_last_one_could_not() -> None:
    stage = scene(job(2))
    stage.world.add(report("n1", unhealthy=[0]))
    stage.dies = True
    with pytest.raises(Crashed):
        await stage.settle()
    stage.dies = False
    await stage.succeed()
    await stage.look()
    assert await stage.look(CONFIRM_S) == []
    assert await stage.look(RESEND_S) == ["train-0", "train-1"]
    (recovery,) = stage.rescheduler.memory.jobs.values()
    assert len(recovery.times_s) == 1


async def test_the_pods_of_a_job_that_request_no_chips_go_with_it() -> None:
    launcher = pod("launcher", None, node="n9", phase="Running", annotations={GROUP: "train", MIN_AVAILABLE: "3"})
    stage = scene([*job(2), owned_by(launcher, "StatefulSet", "apps/v1")])
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["launcher", "train-0", "train-1"]
