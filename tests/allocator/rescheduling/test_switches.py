"""What jobs say about their rescheduling, wherever they say it."""

from typing import Any

import pytest

from allocator.rules.rescheduling_labels import OFF, FaultLabels, Mode, Reach, Strategy, read_switches
from ascend.errors import InvalidValue
from ascend.jobs.kind import JobFacts
from tests.allocator.builders import pod
from tests.allocator.rescheduling.cases import of_area


def of_labels(**labels: str) -> FaultLabels:
    return read_switches((), [pod("one", labels={key.replace("_", "-"): value for key, value in labels.items()})])


@of_area("resched.retrylabel")
def test_retries_are_those_of_the_label(case: dict[str, Any]) -> None:
    switches = read_switches((), [pod("one", labels=case["given"]["labels"])])
    assert switches.retries == case["expect"]["fault_retry_times"]


@pytest.mark.parametrize("text", ["", "many", "-1", "1.5", "٣", "1" * 30])
def test_retries_that_are_no_number_are_none(text: str) -> None:
    assert of_labels(fault_retry_times=text).retries == 0


@of_area("resched.label")
def test_only_a_known_mode_deletes_pods(case: dict[str, Any]) -> None:
    labels = case["given"]["labels"]
    if case["expect"].get("mode") is not None:
        assert read_switches((), [pod("one", labels=labels)]).mode == case["expect"]["mode"]
    else:
        assert case["expect"]["pods_deleted"] is False
        with pytest.raises(InvalidValue, match="fault-scheduling is 'whatever'; known values: off, grace, force"):
            read_switches((), [pod("one", labels=labels)])


def test_a_job_that_says_nothing_is_not_rescheduled() -> None:
    assert read_switches((None, None), [pod("one")]) == OFF


def test_the_pod_group_counts_before_the_object_and_both_before_the_pods() -> None:
    pods = [pod("one", labels={"fault-scheduling": "off", "pod-rescheduling": "on", "fault-retry-times": "1"})]
    source = JobFacts(labels={"fault-scheduling": "grace", "fault-retry-times": "2"})
    switches = read_switches((JobFacts(labels={"fault-scheduling": "force"}), source), pods)
    assert switches == FaultLabels(Mode.FORCE, Reach.WIDER, 2, restarts=True)


def test_pods_that_contradict_each_other_are_named() -> None:
    pods = [pod("one", labels={"fault-scheduling": "grace"}), pod("two", labels={"fault-scheduling": "force"})]
    with pytest.raises(
        InvalidValue, match="fault-scheduling is 'grace' on some of its pods, but 'force' on pod default/two"
    ):
        read_switches((), pods)


@pytest.mark.parametrize(
    ("labels", "annotations", "reach"),
    [
        ({}, {}, Reach.JOB),
        ({"pod-rescheduling": "on"}, {}, Reach.WIDER),
        ({"process-recover-enable": "on"}, {}, Reach.PROCESSES),
        ({"process-recover-enable": "pause"}, {}, Reach.JOB),
        ({"pod-rescheduling": "on", "process-recover-enable": "on"}, {}, Reach.PROCESSES),
        ({"pod-rescheduling": "on"}, {"huawei.com/recover_policy_path": "pod"}, Reach.POD),
        ({"app": "mindie-ms-controller"}, {}, Reach.POD),
        ({"app": "train"}, {}, Reach.JOB),
        ({"ome.io/inferenceservice": "llm"}, {}, Reach.POD),
    ],
)
def test_which_pods_go_with_a_faulty_one(labels: dict[str, str], annotations: dict[str, str], reach: Reach) -> None:
    assert read_switches((), [pod("one", labels=labels, annotations=annotations)]).reach is reach


@pytest.mark.parametrize(
    ("labels", "annotations"),
    [({"elastic-scheduling": "on"}, {}), ({}, {"ProcessRecoverStrategy": "recover"})],
    ids=["elastic", "another program"],
)
def test_a_job_that_another_program_cares_for_is_left_alone(
    labels: dict[str, str], annotations: dict[str, str]
) -> None:
    marked = pod("one", labels={"fault-scheduling": "force", **labels}, annotations=annotations)
    assert read_switches((), [marked]).mode is Mode.OFF


def test_an_unknown_strategy_for_sub_healthy_nodes_is_named() -> None:
    assert of_labels(subHealthyStrategy="forceExit").strategy is Strategy.FORCE_EXIT
    with pytest.raises(InvalidValue, match="subHealthyStrategy is 'leave'; known values: ignore, graceExit, forceExit"):
        of_labels(subHealthyStrategy="leave")
