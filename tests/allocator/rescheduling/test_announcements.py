"""What rescheduling does, and why it does not, is an Event, a line of the log and a metric."""

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from allocator.rescheduling.announcer import DELETED, HELD, PLANNED
from allocator.rescheduling.fault_watch import CONFIRM_S
from ascend.errors import ApiError
from tests.allocator.builders import report
from tests.allocator.rescheduling.scene import job, scene

Logs = list[Any]
WHY = "node n1 reports a fault of its chips: Ascend910-0"


@pytest.fixture(name="logs")
def fixture_logs() -> Iterator[Logs]:
    """The lines of the log."""
    with capture_logs() as logs:
        yield logs


def lines(logs: Logs, event: str, *keys: str) -> list[tuple[str, ...]]:
    """These fields of the lines about something, which operators have to see."""
    found = [each for each in logs if each["event"] == event]
    assert {each["log_level"] for each in found} <= {"warning"}
    return [tuple(each[key] for key in keys) for each in found]


async def test_deleted_pods_and_their_job_are_announced(logs: Logs) -> None:
    stage = scene(job(3))
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == ["train-0", "train-1", "train-2"]
    peers = f"with the others of its job: {WHY}"
    assert lines(logs, "deleted a pod", "pod", "pod_uid", "node", "reason", "error") == [
        ("default/train-0", "uid-train-0", "n1", "CardUnhealthy", WHY),
        ("default/train-1", "uid-train-1", "n2", "peer", peers),
        ("default/train-2", "uid-train-2", "n3", "peer", peers),
    ]
    ((name, reason, error),) = lines(logs, "rescheduled a job", "job", "reason", "error")
    assert (name, reason, error) == ("default/train", "CardUnhealthy", WHY)
    assert {reason for reason, _ in stage.said} == {DELETED}
    assert [(about.kind, about.name) for about in stage.about] == [
        ("Pod", "train-0"), ("Pod", "train-1"), ("Pod", "train-2"), ("StatefulSet", "train"),
    ]  # fmt: skip
    assert stage.said[-1][1] == f"3 of its pods were deleted, 1 of them faulty: {WHY}"
    assert stage.metric("rescheduled_pods_total", reason="CardUnhealthy") == 1
    assert stage.metric("rescheduled_pods_total", reason="peer") == 2
    assert stage.metric("rescheduling_stopped") == 0


async def test_what_is_not_deleted_is_announced_once_and_not_counted(logs: Logs) -> None:
    stage = scene(job(1))
    stage.refuses = ApiError("Cannot evict pod", status=429)
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    assert await stage.look(60.0) == []
    why = "pod default/train-0 can't be evicted yet: Cannot evict pod"
    assert stage.said == [(HELD, why)]
    assert lines(logs, "a job has faulty pods", "job", "pod", "reason", "error") == [
        ("default/train", "default/train-0", HELD, why)
    ]
    assert lines(logs, "deleted a pod", "pod") == lines(logs, "rescheduled a job", "job") == []
    assert stage.metric("rescheduled_pods_total", reason="CardUnhealthy") is None


async def test_what_a_dry_run_would_delete_is_logged_and_not_counted(logs: Logs) -> None:
    stage = scene(job(2), reschedule="dry-run")
    stage.world.add(report("n1", unhealthy=[0]))
    assert await stage.settle() == []
    ((name, reason, error),) = lines(logs, "a job has faulty pods", "job", "reason", "error")
    assert (name, reason) == ("default/train", PLANNED)
    assert error == f"dry run: of job default/train, train-0, train-1 would be deleted: {WHY}"
    assert stage.metric("rescheduled_pods_total", reason="CardUnhealthy") is None


async def test_the_metric_says_that_rescheduling_has_stopped_as_long_as_it_has(logs: Logs) -> None:
    pods = [each for number in range(1, 11) for each in job(1, name=f"j{number}", first_node=number)]
    stage = scene(pods)
    for number in range(1, 11):
        stage.world.add(report(f"n{number}", unhealthy=[0]))
    assert await stage.settle() == []
    assert stage.metric("rescheduling_stopped") == 1
    said = lines(logs, "a job has faulty pods", "pod", "reason")
    assert sorted(said) == sorted((each.key, HELD) for each in pods)
    for number in range(2, 11):
        stage.world.add(report(f"n{number}"))
    assert await stage.look(CONFIRM_S) == ["j1-0"]
    assert stage.metric("rescheduling_stopped") == 0
    assert stage.metric("rescheduled_pods_total", reason="CardUnhealthy") == 1


async def test_a_deletion_by_force_and_a_mark_are_logged(logs: Logs) -> None:
    stage = scene(
        [*job(1, fault_scheduling="grace"), *job(1, name="other", first_node=2, fault_scheduling="external-force")]
    )
    stage.stuck = {"train-0"}
    stage.world.add(report("n1", unhealthy=[0]), report("n2", unhealthy=[0]))
    assert await stage.settle() == ["train-0"]
    assert await stage.look(stage.settings.reschedule_grace_s) == ["train-0"]
    assert lines(logs, "deleted a pod by force", "pod", "node") == [("default/train-0", "n1")]
    assert lines(logs, "marked a faulty pod", "pod", "status") == [("default/other-0", "Unhealthy-CardUnhealthy")]
