"""The jobs of the training operator with Volcano's PodGroups, for whose phase it waits, under kube-scheduler."""

from typing import Any

import pytest

from ascend.jobs.pod_groups import VOLCANO
from tests.workloads.definitions import VOLCANO_POD_GROUP
from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ("training-operator",)
FLAGS = {"training-operator": ("--gang-scheduler-name=volcano",)}
DEFINITIONS = (VOLCANO_POD_GROUP,)
SETTINGS = {"enqueue_pod_groups": True}

pytestmark = [pytest.mark.real, pytest.mark.long]


def for_kube_scheduler(name: str, field: str) -> list[dict[str, Any]]:
    """An example whose templates name kube-scheduler; the operator writes Volcano on the pods of others."""
    (job,) = example(name)
    for each in job["spec"][field].values():
        each["template"]["spec"] = {**each["template"]["spec"], "schedulerName": "default-scheduler"}
    return [job]


@pytest.mark.parametrize(
    ("name", "field", "size"),
    [
        ("pytorchjob.yaml", "pytorchReplicaSpecs", 3),
        ("tfjob.yaml", "tfReplicaSpecs", 3),
        ("mpijob.yaml", "mpiReplicaSpecs", 2),
    ],
)
async def test_a_job_with_a_pod_group_of_volcano_starts_whole(
    workloads: Workloads, name: str, field: str, size: int
) -> None:
    await workloads.add_nodes(size - 1)
    await workloads.create(for_kube_scheduler(name, field))
    await workloads.refused(size)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    job = workloads.job_of(pods)
    assert (job.kind, job.size, job.min_available) == (VOLCANO, size, 3)
    await workloads.add_nodes(1)
    pods = [pod for pod in await workloads.bound(3) if pod.requests_chips]
    assert len({pod.spec.node_name for pod in pods}) == size
    assert [chips(pod) for pod in pods] == [8] * size
