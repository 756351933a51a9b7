"""Which pods of a job are deleted, and how far that reaches after a while."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.rescheduling.decision import (
    BLOCKS_AFTER_S,
    JOB_AFTER_S,
    Depth,
    JobPod,
    choose,
    is_master,
    job_reason,
    may_restart,
    stage_after,
)
from allocator.rescheduling.faults import FaultKind, PodFault
from allocator.rules.rescheduling_labels import FaultLabels, Mode, Reach, Strategy, read_switches
from ascend.annotations import RANK
from tests.allocator.builders import pod
from tests.allocator.rescheduling.cases import of_area

BROKEN = PodFault(FaultKind.CHIP, "node n1 reports a fault")


def member(name: str, *, faulty: bool = False, block: int | None = None, is_master: bool = False) -> JobPod:
    return JobPod(pod(name, node="n1"), BROKEN if faulty else None, block, is_master)


def chosen(
    members: list[JobPod], switches: FaultLabels, stage: Depth = Depth.PODS, damaged: tuple[int, ...] = ()
) -> set[str]:
    return {each.pod.name for each in choose(members, switches, stage, damaged).pods}


@of_area("resched.delete")
def test_whether_a_pod_goes_when_another_is_faulty(case: dict[str, Any]) -> None:
    said = case["given"]
    labels = dict(said.get("labels", {}))
    if "pod_rescheduling" in said:
        labels["pod-rescheduling"] = said["pod_rescheduling"]
    annotations = (
        {"huawei.com/recover_policy_path": said["recover_policy_path"]} if "recover_policy_path" in said else {}
    )
    switches = read_switches((), [pod("one", labels=labels, annotations=annotations)])
    is_blocky = said.get("super_pod_job", False)
    stage = stage_after(float(said.get("sessions", 0)), switches, has_blocks=is_blocky)
    own = 0 if said.get("in_damaged_block", False) else 1
    judged = member("judged", faulty=said["pod_faulty"], block=own if is_blocky else None)
    master = member("master", faulty=said.get("master_fault", False), block=2 if is_blocky else None, is_master=True)
    other = member("other", faulty=not master.fault, block=0 if is_blocky else None)
    assert ("judged" in chosen([judged, master, other], switches, stage)) is case["expect"]["delete_pod"]


@of_area("resched.restart")
def test_whether_a_job_may_restart(case: dict[str, Any]) -> None:
    said = case["given"]
    retries = said.get("fault_retry_times", 0)
    reasons = {"NodeUnhealthy": FaultKind.NODE, "pod-failed": FaultKind.POD, "pod-healthy": FaultKind.CHIP}
    reason = reasons[said["reason"]] if said["is_fault_job"] else None
    used = retries - said.get("remaining", retries)
    assert may_restart(reason, FaultLabels(Mode.FORCE, retries=retries), used) is case["expect"]["may_restart"]


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.EXTERNAL_GRACE, Mode.EXTERNAL_FORCE])
def test_nothing_is_deleted_where_another_program_does_it(mode: Mode) -> None:
    assert not may_restart(FaultKind.NODE, FaultLabels(mode), 0)


@of_area("resched.master")
def test_which_pod_is_the_master(case: dict[str, Any]) -> None:
    said = case["given"]
    given = pod("p", 8 if said["npu_job"] else None, labels=said["labels"], annotations={RANK: said["rank"]})
    assert is_master(given) is case["expect"]["is_master"]


def test_the_first_kind_of_fault_counts_for_the_job() -> None:
    faults = [PodFault(kind, "") for kind in (FaultKind.POD, FaultKind.RELATED, FaultKind.CHIP)]
    assert job_reason(faults) is FaultKind.CHIP
    assert job_reason(faults[:1]) is FaultKind.POD
    assert job_reason([]) is None


def test_the_reach_grows_with_the_time_for_which_a_successor_waits() -> None:
    wider = FaultLabels(Mode.GRACE, Reach.WIDER)
    for waits_s, blocks, plain in [
        (0.0, Depth.PODS, Depth.PODS),
        (BLOCKS_AFTER_S - 0.1, Depth.PODS, Depth.PODS),
        (BLOCKS_AFTER_S, Depth.BLOCKS, Depth.PODS),
        (JOB_AFTER_S - 0.1, Depth.BLOCKS, Depth.PODS),
        (JOB_AFTER_S, Depth.JOB, Depth.JOB),
    ]:
        assert stage_after(waits_s, wider, has_blocks=True) is blocks
        assert stage_after(waits_s, wider, has_blocks=False) is plain
        assert stage_after(waits_s, FaultLabels(Mode.GRACE, Reach.PROCESSES), has_blocks=True) is Depth.PODS


def test_pods_go_then_the_damaged_block_then_the_job() -> None:
    wider = FaultLabels(Mode.GRACE, Reach.WIDER)
    pods = [member("m", block=0, is_master=True), member("a", block=1, faulty=True), member("b", block=1)]
    assert chosen(pods, wider) == {"a"}
    waiting = [pods[0], pods[2]]
    assert chosen(waiting, wider, Depth.PODS, (1,)) == set()
    assert chosen(waiting, wider, Depth.BLOCKS, (1,)) == {"b"}
    assert chosen(waiting, wider, Depth.JOB, (1,)) == {"m", "b"}


def test_all_pods_go_once_the_masters_block_is_damaged() -> None:
    pods = [member("m", block=0, is_master=True), member("b", block=1)]
    assert chosen(pods, FaultLabels(Mode.GRACE, Reach.WIDER), Depth.BLOCKS, (0,)) == {"m", "b"}


@pytest.mark.parametrize(
    ("mode", "kind", "strategy", "at_once"),
    [
        (Mode.FORCE, FaultKind.NODE, Strategy.IGNORE, True),
        (Mode.GRACE, FaultKind.NODE, Strategy.IGNORE, False),
        (Mode.GRACE, FaultKind.SUB_HEALTH, Strategy.FORCE_EXIT, True),
        (Mode.GRACE, FaultKind.SUB_HEALTH, Strategy.HOT_SWITCH, True),
        (Mode.FORCE, FaultKind.SUB_HEALTH, Strategy.GRACE_EXIT, False),
    ],
)
def test_how_pods_go(mode: Mode, kind: FaultKind, strategy: Strategy, *, at_once: bool) -> None:
    faulty = JobPod(pod("one", node="n1"), PodFault(kind, ""))
    assert choose([faulty], FaultLabels(mode, strategy=strategy), Depth.PODS, ()).at_once is at_once


@given(st.data())
def test_faulty_pods_always_go_and_a_wider_stage_never_spares_one(data: st.DataObject) -> None:
    members = [
        member(f"p{number}", faulty=data.draw(st.booleans()), block=data.draw(st.integers(0, 2)), is_master=not number)
        for number in range(data.draw(st.integers(1, 6)))
    ]
    switches = FaultLabels(Mode.GRACE, data.draw(st.sampled_from(Reach)))
    by_stage = [chosen(members, switches, stage) for stage in Depth]
    faulty = {each.pod.name for each in members if each.fault is not None}
    assert all(faulty <= each for each in by_stage)
    assert by_stage[0] <= by_stage[1] <= by_stage[2]
    if not faulty:
        assert not by_stage[0]
    if switches.reach is Reach.POD:
        assert by_stage[2] == faulty
