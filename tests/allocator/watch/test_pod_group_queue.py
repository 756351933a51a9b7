"""Which schedulers the pods of a job get from its operator."""

from typing import Any

import msgspec
import pytest

from allocator.watch.pod_group_queue import AscendJobSpec, QueuedPodGroup, VolcanoJobSpec


def template(scheduler: str = "") -> dict[str, Any]:
    return {"template": {"spec": {"schedulerName": scheduler} if scheduler else {}}}


@pytest.mark.parametrize(
    ("own", "master", "worker", "schedulers"),
    [
        ("", "", "", {"volcano"}),
        ("ours", "", "", {"ours"}),
        ("volcano", "ours", "ours", {"ours"}),
        # The operator looks for a name in all templates, and then changes none.
        ("ours", "volcano", "", {"volcano", "default-scheduler"}),
    ],
)
def test_the_schedulers_of_an_ascend_job(own: str, master: str, worker: str, schedulers: set[str]) -> None:
    spec = {"schedulerName": own, "replicaSpecs": {"Master": template(master), "Worker": template(worker)}}
    assert msgspec.convert(spec, AscendJobSpec).schedulers == schedulers


@pytest.mark.parametrize(
    ("own", "tasks", "schedulers"),
    [
        ("", ["", ""], {"volcano"}),
        ("ours", ["", "volcano"], {"ours", "volcano"}),
        ("ours", [], {"ours"}),
    ],
)
def test_the_schedulers_of_a_volcano_job(own: str, tasks: list[str], schedulers: set[str]) -> None:
    spec = {"schedulerName": own, "tasks": [template(each) for each in tasks]}
    assert msgspec.convert(spec, VolcanoJobSpec).schedulers == schedulers


@pytest.mark.parametrize(("phase", "waits"), [("", True), ("Pending", True), ("Inqueue", False), ("Running", False)])
def test_a_group_waits_until_its_phase_is_beyond_pending(phase: str, *, waits: bool) -> None:
    group = msgspec.convert({"metadata": {"uid": "1"}, "status": {"phase": phase}}, QueuedPodGroup)
    assert group.waits is waits
