"""The jobs of the training operator and of Ray, made from their examples by their own controllers."""

import pytest

from tests.workloads.definitions import POD_GROUP
from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ("training-operator", "ray-operator")
DEFINITIONS = (POD_GROUP,)

pytestmark = [pytest.mark.real, pytest.mark.long]


@pytest.mark.parametrize(
    ("name", "size", "minimum"),
    [("pytorchjob.yaml", 3, 3), ("tfjob.yaml", 3, 3), ("mpijob.yaml", 2, 3), ("raycluster.yaml", 2, 3)],
)
async def test_the_pods_of_an_operator_start_together(workloads: Workloads, name: str, size: int, minimum: int) -> None:
    await workloads.add_nodes(size - 1)
    await workloads.create(example(name))
    await workloads.refused(size)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    job = workloads.job_of(pods)
    assert (job.size, job.min_available) == (size, minimum)
    await workloads.add_nodes(1)
    await workloads.bound(3)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    assert len({pod.spec.node_name for pod in pods}) == size
    assert [chips(pod) for pod in pods] == [8] * size
    assert len({job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods}) == size
