"""The jobs of the training operator without PodGroups, which it does not make by default."""

import pytest

from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ("training-operator",)
FLAGS = {"training-operator": ("--gang-scheduler-name=",)}
DEFINITIONS = ()

pytestmark = [pytest.mark.real, pytest.mark.long]


@pytest.mark.parametrize(("kind", "size"), [("PyTorchJob", 3), ("TFJob", 3), ("MPIJob", 2)])
async def test_a_job_without_a_pod_group_starts_whole(workloads: Workloads, kind: str, size: int) -> None:
    await workloads.add_nodes(size - 1)
    await workloads.create(example(f"{kind.lower()}.yaml"))
    await workloads.refused(size)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    job = workloads.job_of(pods)
    assert (job.kind, job.size, job.min_available) == (kind, size, 3)
    await workloads.add_nodes(1)
    pods = [pod for pod in await workloads.bound(3) if pod.requests_chips]
    assert len({pod.spec.node_name for pod in pods}) == size
    assert [chips(pod) for pod in pods] == [8] * size
    assert len({job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods}) == size
