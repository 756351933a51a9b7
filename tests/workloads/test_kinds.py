"""Each kind of job, made from its example by its own controller: which pods are one job, and whether it is a gang."""

import asyncio

import pytest

from ascend.annotations import MIN_AVAILABLE
from ascend.reasons import Reason
from tests.cluster.api import collection
from tests.workloads.definitions import POD_GROUP
from tests.workloads.world import Workloads, chips, example

CONTROLLERS = ("jobset", "lws")
DEFINITIONS = (POD_GROUP,)

pytestmark = pytest.mark.real

GANGS = {"indexed-job.yaml": 4, "jobset.yaml": 4, "statefulset.yaml": 3, "pod-group.yaml": 2}
"""The number of pods of each job whose pods are all of one gang."""


@pytest.mark.parametrize(("name", "size"), GANGS.items())
async def test_a_gang_starts_whole_or_not_at_all(workloads: Workloads, name: str, size: int) -> None:
    await workloads.add_nodes(size - 1)
    await workloads.create(example(name))
    pods = await workloads.refused(size)
    job = workloads.job_of(pods)
    assert (job.size, job.min_available) == (size, size)
    assert len(workloads.app.ledger) == 0
    await workloads.add_nodes(1)
    pods = await workloads.bound(size)
    assert len({pod.spec.node_name for pod in pods}) == size
    assert [chips(pod) for pod in pods] == [8] * size
    assert sorted(job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods) == list(range(size))


async def test_the_replicas_of_a_leader_worker_set_are_gangs_of_their_own(workloads: Workloads) -> None:
    await workloads.add_nodes(3)
    await workloads.create(example("leaderworkerset.yaml"))
    await workloads.made(4)
    placed = await workloads.bound(2)
    assert workloads.job_of(placed).min_available == 2
    waiting = [pod for pod in await workloads.pods() if not pod.spec.node_name]
    assert workloads.job_of(waiting).min_available == 2
    await workloads.add_nodes(1)
    for replica in (placed, waiting):
        job = workloads.job_of(replica)
        pods = [pod for pod in await workloads.bound(4) if pod.uid in {each.uid for each in replica}]
        assert [chips(pod) for pod in pods] == [8, 8]
        assert sorted(job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods) == [0, 1]


@pytest.mark.parametrize(("name", "requested"), [("job.yaml", 2), ("deployment.yaml", 1)])
async def test_pods_that_work_alone_are_placed_one_by_one(workloads: Workloads, name: str, requested: int) -> None:
    await workloads.create(example(name))
    job = workloads.job_of(await workloads.refused(3))
    assert (job.size, job.is_gang) == (3, False)
    await workloads.add_nodes(1)
    assert [chips(pod) for pod in await workloads.bound(3)] == [requested] * 3


async def test_ordered_pods_of_a_stateful_set_are_placed_one_after_another(workloads: Workloads) -> None:
    (stateful_set,) = example("statefulset.yaml")
    del stateful_set["spec"]["podManagementPolicy"]
    del stateful_set["spec"]["template"]["metadata"]["annotations"][MIN_AVAILABLE]
    await workloads.add_nodes(3)
    await workloads.create([stateful_set])
    for count in (1, 2, 3):
        pods = await workloads.bound(count)
        await workloads.run(pods)
    job = workloads.job_of(pods)
    assert (job.size, job.is_gang) == (3, False)
    ranks = {pod.name: job.rank_of(workloads.app.cluster.pods[pod.uid]) for pod in pods}
    assert ranks == {"serve-0": 0, "serve-1": 1, "serve-2": 2}


async def test_pods_wait_while_their_group_is_deleted_and_run_on_if_they_are_bound(workloads: Workloads) -> None:
    async def is_seen() -> bool:
        return workloads.app.cluster.jobs.lacks_group(job)

    async def refused_without_group() -> bool:
        messages = [each.message for pod in await workloads.pods() for each in pod.status.conditions]
        return len(messages) == 2 and all(Reason.GROUP_MISSING in each for each in messages)

    group, *pods = example("pod-group.yaml")
    assert group["kind"] == "PodGroup"
    path = f"{collection({**group, 'metadata': {'namespace': 'default'}})}/{group['metadata']['name']}"
    await workloads.add_nodes(1)
    await workloads.create([group, *pods])
    job = workloads.job_of(await workloads.refused(2))
    await asyncio.to_thread(workloads.cluster.api.delete, path)
    await workloads.eventually(is_seen, "the allocator has seen that the group is deleted")
    await workloads.add_nodes(1)  # kube-scheduler tries them again
    await workloads.eventually(refused_without_group, "both pods are refused for their group")
    await workloads.create([group])
    bound = await workloads.bound(2)
    await asyncio.to_thread(workloads.cluster.api.delete, path)
    await workloads.eventually(is_seen, "the allocator has seen that the group is deleted")
    assert {pod.name for pod in await workloads.bound(2)} == {pod.name for pod in bound}
    assert [chips(pod) for pod in bound] == [8, 8]
    nodes = workloads.app.cluster.nodes
    assert [nodes[pod.spec.node_name].held.bit_count() for pod in bound] == [8, 8]
