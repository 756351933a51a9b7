"""The jobs of the training operator, with PodGroups, and of Ray, made from their examples by their own controllers."""

import asyncio
from typing import Any

import pytest

from ascend.jobs.pod_groups import COSCHEDULING
from ascend.jobs.ray import RAY_CLUSTER
from ascend.kube.objects import Pod
from tests.workloads.definitions import POD_GROUP
from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ("training-operator", "ray-operator")
DEFINITIONS = (POD_GROUP,)
RAY_JOB = "/apis/ray.io/v1/namespaces/default/rayjobs/train"

pytestmark = [pytest.mark.real, pytest.mark.long]


@pytest.mark.parametrize(
    ("name", "size", "kind"),
    [
        ("pytorchjob.yaml", 3, COSCHEDULING),
        ("tfjob.yaml", 3, COSCHEDULING),
        ("mpijob.yaml", 2, COSCHEDULING),
        ("raycluster.yaml", 2, RAY_CLUSTER),
        ("rayjob.yaml", 2, RAY_CLUSTER),
        ("rayservice.yaml", 2, RAY_CLUSTER),
    ],
)
async def test_the_pods_of_an_operator_start_together(workloads: Workloads, name: str, size: int, kind: str) -> None:
    await workloads.add_nodes(size - 1)
    await workloads.create(example(name))
    await workloads.refused(size)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    job = workloads.job_of(pods)
    assert (job.kind, job.size, job.min_available) == (kind, size, 3)
    await workloads.add_nodes(1)
    await workloads.bound(3)
    pods = [pod for pod in await workloads.pods() if pod.requests_chips]
    assert len({pod.spec.node_name for pod in pods}) == size
    assert [chips(pod) for pod in pods] == [8] * size
    assert len({job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods}) == size


async def test_the_pod_that_submits_a_ray_job_neither_waits_nor_counts(workloads: Workloads) -> None:
    await workloads.add_nodes(2)
    await workloads.create(example("rayjob.yaml"))
    cluster = await workloads.bound(3)
    await workloads.run(cluster)
    pods = await workloads.bound(4)
    (submitter,) = [pod for pod in pods if pod.name not in {each.name for each in cluster}]
    owner = submitter.metadata.controller
    assert owner is not None
    assert (owner.kind, owner.name, submitter.requests_chips) == ("Job", "train", False)
    job = workloads.job_of(_workers(pods))
    assert (job.size, job.min_available) == (2, 3)


async def test_the_successor_of_a_failed_ray_worker_takes_its_place(workloads: Workloads) -> None:
    await workloads.add_nodes(2)
    await workloads.create(example("rayjob.yaml"))
    cluster = await workloads.bound(3)
    await workloads.run(cluster)
    before = _workers(cluster)
    job = workloads.job_of(before)
    await workloads.fail(before[0])

    async def replaced() -> list[Pod] | None:
        # With a stale cache the operator creates two pods, and deletes any one; it counts that until a kubelet ends it.
        workers = _workers(await workloads.end_terminating())
        is_whole = len(workers) == 2 and all(pod.spec.node_name for pod in workers)
        return workers if is_whole and before[0].uid not in {pod.uid for pod in workers} else None

    workers = await workloads.eventually(replaced, "the operator has replaced the pod, and both workers are bound")
    assert {pod.spec.node_name for pod in workers} == {pod.spec.node_name for pod in before}
    assert [chips(pod) for pod in workers] == [8, 8]
    # The rank of a second pod that the operator created, and kept, is not that of the failed one.
    assert len({job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in workers}) == len(workers)


async def test_a_suspended_ray_job_holds_nothing(workloads: Workloads) -> None:
    async def state() -> Any:
        found = await asyncio.to_thread(workloads.cluster.api.get, RAY_JOB)
        return found.get("status", {}).get("jobDeploymentStatus")

    async def is_suspended() -> bool:
        await workloads.end_terminating()
        return await state() == "Suspended" and not await workloads.pods()

    async def is_empty() -> bool:
        await workloads.end_terminating()
        return len(workloads.app.ledger) == 0

    (ray_job,) = example("rayjob.yaml")
    ray_job["spec"]["suspend"] = True
    await workloads.add_nodes(2)
    await workloads.create([ray_job])
    await workloads.eventually(is_suspended, "the operator has seen that the RayJob is suspended")
    assert len(workloads.app.ledger) == 0
    await asyncio.to_thread(workloads.cluster.api.patch, RAY_JOB, {"spec": {"suspend": False}})
    assert [chips(pod) for pod in _workers(await workloads.bound(3))] == [8, 8]
    await asyncio.to_thread(workloads.cluster.api.patch, RAY_JOB, {"spec": {"suspend": True}})
    await workloads.eventually(is_suspended, "the operator has deleted the pods of the suspended RayJob")
    await workloads.eventually(is_empty, "the chips are free")


def _workers(pods: list[Pod]) -> list[Pod]:
    return [pod for pod in pods if pod.requests_chips]
