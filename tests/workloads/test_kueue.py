"""Pods and jobs that Kueue holds back until it admits them."""

import pytest

from tests.workloads.world import KUEUE, Workloads, chips, example

CONTROLLERS = (KUEUE,)
DEFINITIONS = ()
QUEUE = "/apis/kueue.x-k8s.io/v1beta1/clusterqueues/training"

pytestmark = [pytest.mark.real, pytest.mark.long]


async def test_pods_that_kueue_holds_are_not_there(workloads: Workloads) -> None:
    objects = example("kueue.yaml")
    queue = next(each for each in objects if each["kind"] == "ClusterQueue")
    queue["spec"]["stopPolicy"] = "Hold"
    await workloads.add_nodes(2)
    await workloads.create(objects)
    held = await workloads.made(2)
    assert all(pod.spec.scheduling_gates for pod in held)
    assert workloads.job_of(held).size == 0
    # Two servers for both, but the held pods reserve none of them.
    (other,) = example("pod.yaml")
    await workloads.create([other])
    assert [pod.name for pod in await workloads.bound(1)] == [other["metadata"]["name"]]
    workloads.cluster.api.patch(QUEUE, {"spec": {"stopPolicy": "None"}})
    job = workloads.job_of(await workloads.refused(2))

    async def complete() -> bool:
        return (job.size, job.min_available) == (2, 2)

    await workloads.eventually(complete, "both pods are there")
    await workloads.add_nodes(1)
    pods = [pod for pod in await workloads.bound(3) if pod.name != other["metadata"]["name"]]
    assert [chips(pod) for pod in pods] == [8, 8]
    assert sorted(job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods) == [0, 1]


async def test_a_job_that_kueue_admits_starts_together(workloads: Workloads) -> None:
    queue = [each for each in example("kueue.yaml") if each["kind"] != "Pod"]
    flavors = queue[1]["spec"]["resourceGroups"][0]["flavors"]
    flavors[0]["resources"][0]["nominalQuota"] = 32
    (job,) = example("indexed-job.yaml")
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    await workloads.add_nodes(3)
    await workloads.create([*queue, job])
    recognized = workloads.job_of(await workloads.refused(4))
    assert (recognized.size, recognized.min_available) == (4, 4)
    await workloads.add_nodes(1)
    assert [chips(pod) for pod in await workloads.bound(4)] == [8] * 4
