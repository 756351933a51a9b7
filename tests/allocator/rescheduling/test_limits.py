"""Limits of rescheduling: nothing goes without need, refusals use up nothing, and it does not stop for ever."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from allocator.rescheduling import rescheduler
from allocator.rescheduling.announcer import DELETED
from allocator.rescheduling.decision import BLOCKS_AFTER_S, JOB_AFTER_S, switches_of
from allocator.rescheduling.deletions import NODE_GONE_S, RELEASE_AFTER_S, RETRY_S
from allocator.rescheduling.fault_watch import CONFIRM_S
from allocator.rescheduling.memory import Memory
from allocator.rescheduling.records import REASONS_KEY, REASONS_NAME, REASONS_NAMESPACE, RETRIES_NAMESPACE, RecordWriter
from allocator.rules.rescheduling_labels import FaultLabels
from ascend.errors import ApiError
from ascend.kube.objects import CONFIG_MAPS, Metadata, Pod
from ascend.kube.workloads import (
    BatchJob,
    BatchJobSpec,
    ExitCodes,
    PodConditionPattern,
    PodFailurePolicy,
    PodFailureRule,
)
from sandbox.cluster import SandboxCluster
from tests.allocator.builders import node, report
from tests.allocator.rescheduling.scene import anew, job, lost, scene
from tests.allocator.rescheduling.test_records import NAMESPACES


async def test_all_faulty_pods_of_a_deployment_count_once() -> None:
    stage = scene(job(5, kind="ReplicaSet", is_gang=False), reschedules_per_hour=1, reschedule_faulty_share=1.0)
    stage.world.add(*(report(f"n{number}", unhealthy=[0]) for number in range(1, 5)))
    assert await stage.settle() == ["train-0", "train-1", "train-2", "train-3"]
    (recovery,) = stage.rescheduler.memory.jobs.values()
    assert len(recovery.times_s) == 1


async def test_a_healthy_pod_of_a_deployment_stays_while_a_successor_waits() -> None:
    pods = job(3, kind="ReplicaSet", is_gang=False, pod_rescheduling="on")
    stage = scene(pods)
    stage.world.add(report("n2", unhealthy=[5]))
    assert await stage.settle() == ["train-1"]
    new = anew(pods[1])
    stage.world.add(replace(new, spec=replace(new.spec, node_name=""), status=replace(new.status, phase="Pending")))
    assert await stage.look(1.0) == []
    assert await stage.look(JOB_AFTER_S + 1.0) == []


async def test_nodes_that_are_gone_count_no_more() -> None:
    pods = [each for number in range(1, 6) for each in job(1, name=f"j{number}", first_node=number)]
    stage = scene([*pods, *job(1, first_node=30)])
    for number in range(1, 6):
        stage.world.add(lost(f"n{number}"))
        await stage.look()
        assert await stage.look(30.0) == [f"j{number}-0"]
        stage.world.cluster.node_deleted(node(f"n{number}"))
        await stage.look(RELEASE_AFTER_S)
    stage.world.add(report("n30", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert len(stage.rescheduler.memory.force_deleted) == 5
    await stage.look(NODE_GONE_S)
    assert stage.rescheduler.memory.force_deleted == {}
    assert "n1" not in stage.world.cluster.nodes


async def test_nodes_without_chips_do_not_count() -> None:
    stage = scene(job(1))
    stage.world.add(*(node(f"cpu{number}", chips=[], allocatable=None, infos="", ready=False) for number in range(5)))
    await stage.look()
    await stage.look(30.0)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]


async def test_refused_evictions_are_said_once_and_use_up_no_budget() -> None:
    stage = scene([*job(15), *job(10, name="other", first_node=20)])
    stage.refuses = ApiError("it would violate the pod's disruption budget", status=429)
    stage.world.add(report("n1", unhealthy=[0]))
    await stage.settle()
    said = len(stage.said)
    for _ in range(3):
        await stage.look(RETRY_S)
    assert len(stage.said) == said == 15
    assert DELETED not in stage.reasons()
    stage.refuses = None
    stage.world.add(report("n20", unhealthy=[0]))
    await stage.look()
    assert await stage.look(2.0) == [f"other-{rank}" for rank in range(10)]


async def test_a_job_does_not_fail_by_pods_that_go_one_after_the_other() -> None:
    stage = scene(job(3, kind="Job", api_version="batch/v1", pod_rescheduling="on", fault_scheduling="grace"))
    stage.stuck = {"train-1"}
    spec = BatchJobSpec(3, 3, backoff_limit=1)
    stage.world.cluster.jobs.owners.apply(BatchJob(metadata=Metadata("train", "default", "u"), spec=spec))
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-1"]
    stage.world.add(report("n3", unhealthy=[0]))
    assert await stage.settle() == []
    assert "Job default/train would fail" in stage.said[-1][1]


async def test_a_pod_that_its_job_has_replaced_already_does_not_end_the_job_with_its_node() -> None:
    pods = job(2, kind="Job", api_version="batch/v1")
    old = replace(anew(pods[0]), spec=replace(pods[0].spec, node_name="n9"))
    stage = scene([*pods, replace(old, status=replace(old.status, phase="Failed"))])
    spec = BatchJobSpec(2, 2, backoff_limit=6)
    stage.world.cluster.jobs.owners.apply(BatchJob(metadata=Metadata("train", "default", "u"), spec=spec))
    stage.world.add(lost("n9"))
    await stage.look()
    assert await stage.look(30.0) == []
    stage.world.add(lost("n2"))
    await stage.look()
    assert "train-0" in await stage.look(30.0)


IGNORE = PodFailureRule("Ignore", (PodConditionPattern("DisruptionTarget"),))


@pytest.mark.parametrize(
    ("rules", "goes"),
    [
        ((IGNORE, PodFailureRule("FailJob", on_exit_codes=ExitCodes("NotIn", (0,)))), True),
        ((PodFailureRule("FailJob", on_exit_codes=ExitCodes("In", (42,))), IGNORE), True),
        ((PodFailureRule("FailJob", on_exit_codes=ExitCodes("NotIn", (0,))), IGNORE), False),
        ((PodFailureRule("FailIndex", on_exit_codes=ExitCodes("In", (1, 143))), IGNORE), False),
        ((PodFailureRule("FailJob", (PodConditionPattern("DisruptionTarget"),)), IGNORE), False),
    ],
)
async def test_the_first_rule_about_a_deleted_pod_decides(rules: tuple[PodFailureRule, ...], *, goes: bool) -> None:
    stage = scene(job(2, kind="Job", api_version="batch/v1"))
    spec = BatchJobSpec(2, 2, backoff_limit=6, pod_failure_policy=PodFailurePolicy(rules))
    stage.world.cluster.jobs.owners.apply(BatchJob(metadata=Metadata("train", "default", "u"), spec=spec))
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == (["train-0", "train-1"] if goes else [])


async def test_what_is_remembered_of_many_lost_pods_is_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = scene(job(30), nodes=60, reschedule_faulty_share=1.0)
    stage.world.add(*(lost(f"n{number}") for number in range(1, 31)))
    await stage.look()
    saves, save = list[int](), stage.save

    async def count(memory: Memory) -> None:
        saves.append(len(memory.force_deleted))
        await save(memory)

    monkeypatch.setattr(stage, "save", count)
    assert len(await stage.look(30.0)) == 30
    assert saves == [30]
    assert len(await stage.look(1.0)) == 0
    assert saves == [30, 30]


async def test_reports_that_flap_between_faults_are_said_once_each() -> None:
    stage = scene(job(2), reschedule="dry-run")
    for each in range(180):
        stage.world.add(report("n1", unhealthy=[each // 3 % 2]))
        await stage.look(1.0)
    assert len(stage.said) == 2


async def test_nodes_that_are_cordoned_do_not_count() -> None:
    stage = scene(job(1, first_node=30))
    for number in range(1, 6):
        stage.world.add(node(f"n{number}"), report(f"n{number}", unhealthy=[0]))
    stage.world.add(report("n30", unhealthy=[0]))
    assert await stage.settle() == []
    stage.world.add(*(node(f"n{number}", cordoned=True) for number in range(1, 6)))
    assert await stage.look(1.0) == ["train-0"]


async def test_times_from_before_the_clock_was_set_back_end_with_their_limits() -> None:
    (one,) = job(1)
    stage = scene([one], reschedules_per_hour=1)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    stage.world.now_s -= 50_000.0
    await stage.succeed()
    stage.world.add(anew(one))
    assert await stage.settle() == []
    assert await stage.look(3600.0) == ["train-0"]


async def test_a_dry_run_after_deletions_deletes_and_stores_nothing() -> None:
    stage = scene(job(2), reschedule_grace_s=60.0)
    stage.stuck.add("train-0")
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0", "train-1"]
    stored = stage.stored
    stage.settings = dataclasses.replace(stage.settings, reschedule="dry-run")
    await stage.succeed()
    assert await stage.look(61.0) == []
    assert await stage.look(61.0) == []
    assert stage.stored == stored


async def test_a_dry_run_frees_the_chips_of_pods_deleted_by_force() -> None:
    stage = scene(job(1))
    stage.world.add(lost("n1"))
    await stage.look()
    assert await stage.look(30.0) == ["train-0"]
    stage.settings = dataclasses.replace(stage.settings, reschedule="dry-run")
    await stage.succeed()
    stage.world.add(node("n1"))
    await stage.look()
    await stage.look(RELEASE_AFTER_S - 1.0)
    assert stage.world.vacancy("n1").free == 0
    await stage.look(1.0)
    assert stage.world.vacancy("n1").free == 0xFF


async def test_a_job_that_can_not_be_judged_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = scene([*job(1, name="a"), *job(1, name="b", first_node=2)])
    stage.world.add(report("n1", unhealthy=[0]), report("n2", unhealthy=[0]))

    def judge(of: Any, pods: list[Pod]) -> FaultLabels:
        if pods[0].name == "a-0":
            raise RuntimeError("a defect")
        return switches_of(of, pods)

    monkeypatch.setattr(rescheduler, "switches_of", judge)
    assert await stage.settle() == ["b-0"]


async def test_a_pod_that_its_job_names_as_failed_with_another_one_goes() -> None:
    (one,) = job(1)
    stage = scene([one])
    labels = {**one.metadata.labels, "fault-type": "Separate"}
    stage.world.add(replace(one, metadata=replace(one.metadata, labels=labels)))
    assert await stage.look() == ["train-0"]


async def test_a_budget_may_be_used_up_to_the_last_pod() -> None:
    stage = scene([*job(1, name="a"), *job(1, name="b", first_node=2)], reschedule_pods_per_minute=2)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["a-0"]
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["b-0"]


async def test_pods_of_a_block_that_was_deleted_are_not_deleted_again_while_one_of_them_waits() -> None:
    pods = job(4, blocks=2, pod_rescheduling="on")
    stage = scene(pods)
    stage.world.add(report("n4", unhealthy=[0]))
    assert await stage.settle() == ["train-3"]
    new = anew(pods[3])
    waiting = replace(new, spec=replace(new.spec, node_name=""), status=replace(new.status, phase="Pending"))
    stage.world.add(waiting)
    await stage.look()
    assert await stage.look(BLOCKS_AFTER_S) == ["train-2"]
    moved = replace(anew(pods[2]), spec=replace(pods[2].spec, node_name="n9"))
    stage.world.add(moved)
    assert await stage.look(1.0) == []
    assert await stage.look(JOB_AFTER_S - BLOCKS_AFTER_S) == ["train-0", "train-1", "train-2"]


async def test_a_clock_that_was_set_back_does_not_let_a_job_wait_longer() -> None:
    stage = scene(pods := job(2, pod_rescheduling="on"))
    stage.world.add(report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-1"]
    new = anew(pods[1])
    stage.world.add(replace(new, spec=replace(new.spec, node_name=""), status=replace(new.status, phase="Pending")))
    await stage.look(1.0)
    (recovery,) = stage.rescheduler.memory.jobs.values()
    await stage.save(stage.rescheduler.memory)
    assert recovery.waits_since_s is not None
    stage.world.now_s -= 80.0
    await stage.succeed()
    await stage.look(CONFIRM_S)
    assert await stage.look(JOB_AFTER_S) == ["train-0"]


async def test_what_was_deleted_is_recorded_for_other_programs(tmp_path: Path) -> None:
    async with SandboxCluster(tmp_path, ()) as cluster:
        await cluster.client.create(NAMESPACES, {"metadata": {"name": REASONS_NAMESPACE}})
        await cluster.client.create(NAMESPACES, {"metadata": {"name": RETRIES_NAMESPACE}})
        stage = scene(job(2))
        stage.records = RecordWriter(cluster.client, stage.world.cluster, lambda: 0.0)
        stage.rescheduler = stage.start()
        stage.world.add(report("n2", unhealthy=[0]))
        assert await stage.settle() == ["train-0", "train-1"]
        found = await cluster.client.get(CONFIG_MAPS, REASONS_NAME, REASONS_NAMESPACE)
        assert "default/train" in found.data[REASONS_KEY]
